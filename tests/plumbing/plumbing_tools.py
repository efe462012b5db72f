"""What tests of the plumbing share: runs that are interrupted again and again, and the keys that a step uses."""

from __future__ import annotations

import contextlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from latentia.core import parameters

#: Functions of ``jax.random`` that use up a key.
DRAWS = (
    "bernoulli",
    "bits",
    "categorical",
    "choice",
    "exponential",
    "gumbel",
    "laplace",
    "logistic",
    "normal",
    "permutation",
    "rademacher",
    "randint",
    "truncated_normal",
    "uniform",
)


class Interrupting:
    """A display, and a callback, at which the user gives up after every chunk."""

    def start(self, n_steps, done): ...
    def compiling(self): ...
    def say(self, message): ...
    def stop(self): ...

    def update(self, done, metrics):
        raise KeyboardInterrupt

    def __call__(self, event):
        raise KeyboardInterrupt


def through_interruptions(go_on, most: int = 60) -> int:
    """Call ``go_on(resume)`` until it is no longer interrupted; how often it was."""
    for turn in range(most):
        with contextlib.suppress(KeyboardInterrupt):
            go_on(turn > 0)
            return turn
    raise AssertionError(f"Still not finished after {most} interruptions.")


def without_seconds(history) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


def bits(tree) -> list[bytes]:
    """All arrays of a tree, keys as their words."""
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def moved(model, seed: int):
    """The model with every parameter moved, so that no bias is trivial."""
    rng = np.random.default_rng(seed)

    def one(leaf, role):
        learns = role in (parameters.WEIGHT, parameters.BIAS) and eqx.is_inexact_array(leaf)
        return leaf + jnp.asarray(0.6 * rng.normal(size=leaf.shape), leaf.dtype) if learns else leaf

    return jax.tree.map(one, model, parameters.roles(model))


@contextlib.contextmanager
def keys_used(monkeypatch):
    """The words of every key that something is drawn with inside, in compiled and mapped functions too.

    What was traced before is not seen: trace anew inside, with a function of one's own.
    """
    used: list[bytes] = []

    def spying(real):
        def draw(key, *arguments, **options):
            jax.debug.callback(lambda words: used.append(np.asarray(words).tobytes()), jax.random.key_data(key))
            return real(key, *arguments, **options)

        return draw

    with monkeypatch.context() as patch:
        for name in DRAWS:
            patch.setattr(jax.random, name, spying(getattr(jax.random, name)))
        yield used
        jax.effects_barrier()
