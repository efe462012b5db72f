"""Encoders of sparse codes: interruptions in any stage, what a resumed run must share, blocks, numbers by hand."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from plumbing_tools import Interrupting, bits, through_interruptions, without_seconds

from latentia import DictionaryLearning, SparseCoder
from latentia.core.errors import ParameterError, RunFolderError
from latentia.inference.sparse import unrolled
from latentia.learning import encoders
from latentia.learning import fit as loop
from latentia.learning.encoders import Journal, encode_with, learn_lista
from latentia.learning.prediction import CodeDistance

K, D, N = 5, 4, 90
RNG = np.random.default_rng(0)
ATOMS = RNG.normal(size=(K, D)).astype(np.float32)
ATOMS /= np.linalg.norm(ATOMS, axis=1, keepdims=True)
X = RNG.normal(size=(N, D)).astype(np.float32)
QUICK = {"n_epochs": 4, "batch_size": 30, "learning_rate": 0.01}
KINDS = {
    "lista": {"kind": "lista", "n_layers": 2, **QUICK},
    "psd": {"kind": "psd", "n_code_steps": 4, "update_dictionary": True, **QUICK},
}


def coder(**parameters) -> SparseCoder:
    return SparseCoder(ATOMS, **{"alpha": 0.2, **parameters}).fit(X)


def learned(estimator, kind):
    return estimator.components_, getattr(estimator, f"{kind}_")


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_is_interrupted_after_every_chunk_goes_through_the_same_bits(kind, tmp_path):
    """Adam's moments, the schedule, codes and keys; layers alone and with those before them; the journal."""
    whole, part = coder().fit_encoder(X=X, **KINDS[kind]), coder()

    def go_on(resume):
        where = {"run_dir": tmp_path / "run", "resume": resume, "callbacks": [Interrupting()]}
        part.fit_encoder(X=X, **where, **KINDS[kind])

    assert through_interruptions(go_on) == len(whole.encoder_history_)
    assert bits(learned(part, kind)) == bits(learned(whole, kind))
    assert without_seconds(part.encoder_history_) == without_seconds(whole.encoder_history_)


def test_what_differs_from_the_training_to_resume_is_named(tmp_path):
    folder, recipe = tmp_path / "run", {**KINDS["lista"], "n_layers": 2, "n_epochs": 1}
    coder().fit_encoder(X=X, run_dir=folder, **recipe)
    one_number, one_atom = X.copy(), ATOMS.copy()
    one_number[41, 2] += 0.5
    one_atom[3] *= 0.9
    changes = [
        ("the signals", coder(), {"X": one_number}),
        ("n_layers", coder(), {"n_layers": 1}),
        ("learning_rate", coder(), {"learning_rate": 0.02}),
        ("random_state", coder(), {"random_state": 1}),
        ("the dictionary", SparseCoder(one_atom, alpha=0.2).fit(X), {}),
        ("SparseCoder's alpha", coder(alpha=0.3), {}),
    ]
    for name, estimator, change in changes:
        with pytest.raises(RunFolderError, match=f"other parameters or other data.*differs: .*{name}"):
            estimator.fit_encoder(**{"X": X, **recipe, **change}, run_dir=folder, resume=True)
    (folder / "checkpoint.safetensors").unlink()  # as if it had been killed before the last stage
    with pytest.raises(RunFolderError, match="the signals"):
        coder().fit_encoder(X=one_number, run_dir=folder, resume=True, **recipe)


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_training_is_a_first_one_and_another_dictionary_has_no_encoder(kind):
    first = coder().fit_encoder(X=X, **KINDS[kind])
    twice = coder().fit_encoder(X=X[::-1], **{**KINDS[kind], "random_state": 3})
    if kind == "psd":
        twice.fit(X)  # the dictionary as it was
        assert not hasattr(twice, "psd_")
        assert not hasattr(twice, "encoder_history_")
    twice.fit_encoder(X=X, **KINDS[kind])
    assert bits(learned(twice, kind)) == bits(learned(first, kind))
    assert without_seconds(twice.encoder_history_) == without_seconds(first.encoder_history_)
    twice.adopt(first.model_, first.blueprint_)
    assert not hasattr(twice, f"{kind}_")


class Watched(CodeDistance):
    """Shows every batch."""

    seen = []  # noqa: RUF012

    def loss(self, model, x, weights, state):
        jax.debug.callback(lambda *batch: Watched.seen.append(list(map(np.asarray, batch))), *x)
        return super().loss(model, x, weights, state)


@pytest.mark.parametrize("kept", [np.asarray, sp.csr_matrix])
def test_codes_follow_their_signals_and_every_stage_has_an_order_of_its_own(monkeypatch, kept):
    monkeypatch.setattr(encoders, "CodeDistance", Watched)
    Watched.seen.clear()
    numbers = np.arange(1, N + 1, dtype=np.float32)
    signals = np.column_stack([numbers, X[:, 1:]])
    codes = np.column_stack([2 * numbers, np.zeros((N, K - 2)), numbers % 7]).astype(np.float32)
    journal = Journal()
    options = {"n_epochs": 4, "batch_size": 30, "learning_rate": 1e-9, "journal": journal}
    learn_lista(signals, kept(codes), ATOMS, 0.2, 2, **options)
    jax.effects_barrier()
    batches = Watched.seen
    assert len(batches) == 12 + 3 + 9  # a quarter of the second layer's steps it takes alone
    for signal, code in batches:
        np.testing.assert_array_equal(code[:, 0], 2 * signal[:, 0])
        np.testing.assert_array_equal(code[:, -1], signal[:, 0] % 7)
    orders = [tuple(signal[:, 0]) for signal, _ in batches]
    assert len(set(orders)) == len(orders)
    for first in range(0, 24, 3):  # every signal once an epoch
        assert sorted(n for order in orders[first : first + 3] for n in order) == numbers.tolist()
    assert [row["step"] for row in journal.history] == list(range(3, 25, 3))
    assert [row["epoch"] for row in journal.history] == list(range(1, 9))
    assert [row["layer"] for row in journal.history] == [1] * 4 + [2] * 4


def test_what_is_reported_is_the_distance_of_the_encoder_that_began_the_step(monkeypatch):
    codes = RNG.normal(size=(N, K)).astype(np.float32)
    models = []
    real = loop.fit

    def fit(model, *arguments, **options):
        models.append(model)
        return real(model, *arguments, **options)

    monkeypatch.setattr(encoders.loop, "fit", fit)
    journal = Journal()
    learn_lista(X, codes, ATOMS, 0.2, 1, n_epochs=1, batch_size=1000, journal=journal)
    wanted = encoders.distance(models[0].encoder, X, codes)
    by_hand = np.mean(np.sum((encode_with(models[0].encoder, X) - codes) ** 2, axis=1))
    assert wanted == pytest.approx(by_hand, rel=1e-6)
    assert wanted in [pytest.approx(value, rel=1e-5) for value in journal.history[0].values()]


def test_blocks_make_no_difference_to_codes(monkeypatch):
    estimator = coder().fit_encoder(X=X, **{**KINDS["lista"], "n_epochs": 1})
    whole = estimator.encode(X, using="lista")
    one_by_one = np.concatenate([estimator.encode(X[i : i + 1], using="lista") for i in range(9)])
    np.testing.assert_allclose(whole[:9], one_by_one, atol=1e-6)
    monkeypatch.setattr(unrolled, "BLOCK", 32)
    np.testing.assert_allclose(estimator.encode(X, using="lista"), whole, atol=1e-6)


def test_encoders_go_when_their_dictionary_does():
    """By another pass, another fit, or a dictionary that learns along; what is left belongs to the new one."""
    learning = DictionaryLearning(K, 0.2, n_epochs=1, batch_size=30, random_state=0)
    for change in (
        lambda e: e.partial_fit(X[:30]),
        lambda e: e.fit(X),
        lambda e: e.fit_encoder(X=X, **{**KINDS["psd"], "n_epochs": 1}),
    ):
        learning.fit(X).fit_encoder("lista", X, n_layers=1, n_epochs=1)
        assert len(learning.encode(X, using="lista")) == N
        change(learning)
        assert "lista_" not in vars(learning)
        with pytest.raises(ParameterError, match="There is no 'lista' encoder yet"):
            learning.encode(X, using="lista")
    assert "psd_" in vars(learning)
    assert "psd_" not in vars(learning.partial_fit(X))
    assert "encoder_history_" not in vars(learning)
