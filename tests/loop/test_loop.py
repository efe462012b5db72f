"""The training loop: order, compiling once, divergence, early stopping, checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from latentia import RBM, GaussianRBM
from latentia.core.errors import DivergenceError, NotNormalisableError, RunFolderError
from latentia.learning import compiled
from latentia.learning.batches import RowOrder, is_mapped, read_rows

#: Runs in processes of their own are long enough to be worth optimising.
OPTIMISED = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
SMALL = {"n_components": 5, "batch_size": 20, "n_epochs": 4, "random_state": 0}


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    rng = np.random.default_rng(0)
    return ((rng.random((200, 3)) < 0.4).astype(float) @ (rng.random((3, 8)) < 0.5) > 0.5).astype(float)


def weights(rbm: RBM) -> np.ndarray:
    return np.asarray(rbm.model_.weights)


def test_row_order_visits_every_row_once_an_epoch_and_depends_on_the_step_alone():
    order = RowOrder(n_rows=10, batch_size=4, seed=3)
    stream = order.rows(0, 5).ravel()  # 20 rows: two epochs
    assert sorted(stream[:10]) == sorted(stream[10:]) == list(range(10))
    assert not np.array_equal(stream[:10], stream[10:])
    later = RowOrder(n_rows=10, batch_size=4, seed=3).rows(3, 2)
    np.testing.assert_array_equal(later, order.rows(0, 5)[3:])
    assert not np.array_equal(RowOrder(10, 4, seed=4).rows(0, 5).ravel(), stream)


def test_a_second_fit_of_the_same_shape_compiles_nothing(X):
    first = RBM(**SMALL).fit(X)
    n_compiled = len(compiled._CACHE)
    second = RBM(**{**SMALL, "learning_rate": 0.01, "weight_decay": 1e-3, "random_state": 5}).fit(X)
    assert len(compiled._CACHE) == n_compiled
    assert second.compile_seconds_ == 0
    assert not np.array_equal(weights(first), weights(second))


def test_same_seed_same_bits_and_another_seed_others(X):
    np.testing.assert_array_equal(weights(RBM(**SMALL).fit(X)), weights(RBM(**SMALL).fit(X)))
    assert not np.array_equal(weights(RBM(**SMALL).fit(X)), weights(RBM(**{**SMALL, "random_state": 1}).fit(X)))


def test_a_divergence_is_rolled_back_halved_and_reported(X):
    said = []

    class Display:
        def start(self, n_steps, done): ...
        def compiling(self): ...
        def update(self, done, metrics): ...
        def stop(self): ...
        def say(self, message):
            said.append(message)

    from latentia.estimator import fits

    real = fits.display
    fits.display = lambda verbose, title: Display()
    try:
        # Every parameter drifts by 150 a step: ten steps of 150 pass the limit of 1000, of 75 not.
        drift = optax.stateless(lambda updates, params: jax.tree.map(lambda u: 150.0 + 0.0 * u, updates))
        rbm = RBM(**{**SMALL, "optimizer": drift, "n_epochs": 1, "centring": 0, "monitor": None})
        rbm.fit(X)
    finally:
        fits.display = real
    assert len(said) == 1
    assert "rolled back" in said[0]
    assert "halved" in said[0]
    assert float(rbm._state.slowdown) == 0.5
    assert np.isfinite(weights(rbm)).all()


def test_after_three_rollbacks_training_stops_and_keeps_the_last_good_model(X):
    rbm = RBM(**{**SMALL, "optimizer": "adam", "learning_rate": 1e30, "schedule": "constant"})
    with pytest.raises(DivergenceError, match=r"learning_rate"):
        rbm.fit(X)
    assert np.isfinite(weights(rbm)).all()
    assert np.isfinite(rbm.transform(X)).all()


def test_drifting_out_of_the_normalisable_region_is_refused_and_explained(X):
    rbm = GaussianRBM(**{**SMALL, "hidden": "gaussian", "learning_rate": 0.3, "optimizer": "adam", "n_epochs": 20})
    with pytest.raises(NotNormalisableError, match="unbounded.*singular value"):
        rbm.fit(X + 0.1 * np.random.default_rng(0).normal(size=X.shape))
    assert float(rbm.model_.margin()) > 0  # the last good one was kept


def test_a_start_that_is_not_normalisable_is_refused(X):
    with pytest.raises(NotNormalisableError, match="not normalisable"):
        RBM(**{**SMALL, "visible": "gaussian", "hidden": "rectified", "weight_scale": 5.0}).fit(X)


def test_early_stopping_keeps_the_best_model(X):
    seen = []
    rbm = RBM(
        **{**SMALL, "n_epochs": 200, "early_stopping": True, "patience": 3, "validation_fraction": 0.3},
        callbacks=[lambda event: seen.append(event.metrics["validation_score"])],
    ).fit(X)
    assert rbm.n_steps_ < 200 * 7
    assert len(seen) - 1 - int(np.argmax(seen)) == 3  # three epochs without a better one
    scorer = rbm.validation_scorer(X[:5])
    assert scorer(rbm.model_) == pytest.approx(np.mean(_pseudo(rbm, X[:5])), rel=1e-5)


def _pseudo(rbm: RBM, X: np.ndarray) -> np.ndarray:
    """Σ_i log p(x_i | rest) from free energies of flipped rows."""
    energy = rbm.free_energy(X).astype(float)
    total = np.zeros(len(X))
    for i in range(X.shape[1]):
        flipped = X.copy()
        flipped[:, i] = 1 - flipped[:, i]
        total -= np.log1p(np.exp(energy - rbm.free_energy(flipped)))
    return total


def test_a_callback_stops_the_run(X):
    events = []
    rbm = RBM(**SMALL, callbacks=[lambda event: events.append(event) or event.epoch >= 2]).fit(X)
    assert [event.epoch for event in events] == [1, 2]
    assert rbm.n_steps_ == 20


def test_a_ctrl_c_that_python_loses_still_stops_the_run(X, tmp_path):
    seen: list[int] = []
    # Whoever starts tests in the background may have switched the signal off.
    outer = signal.signal(signal.SIGINT, signal.default_int_handler)

    def lose(event):
        seen.append(event.step)
        with contextlib.suppress(KeyboardInterrupt):  # as a finaliser would
            signal.raise_signal(signal.SIGINT)

    rbm = RBM(n_components=3, n_epochs=5, callbacks=[lose], run_dir=tmp_path / "run", random_state=0)
    try:
        with pytest.raises(KeyboardInterrupt):
            rbm.fit(X)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, outer)
    assert len(seen) == 1
    resumed = RBM(n_components=3, n_epochs=5, run_dir=tmp_path / "run", resume=True, random_state=0).fit(X)
    assert resumed.history_[0]["step"] == seen[0]
    whole = RBM(n_components=3, n_epochs=5, random_state=0).fit(X)
    assert (weights(resumed) == weights(whole)).all()


def test_history_and_metrics_file_agree(X, tmp_path):
    rbm = RBM(**SMALL, run_dir=tmp_path / "run").fit(X)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines == rbm.history_
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert {"energy_gap", "gradient_norm", "step", "seconds"} <= set(lines[0])


def test_a_run_folder_is_not_overwritten(X, tmp_path):
    RBM(**SMALL, run_dir=tmp_path / "run").fit(X)
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    with pytest.raises(RunFolderError, match="exists already.*resume"):
        RBM(**SMALL, run_dir=tmp_path / "run").fit(X)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_resuming_with_other_parameters_or_data_is_refused(X, tmp_path):
    RBM(**SMALL, run_dir=tmp_path / "run").fit(X)
    for parameters, rows in (({"learning_rate": 0.2}, X), ({"n_components": 6}, X), ({}, 1 - X)):
        with pytest.raises(RunFolderError, match="other parameters or other data"):
            RBM(**{**SMALL, **parameters}, run_dir=tmp_path / "run", resume=True).fit(rows)


SCRIPT = """
import sys, time
import numpy as np
from latentia import RBM
X = (np.random.default_rng(0).random((400, 12)) < 0.4).astype(float)
slow = (lambda event: time.sleep(0.05)) if sys.argv[2] == "slow" else (lambda event: None)
from latentia.learning import fit
fit.CHECKPOINT_SECONDS = 0.0
RBM(n_components=7, batch_size=20, n_epochs=60, random_state=0, averaging=0.99, optimizer="adam",
    objective="tempering", n_chains=30, n_replicas=3, early_stopping=True, patience=60,
    run_dir=sys.argv[1], resume=True, callbacks=[slow]).fit(X)
"""


def test_killed_runs_resume_to_the_same_bits(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    subprocess.run([sys.executable, script, tmp_path / "whole", "fast"], check=True, timeout=300, env=OPTIMISED)
    metrics = tmp_path / "killed" / "metrics.jsonl"
    for n_rows in (5, 15):  # so the first checkpoint holds four rows at least
        process = subprocess.Popen([sys.executable, script, metrics.parent, "slow"], env=OPTIMISED)
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if metrics.exists() and metrics.read_text().count("\n") >= n_rows:
                break
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if n_rows == 5:
            before = [json.loads(line) for line in metrics.read_text().splitlines()[:4]]
        assert n_rows <= metrics.read_text().count("\n") < 60  # killed on its way
    subprocess.run([sys.executable, script, metrics.parent, "fast"], check=True, timeout=300, env=OPTIMISED)
    after = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert after[:4] == before  # with its seconds: the first run was gone on with
    whole, resumed = (tmp_path / name / "model.safetensors" for name in ("whole", "killed"))
    from safetensors.numpy import load_file

    expected, found = load_file(whole), load_file(resumed)
    assert set(expected) == set(found)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


MESH = """
import os, sys
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={sys.argv[1]}"
import jax, numpy as np
assert len(jax.devices()) == int(sys.argv[1])
from latentia import RBM
X = (np.random.default_rng(0).random((400, 12)) < 0.4).astype(float)
rbm = RBM(n_components=7, batch_size=40, n_epochs=3, random_state=0, n_chains=80, k=2, binarize="sample")
rbm.fit(X, sample_weight=1 + X[:, 0])
chains = rbm._state.objective.chains.x
print(len(chains.sharding.device_set), chains.sharding.is_fully_replicated)
rbm.save(sys.argv[2])
"""


def test_four_devices_give_the_result_of_one(tmp_path):
    from safetensors.numpy import load_file

    printed, models = {}, {}
    for n in ("1", "4"):
        path = tmp_path / f"{n}.safetensors"
        done = subprocess.run(
            [sys.executable, "-c", MESH, n, path], check=True, timeout=300, capture_output=True, text=True
        )
        printed[n], models[n] = done.stdout.split(), load_file(path)
    assert printed == {"1": ["1", "True"], "4": ["4", "False"]}  # the chains really were split
    for name in models["1"]:
        np.testing.assert_allclose(models["4"][name], models["1"][name], rtol=2e-4, atol=2e-5, err_msg=name)


def test_memory_maps_are_streamed_and_give_the_result_of_an_array(X, tmp_path):
    path = tmp_path / "X.npy"
    np.save(path, X.astype(np.float64))
    mapped = np.load(path, mmap_mode="r")
    assert is_mapped(mapped)
    assert not is_mapped(mapped[10:])  # a slice does not know where it starts
    np.testing.assert_array_equal(read_rows(mapped, np.array([[5, 1], [7, 5]])), X[[[5, 1], [7, 5]]])
    weights_ = np.linspace(0.5, 1.5, len(X))
    streamed = RBM(**SMALL).fit(mapped, sample_weight=weights_)
    np.testing.assert_allclose(
        weights(streamed), weights(RBM(**SMALL).fit(X, sample_weight=weights_)), rtol=1e-5, atol=1e-6
    )


def test_chains_are_as_many_as_asked_for_and_persist(X):
    rbm = RBM(**SMALL, n_chains=33)
    rbm.partial_fit(X)
    first = np.asarray(rbm._state.objective.chains.x)
    assert first.shape == (33, 8)
    rbm.partial_fit(X)
    assert not np.array_equal(first, rbm._state.objective.chains.x)
    assert np.asarray(RBM(**SMALL).fit(X)._state.objective.chains.x).shape == (20, 8)


def test_sample_weights_of_zero_remove_rows(X):
    """Rows of weight zero change nothing but the order of the others, so compare the learned marginals."""
    noise = np.ones((100, 8))
    both = np.concatenate([X, noise])
    weight = np.concatenate([np.ones(len(X)), np.zeros(len(noise))])
    fit = {**SMALL, "n_epochs": 60, "learning_rate": 0.1, "centring": 0.05}
    with_weights = RBM(**fit).fit(both, sample_weight=weight)
    unweighted = RBM(**fit).fit(both)
    offset = np.asarray(with_weights.model_.visible_offset)
    np.testing.assert_allclose(offset, X.mean(0), atol=0.12)
    assert np.abs(np.asarray(unweighted.model_.visible_offset) - X.mean(0)).max() > 0.15


def test_full_disk_keeps_what_was_saved(X, tmp_path, monkeypatch):
    import errno
    import os

    rbm = RBM(**SMALL).fit(X)
    path = tmp_path / "model.safetensors"
    rbm.save(path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"disk is full.*untouched"):
        rbm.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]  # no half-written file is left


def test_binarising_anew_uses_new_bits_every_step():
    import jax

    from latentia.core.space import Space
    from latentia.estimator.training import Encode

    encode = Encode(Space("binary", (6,)), sample=True)
    rows = jnp.full((4000, 6), 0.3)
    one, two = (np.asarray(encode(rows, key=jax.random.key(seed))) for seed in (0, 1))
    assert set(np.unique(one)) == {0, 1}
    assert not np.array_equal(one, two)
    np.testing.assert_allclose(one.mean(0), 0.3, atol=5 * np.sqrt(0.21 / 4000))


def test_a_folder_that_is_a_file_is_refused(X, tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RunFolderError, match="is a file"):
        RBM(**SMALL, run_dir=tmp_path / "run").fit(X)
    assert Path(tmp_path / "run").read_text() == "mine"


def test_pseudo_likelihood_is_followed_where_it_is_cheap(X):
    rbm = RBM(**{**SMALL, "n_epochs": 40}).fit(X)
    rows = X[np.linspace(0, len(X) - 1, 64).astype(int)]
    assert rbm.history_[-1]["pseudo_likelihood"] == pytest.approx(np.mean(_pseudo(rbm, rows)), rel=1e-4)
    assert rbm.history_[-1]["pseudo_likelihood"] > rbm.history_[0]["pseudo_likelihood"] + 0.3
    assert "pseudo_likelihood" not in RBM(**SMALL, monitor=None).fit(X).history_[-1]
    assert "reconstruction_error" in GaussianRBM(**SMALL).fit(X).history_[-1]
