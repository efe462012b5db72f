"""The family of CONTRIBUTING.md, taken from the page: it must do all that the page promises."""

from __future__ import annotations

import ast
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from scipy.special import logsumexp

import latentia
from latentia import registry
from latentia.core.space import enumerate_states
from latentia.datasets import bars_log_prob, load

from .pages import ROOT, code_blocks

BLOCKS = code_blocks(ROOT / "CONTRIBUTING.md", "python")


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """Write the file, add the line, and undo both when the tests are done."""
    module, line = (block.code for block in BLOCKS)
    folder = tmp_path_factory.mktemp("family")
    (folder / "bernoulli_mixture.py").write_text(module)
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    entry = eval(
        line.replace("latentia.models.bernoulli_mixture", "bernoulli_mixture"), {"Family": registry.Family}
    )
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, entry))
    yield entry
    monkeypatch.undo()
    sys.modules.pop("bernoulli_mixture", None)


@pytest.fixture(scope="module")
def fitted(family):
    bars = load("bars", size=3, n=600, n_test=200)
    estimator = latentia.BernoulliMixture(n_components=6, n_epochs=60, random_state=0)
    return estimator.fit(bars.X), bars


def test_it_is_short():
    module = BLOCKS[0].code
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = [
        node.body[0]
        for node in ast.walk(ast.parse(module))
        if isinstance(node, documented) and ast.get_docstring(node)
    ]
    docstrings = {line for text in texts for line in range(text.lineno, (text.end_lineno or 0) + 1)}
    code = [line for line, text in enumerate(module.splitlines(), 1) if text.strip() and line not in docstrings]
    assert len(code) < 80


def test_its_likelihood_is_exact(fitted):
    mixture, _ = fitted
    every = enumerate_states(mixture.model_.x_space)
    assert mixture.log_z().is_exact
    assert logsumexp(mixture.score_samples(every)) == pytest.approx(0, abs=1e-5)
    # F(x) = −log Σ_z exp(−E(x, z)), by hand.
    codes = jnp.eye(6)[:, None, :]
    energies = jax.vmap(lambda x: jax.vmap(lambda z: mixture.model_.energy(x, z))(codes))(jnp.asarray(every))
    np.testing.assert_allclose(mixture.free_energy(every), -logsumexp(-np.asarray(energies), axis=1), atol=1e-5)
    # E(x, z) + log q(z | x) = F(x) at every z, and q(z | x) is what transform returns.
    posterior = np.exp(-np.asarray(energies) + mixture.free_energy(every)[:, None])
    np.testing.assert_allclose(mixture.transform(every), posterior, atol=1e-5)


def test_it_learns(fitted):
    mixture, bars = fitted
    gains = np.diff([row["log_likelihood"] for row in mixture.history_])
    assert (gains > -1e-4).all()
    independent = latentia.BernoulliMixture(n_components=1, random_state=0).fit(bars.X).score(bars.X_test)
    truth = bars_log_prob(bars.X_test, size=3).mean()
    assert independent + 0.3 < mixture.score(bars.X_test) < truth + 0.1
    assert mixture.log_likelihood(bars.X_test).estimate == pytest.approx(mixture.score(bars.X_test), abs=1e-4)


def test_it_samples_what_it_scores(fitted):
    mixture, _ = fitted
    every = enumerate_states(mixture.model_.x_space)
    place = 2 ** np.arange(9)[::-1]
    probabilities = np.zeros(512)
    probabilities[(every @ place).astype(int)] = np.exp(mixture.score_samples(every))
    # Exact draws, and the same draws after a sweep: started at the target, it must stay there.
    exact = mixture.sample(4000)
    keys = jax.random.split(jax.random.key(1), 4000)
    move = jax.vmap(lambda x, key: mixture.model_.sweep(x, jnp.zeros((1, 6)), key=key)[0])
    for draws in (exact, np.asarray(move(jnp.asarray(exact), keys))):
        counts = np.bincount((draws @ place).astype(int), minlength=512)
        spread = np.sqrt(probabilities * (1 - probabilities) / 4000)
        assert (np.abs(counts / 4000 - probabilities) <= 5 * spread + 5 / 4000).all()
    known = np.array([[1, 1, 1, *[np.nan] * 6]])
    filled = mixture.sample(20, given=known, n_steps=20)
    assert filled.shape == (20, 9)
    assert (filled[:, :3] == 1).all()


def test_it_is_saved_and_loaded(fitted, tmp_path):
    mixture, bars = fitted
    mixture.save(tmp_path / "mixture.safetensors")
    again = latentia.load(tmp_path / "mixture.safetensors")
    assert type(again) is type(mixture)
    np.testing.assert_array_equal(again.transform(bars.X_test), mixture.transform(bars.X_test))
    np.testing.assert_array_equal(again.reconstruct(bars.X_test), mixture.reconstruct(bars.X_test))


def test_it_is_on_the_command_line(family, tmp_path, monkeypatch):
    from latentia.cli import cli

    monkeypatch.chdir(tmp_path)

    words = ["fit", family.name, "bars", "--n-components", "4", "--n-epochs", "5", "--out", "run", "--json"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["family"] == family.name
    assert (tmp_path / "run" / "model.safetensors").is_file()
