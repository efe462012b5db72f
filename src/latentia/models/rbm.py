"""Restricted Boltzmann machines over any two unit types.

With units' own energies E_v and E_h, statistics s and t, weights W and offsets μ and λ,

    E(x, z) = E_v(x) + E_h(z) − (s(x) − μ)ᵀ W (t(z) − λ).

The offsets *centre* the couplings (Montavon and Müller, 2012; Melchior, Fischer and Wiskott, 2016): they change
the gradient's geometry, not what the model can express, and zero offsets give the textbook form. With
f = Wᵀ(s(x) − μ), all follows from the units' log-partitions Γ:

    F(x) = E_v(x) + λ·f − Γ_h(f),      p(z | x) = units under the field f,      and likewise with x and z exchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.model import (
    Bounded,
    Centred,
    Constrained,
    Decodes,
    ExactPosterior,
    FreeEnergy,
    Initialised,
    LatentFreeEnergy,
    Scalar,
    Settles,
    Tempered,
)
from latentia.core.parameters import buffer, weight
from latentia.core.space import Space
from latentia.estimator import checks
from latentia.estimator.boltzmann import BOLTZMANN_CHECKS, BoltzmannEstimator
from latentia.learning.optimizer import Schedule
from latentia.ops import random
from latentia.ops.arrays import float_type, keep, weighted_mean
from latentia.units import UNITS, AbstractUnits, Factorial
from latentia.units import make as make_units

Value = Float[Array, "*shape"]


class RBMModel(
    FreeEnergy,
    LatentFreeEnergy,
    ExactPosterior,
    Decodes,
    Settles,
    Tempered,
    Centred,
    Constrained,
    Bounded,
    Initialised,
):
    """E(x, z) = E_v(x) + E_h(z) − (s(x) − μ)ᵀ W (t(z) − λ)."""

    visible: AbstractUnits
    hidden: AbstractUnits
    weights: Float[Array, "visible hidden"] = weight()
    visible_offset: Float[Array, " visible"] = buffer()
    hidden_offset: Float[Array, " hidden"] = buffer()

    @classmethod
    def make(
        cls, visible: AbstractUnits, hidden: AbstractUnits, *, key: PRNGKeyArray, weight_scale: float = 0.01
    ) -> Self:
        """Small random weights between two layers, no offsets."""
        shape = (visible.n_statistics, hidden.n_statistics)
        dtype = float_type((visible, hidden))
        weights = weight_scale * jax.random.normal(key, shape, dtype)
        return cls(visible, hidden, weights, jnp.zeros(shape[0], dtype), jnp.zeros(shape[1], dtype))

    @property
    def x_space(self) -> Space:
        """The visible layer."""
        return self.visible.space

    @property
    def z_space(self) -> Space:
        """The hidden layer."""
        return self.hidden.space

    def _hidden_field(self, x: Value) -> Float[Array, " hidden"]:
        return (self.visible.statistic(x) - self.visible_offset) @ self.weights

    def _visible_field(self, z: Value) -> Float[Array, " visible"]:
        return self.weights @ (self.hidden.statistic(z) - self.hidden_offset)

    def energy(self, x: Value, z: Value) -> Scalar:
        """E(x, z)."""
        coupling = self._hidden_field(x) @ (self.hidden.statistic(z) - self.hidden_offset)
        return self.visible.energy(x) + self.hidden.energy(z) - coupling

    def free_energy(self, x: Value) -> Scalar:
        """E_v(x) + λ·f − Γ_h(f), f = Wᵀ(s(x) − μ)."""
        field = self._hidden_field(x)
        return self.visible.energy(x) + self.hidden_offset @ field - self.hidden.log_partition(field)

    def latent_free_energy(self, z: Value) -> Scalar:
        """E_h(z) + μ·f − Γ_v(f), f = W(t(z) − λ)."""
        field = self._visible_field(z)
        return self.hidden.energy(z) + self.visible_offset @ field - self.visible.log_partition(field)

    def posterior(self, x: Value) -> Factorial:
        """p(z | x): the hidden units are independent."""
        return Factorial(self.hidden, self._hidden_field(x))

    def decode(self, z: Value) -> Value:
        """E[x | z]."""
        return self.visible.mean(self._visible_field(z))

    def begin(self, x: Value, *, key: PRNGKeyArray) -> Value:
        """A placeholder: a sweep draws the latents first."""
        del key
        return jnp.zeros(self.z_space.shape, jax.tree.leaves(x)[0].dtype)  # x may be several layers joined

    def sweep(self, x: Value, z: Value, *, key: PRNGKeyArray, fixed: Any = None) -> tuple[Value, Value]:
        """z | x, then x | z."""
        del z
        hidden_key, visible_key = jax.random.split(key)
        z = self.hidden.sample(self._hidden_field(x), key=hidden_key)
        return keep(fixed, x, self.visible.sample(self._visible_field(z), key=visible_key)), z

    def settled_energy(self, x: Value, z: Value) -> Scalar:
        """The latents' free energy: a sweep draws x last."""
        del x
        return self.latent_free_energy(z)

    def base(self, x: Any = None) -> Self:
        """W = 0; visible marginals fitted to the batch if there is one."""
        visible = self.visible if x is None else self.visible.fitted(x)
        return eqx.tree_at(lambda m: (m.visible, m.weights), self, (visible, jnp.zeros_like(self.weights)))

    def base_log_z(self) -> Scalar:
        """Γ_v(0) + Γ_h(0)."""
        return self.visible.log_partition(jnp.zeros_like(self.visible_offset)) + self.hidden.log_partition(
            jnp.zeros_like(self.hidden_offset)
        )

    def reduced_energy(self, x: Value, z: Value) -> Scalar:
        """F(x): a sweep draws z first."""
        del z
        return self.free_energy(x)

    def centres(self, x: Any, weights: Any) -> tuple[Array, Array]:
        """Means of s(x) and of E[t(z) | x] over the batch."""
        visible = jax.vmap(self.visible.statistic)(x)
        hidden = jax.vmap(lambda x: self.hidden.mean_statistic(self._hidden_field(x)))(x)
        return weighted_mean(visible, weights), weighted_mean(hidden, weights)

    def recentred(self, centres: tuple[Array, Array], rate: Any) -> Self:
        """Offsets move towards the centres; the biases take up what that changes."""
        visible_move = rate * (centres[0] - self.visible_offset)
        hidden_move = rate * (centres[1] - self.hidden_offset)
        return type(self)(
            self.visible.biased(self.weights @ hidden_move),
            self.hidden.biased(visible_move @ self.weights),
            self.weights,
            self.visible_offset + visible_move,
            self.hidden_offset + hidden_move,
        )

    def project(self) -> Self:
        """Scales inside their range."""
        return eqx.tree_at(
            lambda m: (m.visible, m.hidden), self, (self.visible.projected(), self.hidden.projected())
        )

    def margin(self) -> Scalar:
        """1 − ‖A‖₂ for two unbounded layers, A = diag(1/σ_v) W diag(1/σ_h); always 1 otherwise.

        In units of the layers' own standard deviations the energy is ½‖u‖² + ½‖w‖² − uᵀAw, which is
        positive definite exactly when ‖A‖₂ < 1. Between two non-negative layers only positive entries of A
        can break it.
        """
        if not (self.visible.unbounded and self.hidden.unbounded):
            return jnp.ones((), self.weights.dtype)
        scaled = self.visible.stiffness()[:, None] * self.weights * self.hidden.stiffness()[None, :]
        if self.x_space.domain == self.z_space.domain == "nonnegative":
            scaled = jnp.maximum(scaled, 0.0)
        return 1 - jnp.linalg.norm(scaled, ord=2)

    def margin_message(self) -> str:
        """Why two unbounded layers may have no normaliser."""
        return (
            f"{type(self.visible).__name__} visible with {type(self.hidden).__name__} hidden units are both "
            "unbounded: their energy has a finite normaliser only while the largest singular value of "
            "diag(1/σ_v) W diag(1/σ_h) is below 1. "
            "Use bounded hidden units (hidden='bernoulli'), or a lower learning_rate and more weight_decay."
        )

    def initialise(self, x: Any, *, key: PRNGKeyArray) -> Self:
        """Visible scale and biases from the data; offsets at the data's means."""
        del key
        visible = self.visible.standardised(x).fitted(x)
        model = eqx.tree_at(lambda m: m.visible, self, visible)
        return model.recentred(model.centres(x, None), 1.0)


class RBM(BoltzmannEstimator):
    """Restricted Boltzmann machine over any pair of unit types.

    Args:
        n_components: number of hidden units.
        visible: type of the visible units: "bernoulli" ({0, 1}), "spin" ({−1, +1}), "categorical" (integers),
            "gaussian" (real), "rectified" (non-negative).
        hidden: type of the hidden units, from the same list.
        n_states: states of a categorical visible site; the largest value in the data plus one if None.
        n_hidden_states: states of a categorical hidden unit.
        binarize: what to do with data in [0, 1] for Bernoulli visibles: None refuses them, "sample" throws
            each pixel as a coin anew at every training step, "threshold" cuts at ½.
        objective: "cd", "pcd", "tempering", or an objective object.
        k: sampler steps per update.
        n_chains: persistent chains; as many as the batch has rows if None.
        n_replicas: temperatures of "tempering".
        n_epochs: passes over the data.
        batch_size: rows per update.
        learning_rate: step size at the start.
        schedule: "constant", or falling to zero: "linear", "cosine", "warmup" (after a rise).
        optimizer: "sgd", "nesterov", "adam", "rmsprop", or an Optax transformation.
        momentum: decay of past gradients.
        weight_decay: shrinkage of the weights per unit of learning rate.
        clip: largest norm of the gradient; 0 does not clip.
        averaging: decay of a running average of the parameters that becomes the final model; 0 for none.
        centring: how fast the centring offsets follow the data's means; 0 turns centring off.
        weight_scale: standard deviation of the initial weights.
        early_stopping: stop when the score of held-out rows no longer rises.
        validation_fraction: rows held out for that.
        patience: epochs without a better score before stopping.
        monitor: the pseudo-likelihood over all sites (squared error of the reconstructions for real
            data) of a few training rows as a metric: "auto" follows it after every epoch where that is cheap
            and the squared error otherwise, "always" in any case, None follows nothing and notices no collapse.
        run_dir: folder for config, metrics, checkpoints and model; None writes nothing.
        resume: go on from the folder's checkpoint.
        callbacks: functions called with a ``latentia.learning.fit.Event`` now and then; True stops.
        random_state: seed.
        verbose: 0 is silent, 1 shows progress, 2 also prints every row of metrics.

    Example:
        >>> import numpy as np
        >>> from latentia import RBM
        >>> X = np.random.default_rng(0).integers(0, 2, (64, 6))
        >>> rbm = RBM(n_components=3, n_epochs=2, batch_size=16, random_state=0).fit(X)
        >>> rbm.transform(X).shape
        (64, 3)

    References:
        Smolensky (1986); Hinton (2002); Tieleman (2008); Melchior, Fischer and Wiskott (2016).
    """

    family = "rbm"
    parameter_checks: ClassVar[Mapping[str, checks.Check]] = {
        **BOLTZMANN_CHECKS,
        "n_components": checks.integer(1),
        "hidden": checks.one_of(*UNITS),
        "n_hidden_states": checks.integer(2),
    }

    def __init__(
        self,
        n_components: int = 256,
        *,
        visible: str = "bernoulli",
        hidden: str = "bernoulli",
        n_states: int | None = None,
        n_hidden_states: int = 3,
        binarize: str | None = None,
        objective: Any = "pcd",
        k: int = 1,
        n_chains: int | None = None,
        n_replicas: int = 10,
        n_epochs: int = 20,
        batch_size: int = 100,
        learning_rate: float = 0.1,
        schedule: Schedule = "linear",
        optimizer: Any = "sgd",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        clip: float = 0.0,
        averaging: float = 0.0,
        centring: float = 0.01,
        weight_scale: float = 0.01,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 5,
        monitor: str | None = "auto",
        run_dir: Any = None,
        resume: bool = False,
        callbacks: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.n_components = n_components
        self.visible = visible
        self.hidden = hidden
        self.n_states = n_states
        self.n_hidden_states = n_hidden_states
        self.binarize = binarize
        self.objective = objective
        self.k = k
        self.n_chains = n_chains
        self.n_replicas = n_replicas
        self.n_epochs = n_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.optimizer = optimizer
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.clip = clip
        self.averaging = averaging
        self.centring = centring
        self.weight_scale = weight_scale
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.monitor = monitor
        self.run_dir = run_dir
        self.resume = resume
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> RBMModel:
        """Small random weights between the two layers."""
        visible = make_units(self.visible, blueprint["n_features"], blueprint.get("n_states"))
        hidden = make_units(self.hidden, self.n_components, self.n_hidden_states)
        return RBMModel.make(visible, hidden, key=random.key(seed), weight_scale=self.weight_scale)
