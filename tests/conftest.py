"""Strict arithmetic for every test: no silent promotion of dtypes or ranks."""

import os

# Compiled functions are shared between the test processes and between runs.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", os.path.join(os.path.dirname(__file__), "..", ".pytest_cache", "jax")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
# Tiny models take far longer to compile than to run: do not optimise.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
