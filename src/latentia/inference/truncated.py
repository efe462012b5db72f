"""Truncated posteriors: p(z | x) cut down to the best states that a search finds.

For a set 𝒦 of binary states, q(z) = p(x, z)/Σ_{s ∈ 𝒦} p(x, s) on 𝒦 is the best distribution that lives there, and
its free energy is F = log Σ_{s ∈ 𝒦} p(x, s) ≤ log p(x): it grows with every state that enters, and with all states
it is log p(x). The sets evolve: a round looks at every state that differs from a kept one in a single site, and the
best of both generations are kept, so no round lowers F. Unlike mean field, q keeps correlations between the sites.

References: Lücke and Eggert (2010), *Expectation truncation and the benefits of preselection*; Guiraud, Drefs and
Lücke (2018), *Evolutionary expectation maximization*.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from latentia.core.algorithms import AbstractInference
from latentia.core.capabilities import BinarySites, ClampsToSites
from latentia.core.errors import ParameterError
from latentia.core.model import AbstractModel
from latentia.inference.states import Truncated

States = Float[Array, "s k"]


class TruncatedInference(AbstractInference):
    """The posterior over the best states of a search.

    Args:
        n_states: how many are kept for every example (all, where there are fewer).
        n_rounds: generations of single flips.
        n_mean_field: rounds of mean field that find the first state.
    """

    n_states: int = eqx.field(static=True, default=32)
    n_rounds: int = eqx.field(static=True, default=2)
    n_mean_field: int = eqx.field(static=True, default=10)

    def __check_init__(self) -> None:
        if self.n_states < 1 or self.n_rounds < 0 or self.n_mean_field < 0:
            raise ParameterError(
                "Truncated inference needs n_states of at least 1 and n_rounds and n_mean_field of at least 0, got "
                f"{self.n_states}, {self.n_rounds} and {self.n_mean_field}."
            )

    @property
    def requires(self) -> tuple[type[AbstractModel], ...]:
        """``ClampsToSites``."""
        return (ClampsToSites,)

    @property
    def goes_on(self) -> bool:
        """Kept states are as good as where they came from."""
        return True

    def infer(self, model: ClampsToSites, x: Any, *, key: PRNGKeyArray | None = None) -> Truncated:
        """Generations from the states around mean field; nothing here is random."""
        del key
        clamped = model.clamped(x)
        return self._evolved(clamped, self._first(clamped))

    def begun(self, model: ClampsToSites, x: Any, *, key: PRNGKeyArray | None = None) -> Truncated:
        """The states around mean field."""
        del key
        clamped = model.clamped(x)
        return posterior_on(clamped, self._first(clamped))

    def improved(self, model: ClampsToSites, x: Any, q: Truncated, *, key: PRNGKeyArray | None = None) -> Truncated:
        """Generations from the states that were kept."""
        del key
        return self._evolved(model.clamped(x), q.states)

    def _first(self, clamped: BinarySites) -> States:
        """Mean field rounded, and what flipping the most uncertain sites makes of it: all of it different."""
        q: Any = clamped.guess()
        q = jax.lax.fori_loop(0, self.n_mean_field, lambda _, q: clamped.refine(q), q)
        mean = q.mean()
        k = mean.shape[0]
        n_states = min(self.n_states, 2**k) if k < 30 else self.n_states
        n_flips = min(k, int(np.ceil(np.log2(max(n_states, 2)))))
        uncertain = jnp.argsort(jnp.abs(mean - 0.5))[:n_flips]
        codes = (np.arange(n_states)[:, None] >> np.arange(n_flips)[None, :]) & 1
        flips = jnp.zeros((n_states, k), mean.dtype).at[:, uncertain].set(jnp.asarray(codes, mean.dtype))
        rounded = (mean > 0.5).astype(mean.dtype)
        return jnp.abs(rounded[None, :] - flips)

    def _evolved(self, clamped: BinarySites, states: States) -> Truncated:
        words = _words(states.shape[1])
        step = lambda _, states: _generation(clamped, states, words)  # noqa: E731
        return posterior_on(clamped, jax.lax.fori_loop(0, self.n_rounds, step, states))


def posterior_on(clamped: Any, states: States) -> Truncated:
    """The model's posterior on some states, which are all different."""
    energies = jax.vmap(lambda z: clamped.energy((), z))(states)
    return Truncated(states, jax.nn.log_softmax(-energies))


def _generation(clamped: Any, states: States, words: UInt32[Array, " k"]) -> States:
    """The best of the states and of all that differ from one of them in one site."""
    n, k = states.shape
    signs = 1 - 2 * states  # what a flip adds to a site
    energies = jax.vmap(lambda z: clamped.energy((), z))(states)
    flipped = energies[:, None] - signs * jax.vmap(clamped.site_log_odds)(states)
    # Two different states have one hash so rarely that leaving one of them out does not matter.
    hashes = jnp.sum(jnp.where(states > 0.5, words[None, :], jnp.uint32(0)), axis=1, dtype=jnp.uint32)
    children = hashes[:, None] + jnp.where(states > 0.5, -words[None, :], words[None, :])
    known = jnp.any(children.reshape(-1)[:, None] == hashes[None, :], axis=1)
    low, index = jax.lax.top_k(jnp.where(known, -jnp.inf, -flipped.reshape(-1)), min(2 * n, n * k))
    born = children.reshape(-1)[index]
    order = jnp.arange(born.shape[0])
    twice = (born[:, None] == born[None, :]) & (order[None, :] < order[:, None])  # from several parents
    low = jnp.where(jnp.any(twice, axis=1), -jnp.inf, low)
    chosen = jax.lax.top_k(jnp.concatenate([-energies, low]), n)[1]
    parent, site = index // k, index % k
    flips = jnp.arange(k, dtype=site.dtype)[None, :] == site[:, None]
    return jnp.concatenate([states, jnp.where(flips, 1 - states[parent], states[parent])])[chosen]


def _words(k: int) -> UInt32[Array, " k"]:
    """A random odd number for every site: the hash of a state is the sum over its sites that are 1."""
    return jnp.asarray(np.random.default_rng(0).integers(0, 2**32, k, dtype=np.uint32) | 1)
