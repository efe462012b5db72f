"""Deep energy models: a Gaussian, reshaped by experts on top of a network (Ngiam, Chen, Koh and Ng, 2011).

    F(x) = ‖x‖²/2σ² − bᵀx − Σ_k S(w_kᵀ g(x) + c_k),      S(u) = log(1 + exp(u)),

with g a network of smooth layers. Each expert is a binary latent summed out of

    E(x, z) = ‖x‖²/2σ² − bᵀx − zᵀ(W g(x) + c),      p(z_k = 1 | x) = σ(w_kᵀ g(x) + c_k).

With no layer below the experts, g(x) = x, it is a Gaussian restricted Boltzmann machine whose weights are σ²W. The
general form, F(x) = ‖x‖²/2σ² − bᵀx − H(x), takes any function H that grows more slowly than ‖x‖².
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.capabilities import ExactPosterior, FreeEnergy, Initialised, Projected, Projections, Starts
from latentia.core.errors import FileFormatError, ParameterError
from latentia.core.model import Scalar
from latentia.core.parameters import bias, scale, weight
from latentia.core.space import Space
from latentia.estimator import checks
from latentia.estimator.declared import changed, param
from latentia.estimator.energy import UnnormalisedEstimator
from latentia.estimator.groups import Layers
from latentia.likelihood.precision import batch_to_double, double, to_double
from latentia.ops import random
from latentia.ops.compiling import jitted
from latentia.ops.descent import minimise
from latentia.ops.examples import Examples
from latentia.ops.logistic import softplus
from latentia.units import Bernoulli, Factorial

Value = Float[Array, " d"]
Activation = Literal["sigmoid", "tanh", "softplus", "silu"]

#: All smooth: score matching reads second derivatives, of which a rectifier's kinks hide a part.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "softplus": softplus,
    "silu": jax.nn.silu,
}


class Well(eqx.Module):
    """‖x‖²/2σ² − bᵀx, the Gaussian that keeps the energy normalisable.

    Args:
        bias: b.
        log_sigma: log σ.
        learned: whether gradients reach σ.
    """

    bias: Value = bias()
    log_sigma: Scalar = scale()
    learned: bool = eqx.field(static=True, default=False)

    @classmethod
    def make(cls, n: int, sigma: float, *, learned: bool = False) -> Self:
        """Centred at zero."""
        return cls(jnp.zeros(n), jnp.asarray(np.log(sigma), jnp.result_type(float)), learned)

    def variance(self) -> Scalar:
        """σ²."""
        log_sigma = self.log_sigma if self.learned else jax.lax.stop_gradient(self.log_sigma)
        return jnp.exp(2 * log_sigma)

    def energy(self, x: Value) -> Scalar:
        """‖x‖²/2σ² − bᵀx."""
        return (x @ x) / (2 * self.variance()) - self.bias @ x

    def sample(self, *, key: PRNGKeyArray) -> Value:
        """A draw of N(σ²b, σ²I)."""
        noise = jax.random.normal(key, self.bias.shape, self.bias.dtype)
        return self.variance() * self.bias + jnp.exp(self.log_sigma) * noise

    def centred(self, x: Float[Array, "n d"]) -> Self:
        """With its minimum σ²b at the mean of a batch."""
        return eqx.tree_at(lambda w: w.bias, self, jnp.mean(x, axis=0) / self.variance())


class Layer(eqx.Module):
    """x ↦ s(Vx + d)."""

    weights: Float[Array, "units inputs"] = weight()
    bias: Float[Array, " units"] = bias()
    activation: Activation = eqx.field(static=True, default="sigmoid")

    def __call__(self, x: Value) -> Float[Array, " units"]:
        """The layer's activities."""
        return self.activity(self.weights @ x)

    def activity(self, u: Float[Array, " units"]) -> Float[Array, " units"]:
        """s(u + d)."""
        return ACTIVATIONS[self.activation](u + self.bias)


class DeepEnergy(Projected, ExactPosterior, Initialised, Starts):
    """F(x) = ‖x‖²/2σ² − bᵀx − Σ_k S(w_kᵀ g(x) + c_k)."""

    well: Well
    layers: tuple[Layer, ...]
    experts: Bernoulli
    weights: Float[Array, "experts features"] = weight()

    @classmethod
    def make(
        cls,
        n: int,
        hidden: tuple[int, ...],
        *,
        key: PRNGKeyArray,
        sigma: float = 1.0,
        learn_sigma: bool = False,
        activation: Activation = "sigmoid",
    ) -> Self:
        """Layers of the given sizes, the last of them the experts, with random weights."""
        sizes = (n, *hidden)
        matrices = _matrices(key, sizes)
        layers = tuple(Layer(m, jnp.zeros(m.shape[0]), activation) for m in matrices[:-1])
        return cls(Well.make(n, sigma, learned=learn_sigma), layers, Bernoulli.make(hidden[-1]), matrices[-1])

    @property
    def x_space(self) -> Space:
        """ℝᴰ."""
        return Space("real", self.well.bias.shape)

    @property
    def z_space(self) -> Space:
        """One binary latent for each expert."""
        return self.experts.space

    def features(self, x: Value) -> Float[Array, " features"]:
        """g(x)."""
        for layer in self.layers:
            x = layer(x)
        return x

    def _field(self, x: Value) -> Float[Array, " experts"]:
        return self.weights @ self.features(x)

    def energy(self, x: Value, z: Value) -> Scalar:
        """‖x‖²/2σ² − bᵀx − zᵀ(W g(x) + c)."""
        return self.well.energy(x) + self.experts.energy(z) - z @ self._field(x)

    def free_energy(self, x: Value) -> Scalar:
        """‖x‖²/2σ² − bᵀx − Σ_k S(w_kᵀ g(x) + c_k)."""
        return self.well.energy(x) - self.experts.log_partition(self._field(x))

    def projections(self) -> Projections:
        """1/σ², b and the weights of the lowest layer."""
        matrix = self.layers[0].weights if self.layers else self.weights
        return Projections(1 / self.well.variance(), self.well.bias, matrix)

    def potential(self, u: Float[Array, " units"]) -> Scalar:
        """−Σ_k S(·) of what the lowest layer receives."""
        if not self.layers:
            return -self.experts.log_partition(u)
        features = self.layers[0].activity(u)
        for layer in self.layers[1:]:
            features = layer(features)
        return -self.experts.log_partition(self.weights @ features)

    def posterior(self, x: Value) -> Factorial:
        """p(z | x): the experts are independent."""
        return Factorial(self.experts, self._field(x))

    def start(self, *, key: PRNGKeyArray) -> Value:
        """A draw of the Gaussian alone."""
        return self.well.sample(key=key)

    def initialise(self, x: Float[Array, "n d"], *, key: PRNGKeyArray) -> Self:
        """The well centred at the data's mean; the lowest weights' sums centred there too, with unit variance."""
        del key
        mean, total = jnp.mean(x, axis=0), jnp.sum(jnp.var(x, axis=0))
        n = x.shape[1]
        shrink = (n / jnp.where(total > 0, total, float(n))) ** 0.5  # the fresh weights expect unit variances
        model = eqx.tree_at(lambda m: m.well, self, self.well.centred(x))
        if not self.layers:
            weights = self.weights * shrink
            return eqx.tree_at(lambda m: (m.weights, m.experts.bias), model, (weights, -weights @ mean))
        weights = self.layers[0].weights * shrink
        lowest = lambda m: (m.layers[0].weights, m.layers[0].bias)  # noqa: E731
        return eqx.tree_at(lowest, model, (weights, -weights @ mean))


class GeneralEnergy(FreeEnergy, Initialised, Starts):
    """F(x) = ‖x‖²/2σ² − bᵀx − H(x) with any Equinox module H, or minus the free energy of another model."""

    well: Well
    arrays: Any
    rest: Any = eqx.field(static=True)  # activation functions and the like: training uses only arrays

    @classmethod
    def make(cls, well: Well, module: Any) -> Self:
        """The module's arrays apart from what else it holds."""
        return cls(well, *eqx.partition(module, eqx.is_array))

    @property
    def module(self) -> Any:
        """H as it was given, with the arrays as they are now."""
        return eqx.combine(self.arrays, self.rest)

    @property
    def x_space(self) -> Space:
        """ℝᴰ."""
        return Space("real", self.well.bias.shape)

    @property
    def z_space(self) -> tuple[()]:
        """No latents."""
        return ()

    def energy(self, x: Value, z: tuple[()]) -> Scalar:
        """F(x)."""
        del z
        return self.free_energy(x)

    def free_energy(self, x: Value) -> Scalar:
        """‖x‖²/2σ² − bᵀx − H(x)."""
        module = self.module
        if isinstance(module, FreeEnergy):
            return self.well.energy(x) + module.free_energy(x)
        return self.well.energy(x) - module(x).reshape(())

    def start(self, *, key: PRNGKeyArray) -> Value:
        """A draw of the Gaussian alone."""
        return self.well.sample(key=key)

    def initialise(self, x: Float[Array, "n d"], *, key: PRNGKeyArray) -> Self:
        """The well centred at the data's mean."""
        del key
        return eqx.tree_at(lambda m: m.well, self, self.well.centred(x))


class DeepEnergyModel(Layers, UnnormalisedEstimator):
    """Energy of a network: ‖x‖²/2σ² − bᵀx − Σ_k S(w_kᵀ g(x) + c_k), learned without sampling.

    Data are *not* standardised inside: σ is in their own units, and says how far from its centre the model may
    wander. Score matching takes the density to be smooth, which pixels that pile up at black or white are not: add
    noise to such data ("dequantise"), or use "denoising_score_matching".

    Example:
        >>> import numpy as np
        >>> from latentia import DeepEnergyModel
        >>> X = np.random.default_rng(0).normal(size=(64, 5))
        >>> model = DeepEnergyModel(hidden=(4, 3), n_epochs=2, batch_size=16, random_state=0).fit(X)
        >>> model.transform(X).shape
        (64, 3)
        >>> model.modes(X[:2]).shape
        (2, 5)

    References:
        Ngiam, Chen, Koh and Ng (2011), *Learning deep energy models*; Hyvärinen (2005); Song, Garg, Shi and Ermon
        (2019), *Sliced score matching*.
    """

    family = "deep-energy"

    sigma: float = param(default=1.0, check=checks.number(0, open_low=True), doc="σ.")
    learn_sigma: bool = param(
        default=False,
        check=checks.flag,
        doc="whether σ is learned too, more slowly than the weights.",
    )
    activation: Activation = param(
        default="sigmoid",
        check=checks.one_of(*get_args(Activation)),
        doc='activation of the layers below the experts: "sigmoid", "tanh", "softplus", "silu".',
    )
    energy: Any = param(
        default=None,
        doc="an Equinox module H: x ↦ a number, or another model with a free energy −H, in place of network and "
        "experts; F = ‖x‖²/2σ² − bᵀx − H(x). H must grow more slowly than ‖x‖²/2σ². Such a model has no "
        "latents and cannot be saved.",
    )

    hidden = changed(
        doc="numbers of units from the data upwards, the last of them the experts: (64, 64) is a layer of 64 "
        "and 64 experts on top, (64,) a Gaussian restricted Boltzmann machine.",
    )

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> DeepEnergy | GeneralEnergy:
        """A network with random weights, or the given module."""
        n = blueprint["n_features"]
        if self.energy is not None:
            return GeneralEnergy.make(Well.make(n, self.sigma, learned=self.learn_sigma), self.energy)
        options = {"sigma": self.sigma, "learn_sigma": self.learn_sigma, "activation": self.activation}
        return DeepEnergy.make(n, tuple(self.hidden), key=random.key(seed), **options)

    def _blueprint(self, X: Examples) -> dict[str, Any]:
        if self.energy is not None:
            self._check_module(X.n_columns)
        return super()._blueprint(X)

    def _check_module(self, n: int) -> None:
        if self.run_dir is not None:
            raise ParameterError(f"run_dir cannot be used with energy=: {_NO_FILE}")
        function = self.energy.free_energy if isinstance(self.energy, FreeEnergy) else self.energy
        if not isinstance(self.energy, eqx.Module) or not callable(function):
            raise ParameterError(
                "energy must be an Equinox module that maps x to a number, or a model with a free energy, got "
                f"{type(self.energy).__name__}."
            )
        try:
            out = eqx.filter_eval_shape(function, jax.ShapeDtypeStruct((n,), jnp.float32))
        except Exception as error:
            raise ParameterError(f"energy cannot be applied to a vector of {n} numbers: {error}") from error
        if getattr(out, "size", 0) != 1:
            raise ParameterError(f"energy must map a vector of {n} numbers to one number, but it returns {out}.")

    def _check_savable(self) -> None:
        """A module of your own is refused."""
        if self.energy is not None:
            raise FileFormatError(f"A model with energy= cannot be saved: {_NO_FILE}")

    def modes(
        self, X: Any, *, max_steps: int = 1000, tol: float = 1e-6, return_path: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The local maxima of p that ascents from the rows of ``X`` end in, by L-BFGS in double precision.

        Args:
            X: where to start.
            max_steps: most steps; a warning says so when they were not enough.
            tol: largest entry of σ²∇F(x) at which an ascent ends.
            return_path: also return the points on the way.

        Returns:
            The modes, a row for each start; with ``return_path`` also ``(steps + 1, rows, n_features)``.
        """
        checks.integer(1)("max_steps", max_steps)
        checks.number(0, open_low=True)("tol", tol)
        visibles = self._visibles(X, purpose="scoring")
        with double():
            model, x = to_double(self.model_), batch_to_double(visibles)
            scale = float(model.well.variance())
            ends, path = minimise(_free_energy, model, x, max_steps=max_steps, tol=tol / scale, path=return_path)
        ends = np.asarray(ends, np.float32)
        return (ends, np.asarray(path, np.float32)) if return_path else ends

    @property
    def sigma_(self) -> float:
        """σ as it is after learning."""
        return float(jnp.exp(self.model_.well.log_sigma))


@jitted
def _matrices(key: PRNGKeyArray, sizes: tuple[int, ...]) -> list[Array]:
    """Random weights between layers of the given sizes."""
    shapes = zip(sizes[1:], sizes[:-1], strict=True)
    keys = jax.random.split(key, len(sizes) - 1)
    return [jax.random.normal(k, (up, down)) / down**0.5 for k, (up, down) in zip(keys, shapes, strict=True)]


def _free_energy(model: FreeEnergy, x: Value) -> Scalar:
    return model.free_energy(x)


_NO_FILE = (
    "a file holds arrays, and a module is code. Keep the arrays with equinox.tree_serialise_leaves(path, "
    "estimator.model_), and later read them into a model of the same structure, which DeepEnergyModel(energy=…)"
    ".adopt(model, {'n_features': n}) makes an estimator again."
)
