"""What is compiled without a search for kernels, and what with one."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latentia import RBM
from latentia.learning import compiled, fit
from latentia.ops.compiling import briefly, untuned


def test_the_compiler_knows_the_options():
    assert untuned("cpu") == {}
    double = jax.jit(lambda x: 2 * x, **untuned("gpu"))
    np.testing.assert_array_equal(double(jnp.arange(3)), [0, 2, 4])
    with pytest.raises(Exception, match="xla_gpu_autotune"):
        jax.jit(lambda x: x, compiler_options={"xla_gpu_autotune_levels": 0})(jnp.ones(2))


def test_a_function_is_compiled_once_and_keeps_its_name():
    traced = []

    @briefly
    def twice(x, *, times):
        """Docstring."""
        traced.append(times)
        return times * x

    assert [float(twice(jnp.asarray(v), times=2)) for v in (1.0, 3.0)] == [2, 6]
    assert traced == [2]
    assert (twice.__name__, twice.__doc__) == ("twice", "Docstring.")


@pytest.mark.parametrize("long_run", [1, 10**9])
def test_long_runs_are_tuned_and_short_ones_are_not(monkeypatch, long_run):
    asked = []
    monkeypatch.setattr(fit, "LONG_RUN", long_run)
    monkeypatch.setattr(compiled, "untuned", lambda backend: asked.append(backend) or {})
    X = np.random.default_rng(0).integers(0, 2, (40, 5))
    compiled.forget()
    RBM(n_components=3, n_epochs=1, batch_size=20, monitor=None, random_state=0).fit(X)
    assert asked == ([] if long_run == 1 else ["cpu"])


def test_importing_starts_no_backend():
    code = (
        "import latentia.estimator.rows, latentia.learning.fit, latentia.ops.descent\n"
        "from jax._src import xla_bridge\n"
        "print(len(xla_bridge._backends))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "0"
