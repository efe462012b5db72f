"""Contrastive wake–sleep ("up–down"): fine-tuning of directed layers under an undirected model.

The generative model is x ← h¹ ← … ← h^{L−1} with an undirected model of h^{L−1} (and of more, such as a label) on
top; a recognition model q runs the other way. With everything in a path held fixed, one surrogate has three terms:

    wake    −Σ log p(h^{l−1} | h^l)   on a path that the data climb by q: ∂/∂W = −⟨(s^{l−1} − p^{l−1}) s^lᵀ⟩
    top     mean F(data) − mean F(chains), as in contrastive learning, from where the climb ends
    sleep   −Σ log q(h^l | h^{l−1})   on a path that descends from the chains

The first two descend −E_q[log p(x, h)], so they raise the bound E_q[log p(x, h)] + H(q) on log p(x); the third
brings q closer to the posterior where the model itself puts its mass. Dreams begin where chains have got to that
started at the climb's end, near the data: that is what makes it contrastive (Hinton, Osindero and Teh, 2006, §5 and
appendix B; wake–sleep: Hinton, Dayan, Frey and Neal, 1995).

If the top model has a label y, a fourth term −λ log p(y | ĥ(x)) trains the top model and the recognition model to
discriminate labels besides modelling them (the hybrid objective of Larochelle and Bengio, 2008). ĥ(x) are the means
of h^{L−1} on the way up, and the probability is exact, as in a prediction; λ = 0 leaves the learning generative.
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, PRNGKeyArray

from latentia.core.algorithms import AbstractObjective, Metrics, Need, require
from latentia.core.model import AbstractModel, Scalar
from latentia.core.moved import renamed
from latentia.core.sharding import split
from latentia.learning.contrastive import Contrastive, ContrastiveState, cd, pcd
from latentia.ops.arrays import batch_size, weighted_mean

#: The values of the directed layers, bottom first: x, h¹ … h^{L−1}.
Path = tuple[Array, ...]


class UpDown(AbstractModel):
    """Directed layers under an undirected model, and a recognition model that runs the other way."""

    @property
    @abc.abstractmethod
    def summit(self) -> AbstractModel:
        """The undirected model on top; its visibles hold the uppermost directed layer."""

    @abc.abstractmethod
    def climb(self, x: Any, *, key: PRNGKeyArray) -> tuple[Path, Any]:
        """(path, the summit's visibles): the layers drawn one after another by the recognition model."""

    @abc.abstractmethod
    def descend(self, visible: Any, *, key: PRNGKeyArray) -> Path:
        """A path drawn by the generative model from the summit's visibles downwards."""

    @abc.abstractmethod
    def generative_energy(self, path: Path) -> Scalar:
        """−Σ log p(h^{l−1} | h^l) along a path; no parameter of the recognition model is in it."""

    @abc.abstractmethod
    def recognition_energy(self, path: Path) -> Scalar:
        """−Σ log q(h^l | h^{l−1}) along a path; only the recognition model learns from it."""

    @abc.abstractmethod
    def label_energy(self, x: Any) -> Scalar:
        """−log p(label | means of the uppermost directed layer), where x holds a label."""


class UpDownState(eqx.Module):
    """The paths of a step, and the state of the contrastive objective on top."""

    climbed: Path
    reached: Any
    top: ContrastiveState
    dreamt: Path


class ContrastiveWakeSleep(AbstractObjective):
    """Wake, contrast and sleep terms in one surrogate.

    Args:
        top: the objective of the undirected model; the sleep phase starts at its chains.
        discriminative: weight λ of −log p(label | ĥ(x)).
    """

    top: Contrastive = cd(1)
    discriminative: float = eqx.field(static=True, default=0.0)

    @property
    def requires(self) -> tuple[Need, ...]:
        """``UpDown``; the capabilities of the top model are checked when the run begins."""
        return (UpDown,)

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> UpDownState:
        """A pass up, chains at its end, and a pass down."""
        require(self.top, model.summit)
        climb_key, chain_key, dream_key = jax.random.split(key, 3)
        climbed, reached = _climb(model, x, climb_key)
        top = self.top.init(model.summit, reached, key=chain_key)
        return UpDownState(climbed, reached, top, _dream(model, top, dream_key))

    def prepare(
        self, model: Any, x: Any, state: UpDownState, *, key: PRNGKeyArray, weights: Any = None
    ) -> UpDownState:
        """Climb from the data, advance the chains, descend from them."""
        climb_key, chain_key, dream_key = jax.random.split(key, 3)
        climbed, reached = _climb(model, x, climb_key)
        top = self.top.prepare(model.summit, reached, state.top, key=chain_key, weights=weights)
        return UpDownState(climbed, reached, top, _dream(model, top, dream_key))

    def loss(self, model: Any, x: Any, weights: Any, state: UpDownState) -> tuple[Scalar, Metrics]:
        """wake + top + sleep; each of them as a metric."""
        climbed, reached, dreamt = jax.lax.stop_gradient((state.climbed, state.reached, state.dreamt))
        wake = weighted_mean(jax.vmap(model.generative_energy)(climbed), weights)
        # Dreams that began at an example of the batch stand for it; those of chains that persist for nobody.
        sleep = weighted_mean(jax.vmap(model.recognition_energy)(dreamt), None if self.top.persistent else weights)
        top, metrics = self.top.loss(model.summit, reached, weights, state.top)
        metrics = {**metrics, "wake": wake, "sleep": sleep}
        if not self.discriminative:
            return wake + top + sleep, metrics
        label = weighted_mean(jax.vmap(model.label_energy)(x), weights)
        return wake + top + sleep + self.discriminative * label, {**metrics, "label": label}


def _climb(model: UpDown, x: Any, key: PRNGKeyArray) -> tuple[Path, Any]:
    keys = jax.random.split(key, batch_size(x))
    return split(jax.vmap(lambda x, key: model.climb(x, key=key))(x, keys))


def _dream(model: UpDown, top: ContrastiveState, key: PRNGKeyArray) -> Path:
    visible = jax.vmap(top.sampler.visible)(top.chains)
    keys = jax.random.split(key, batch_size(visible))
    return split(jax.vmap(lambda v, key: model.descend(v, key=key))(visible, keys))


@renamed(k="n_sampler_steps")
def up_down(
    n_sampler_steps: int = 1, *, persistent: bool = False, n_chains: int | None = None
) -> ContrastiveWakeSleep:
    """Up–down with Gibbs sweeps in the undirected model, from the climb's end or of chains that persist.

    >>> up_down(10).top.n_steps
    10
    """
    return ContrastiveWakeSleep(pcd(n_sampler_steps, n_chains) if persistent else cd(n_sampler_steps))
