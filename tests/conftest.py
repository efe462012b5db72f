"""Strict arithmetic for every test: no silent promotion of dtypes or ranks; and compiling that is quick."""

import gc
import os
from importlib.metadata import version
from pathlib import Path

import pytest

# Compiled functions are shared between the test processes and between runs: all of them, because most are single
# operations on a few numbers, which take longer to compile than to read.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", os.path.join(os.path.dirname(__file__), "..", ".pytest_cache", "jax")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Tiny models take far longer to compile than to run: do not optimise.
_FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if version("jaxlib").startswith("0.10."):  # later ones do not know the flag, and refuse to start
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(_FLAGS))

import jax  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Tracing makes many objects that live on; looking through them every 700 takes a twentieth of the time.
gc.set_threshold(20_000, 20, 20)

#: Every compiled function keeps some memory mappings, of which Linux allows a process 65,530.
MOST_MAPPINGS = 20_000


@pytest.fixture(autouse=True, scope="module")
def _release_compiled_functions():
    """Forget compiled functions after a module if there are many: a process that runs out of mappings crashes."""
    yield
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_text().count("\n") > MOST_MAPPINGS:
        from latentia.learning import compiled

        compiled.forget()
        jax.clear_caches()
        gc.collect()
