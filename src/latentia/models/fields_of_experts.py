"""Fields of experts: a product of experts with the same filters at every position (Roth and Black, 2005).

    F(x) = Σ_k Σ_ij α_k φ_k((f_k ∗ x̂)_ij) + ½ ε‖x̂‖²,      x̂ = (x − m)/s,

with small filters f_k at all positions ij where they lie inside the image, expert functions φ
(:mod:`latentia.ops.experts`), powers α_k > 0 and *one* mean m and *one* scale s for all pixels, so that nothing
depends on where in the image something is. The model holds for images of any size; it is learned from patches.

Filters are parametrised with mean zero, f_k = g_k − mean(g_k): experts then say nothing about an image's overall
brightness (natural images have all), and a flat patch answers with zeros. The brightness is left to ε > 0, without
which F would have no normaliser.

Images are restored by minimising F plus a quadratic, see :mod:`latentia.ops.restoration`.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from latentia.core.capabilities import Encodes, FreeEnergy, Initialised, Starts
from latentia.core.errors import DataError, ParameterError
from latentia.core.model import Scalar
from latentia.core.parameters import bias, buffer, scale, weight
from latentia.core.space import Space
from latentia.estimator import checks
from latentia.estimator.declared import changed, param
from latentia.estimator.door import DataKind
from latentia.estimator.energy import ExpertFunctions, UnnormalisedEstimator
from latentia.imaging import pictures
from latentia.ops import random
from latentia.ops.arrays import cast_like
from latentia.ops.compiling import jitted
from latentia.ops.convolution import correlate
from latentia.ops.examples import Examples
from latentia.ops.experts import AbstractExperts, make
from latentia.ops.restoration import Field, Task, settled, smooth_start
from latentia.ops.whitening import directions

Image = Float[Array, "h w"]
Maps = Float[Array, "k p q"]

#: Windows that the starting filters are computed from.
WINDOWS = 100_000
#: Directions whose variance is this part of the largest are taken to have that much: filters stay finite.
FLOOR = 1e-5


class FieldsOfExpertsModel(FreeEnergy, Encodes, Starts, Initialised):
    """F(x) = Σ_k Σ_ij α_k φ_k((f_k ∗ x̂)_ij) + ½ ε‖x̂‖², x̂ = (x − m)/s."""

    image_shape: tuple[int, int] = eqx.field(static=True)
    experts: AbstractExperts
    filters: Float[Array, "k a b"] = weight()
    log_powers: Float[Array, " k"] = bias()
    log_ridge: Scalar = scale()
    mean: Scalar = buffer()
    spread: Scalar = buffer()

    @classmethod
    def make(
        cls,
        image_shape: tuple[int, int],
        n_filters: int,
        filter_shape: tuple[int, int],
        expert: str,
        *,
        key: PRNGKeyArray,
        ridge: float = 1e-3,
    ) -> Self:
        """Random filters; powers that count each pixel about once, although many windows hold it."""
        size = math.prod(filter_shape)
        filters = jax.random.normal(key, (n_filters, *filter_shape)) / size**0.5
        powers = jnp.full(n_filters, -math.log(size), filters.dtype)
        ridge_log = jnp.asarray(math.log(ridge), filters.dtype)
        experts = make(expert, n_filters)
        return cls(image_shape, experts, filters, powers, ridge_log, jnp.zeros(()), jnp.ones(()))

    @property
    def x_space(self) -> Space:
        """Images of the size that it was trained on; the methods take any size."""
        return Space("real", self.image_shape)

    @property
    def z_space(self) -> tuple[()]:
        """No latents."""
        return ()

    @property
    def code_space(self) -> Space:
        """Responses of all filters at all positions."""
        sizes = zip(self.image_shape, self.filters.shape[1:], strict=True)
        return Space("real", (self.filters.shape[0], *(n - m + 1 for n, m in sizes)))

    def kernels(self) -> Float[Array, "k a b"]:
        """The filters f, with mean zero."""
        return self.filters - jnp.mean(self.filters, axis=(1, 2), keepdims=True)

    def field(self) -> Field:
        """The energy as a function of x̂."""
        return Field(self.kernels(), jnp.exp(self.log_powers), self.experts, jnp.exp(self.log_ridge))

    def standardised(self, x: Image) -> Image:
        """x̂ = (x − m)/s."""
        return (x - self.mean) / self.spread

    def encode(self, x: Image) -> Maps:
        """f_k ∗ x̂."""
        return correlate(self.standardised(x), self.kernels())

    def free_energy(self, x: Image) -> Scalar:
        """F(x)."""
        maps = jnp.exp(self.log_powers)[:, None, None] * self.experts.energies(self.encode(x))
        return jnp.sum(maps) + 0.5 * jnp.exp(self.log_ridge) * jnp.sum(self.standardised(x) ** 2)

    def energy(self, x: Image, z: tuple[()]) -> Scalar:
        """F(x)."""
        del z
        return self.free_energy(x)

    def start(self, *, key: PRNGKeyArray) -> Image:
        """White noise with the data's mean and scale."""
        return self.mean + self.spread * jax.random.normal(key, self.image_shape, self.filters.dtype)

    def initialise(self, x: Float[Array, "n h w"], *, key: PRNGKeyArray) -> Self:
        """m and s from all pixels; filters with uncorrelated responses of variance one.

        They are principal components of the windows, spread over all of them if not all are wanted, and random
        mixtures of them where more filters are wanted than there are.
        """
        mean, spread = jnp.mean(x), jnp.std(x)
        spread = jnp.where(spread > 1e-6 * (1 + jnp.abs(mean)), spread, 1.0)
        values, vectors = self._window_components((x - mean) / spread)
        white = (vectors / jnp.sqrt(values)[None, :]).T
        n, free = self.filters.shape[0], white.shape[0]
        chosen = white[np.linspace(0, free - 1, min(n, free)).round().astype(int)]
        if n > free:
            mixed = directions(n - free, free, x.dtype, key=key)
            mixed = mixed / jnp.linalg.norm(mixed, axis=1, keepdims=True) @ white
            chosen = jnp.concatenate([chosen, mixed])
        new = (chosen.reshape(self.filters.shape), mean, spread)
        return eqx.tree_at(lambda m: (m.filters, m.mean, m.spread), self, new)

    def _window_components(self, x: Float[Array, "n h w"]) -> tuple[Float[Array, " j"], Float[Array, "d j"]]:
        """(variances, directions) of windows without their means: all but the constant direction."""
        _, a, b = self.filters.shape
        rows, columns = x.shape[1] - a + 1, x.shape[2] - b + 1
        some = x[:: -(-x.shape[0] * rows * columns // WINDOWS)]
        windows = jnp.stack([some[:, i : i + rows, j : j + columns] for i in range(a) for j in range(b)], axis=-1)
        windows = windows.reshape(-1, a * b)
        windows = windows - jnp.mean(windows, axis=1, keepdims=True)
        values, vectors = jnp.linalg.eigh(windows.T @ windows / windows.shape[0])
        top = jnp.where(values[-1] > 0, values[-1], 1.0)
        return jnp.maximum(values[1:], FLOOR * top), vectors[:, 1:]


class FieldsOfExperts(ExpertFunctions, UnnormalisedEstimator):
    """Field of experts: a model of images of any size, learned from patches, that restores them.

    The rows of X are patches, row after row of pixels, several times as wide as the filters. Their intensities may
    have any scale: one mean and one standard deviation are taken off inside.

    Denoising score matching is the default objective: at noise τ it learns the density of patches that carry that
    noise, which needs no second derivatives, and keeps experts from becoming arbitrarily narrow where patches are
    flat (quantised pixels have many responses that are exactly zero).

    Example:
        >>> import numpy as np
        >>> from latentia import FieldsOfExperts
        >>> X = np.random.default_rng(0).normal(size=(64, 6, 6)).cumsum(axis=2).reshape(64, 36)
        >>> field = FieldsOfExperts(n_filters=3, filter_shape=2, n_epochs=2, batch_size=16, random_state=0).fit(X)
        >>> field.filters_.shape
        (3, 2, 2)
        >>> field.denoise(np.eye(9), sigma=0.1).shape
        (9, 9)

    References:
        Roth and Black (2005), *Fields of experts*; Weiss and Freeman (2007), *What makes a good model of natural
        images?*; Schmidt, Gao and Roth (2010), *A generative perspective on MRFs in low-level vision*.
    """

    family = "fields-of-experts"
    accepts: ClassVar[frozenset[DataKind]] = frozenset({"images"})

    n_filters: int = param(default=24, check=checks.integer(1), doc="number of filters.", kw_only=False)
    filter_shape: int | tuple[int, int] = param(
        default=5,
        doc="size of the filters: one number for square ones, or (height, width).",
    )
    image_shape: tuple[int, int] | None = param(
        default=None,
        doc="(height, width) of the patches; if None they are square, or one row of pixels if the number of "
        "pixels is not a square.",
    )

    expert = changed(
        default="gsm",
        doc='φ: "gsm" (a mixture of Gaussians whose weights are learned), "student_t", "log_cosh" (also called '
        '"logistic"), "charbonnier", "gaussian".',
    )
    ridge = changed(default=1e-3, check=checks.number(0, open_low=True))
    objective = changed(
        default="denoising_score_matching",
        doc='"denoising_score_matching", "score_matching", "sliced_score_matching", "nce", "conditional_nce", '
        '"hybrid", or an objective object, such as ``DenoisingScoreMatching(5.0, relative=False)`` for '
        "noise of standard deviation 5 in the data's units.",
    )
    n_epochs = 10
    batch_size = 16
    learning_rate = 0.005

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> FieldsOfExpertsModel:
        """A field with random filters."""
        return FieldsOfExpertsModel.make(
            tuple(blueprint["image_shape"]),
            self.n_filters,
            _pair("filter_shape", self.filter_shape),
            self.expert,
            key=random.key(seed),
            ridge=self.ridge,
        )

    def _blueprint(self, X: Examples) -> dict[str, Any]:
        n, given = X.n_columns, self.image_shape if self.image_shape is not None else X.item_shape
        shape = _square_or_row(n) if given is None else _pair("image_shape", given)
        if math.prod(shape) != n:
            raise DataError(f"image_shape={shape} has {math.prod(shape)} pixels, but rows of X have {n}.")
        filters = _pair("filter_shape", self.filter_shape)
        if math.prod(filters) < 2:
            raise ParameterError("filter_shape must cover at least two pixels: filters have mean zero.")
        if filters[0] > shape[0] or filters[1] > shape[1]:
            raise DataError(
                f"Filters of {filters[0]}×{filters[1]} do not fit into patches of {shape[0]}×{shape[1]} "
                f"(n_features={n}). Use larger patches or a smaller filter_shape, or give image_shape."
            )
        return {"n_features": n, "image_shape": list(shape)}

    @property
    def filters_(self) -> np.ndarray:
        """The filters, (n_filters, height, width), with mean zero, as they are laid on the standardised image."""
        return np.asarray(self.model_.kernels())

    @property
    def powers_(self) -> np.ndarray:
        """α, one for each filter."""
        return np.exp(np.asarray(self.model_.log_powers))

    def denoise(
        self,
        images: Any,
        sigma: float,
        *,
        weight: float = 0.6,
        blur: float = 0.3,
        max_steps: int = 100,
        tol: float = 0.02,
    ) -> Any:
        """Images without noise: argmin over x of ‖x − y‖²/2σ² + λ F(x), by reweighted least squares.

        Args:
            images: noisy grey images y of any size, in the units of the training data: one (h, w), a stack
                (n, h, w), or a list of images.
            sigma: standard deviation of the noise, in the same units.
            weight: λ. With 1 and no blur x is the most probable image, which is flatter than most: less is better.
            blur: how uncertain each pixel is still, in units of sigma: experts are blurred by that much (see
                :mod:`latentia.ops.restoration`). 0 for none.
            max_steps: most reweightings.
            tol: largest change of a pixel, in units of sigma, at which an image is done.

        Returns:
            As ``images``: an array, or a list of arrays.
        """
        checks.number(0, open_low=True)("sigma", sigma)
        checks.number(0, open_low=True)("weight", weight)
        checks.number(0)("blur", blur)
        model = self._needs(FieldsOfExpertsModel, "restoration")
        given = pictures.checked(images, model.filters.shape[1:])
        options = {"sigma": sigma, "weight": weight, "blur": blur, **_limits(max_steps, tol)}
        found = pictures.by_shape(lambda y: _denoised(model, y, _arrays(options)), given)
        return pictures.like(images, found)

    def inpaint(self, images: Any, mask: Any = None, *, max_steps: int = 300, tol: float = 1e-3) -> Any:
        """Images whose unknown pixels are filled in so that F is least; known ones are kept, bit for bit.

        Args:
            images: grey images of any size, as in :meth:`denoise`; what unknown pixels hold does not matter.
            mask: True where a pixel is known: one for all images (h, w), or one for each. By default wherever an
                image is not NaN.
            max_steps: most reweightings.
            tol: largest change of a pixel, in units of the data's standard deviation, at which an image is done.

        Returns:
            As ``images``: an array, or a list of arrays.
        """
        model = self._needs(FieldsOfExpertsModel, "restoration")
        given = pictures.checked(images, model.filters.shape[1:], gaps=True)
        masks = pictures.masks(given, mask)
        filled = [np.where(m, p, p[m].mean()) for p, m in zip(given, masks, strict=True)]
        options = _limits(max_steps, tol)
        solve = lambda y, m: _inpainted(model, y, ~m, _arrays(options))  # noqa: E731
        found = pictures.by_shape(solve, filled, masks)
        kept = [np.where(m, p, x).astype(p.dtype) for p, m, x in zip(given, masks, found, strict=True)]
        return pictures.like(images, kept)


def _limits(max_steps: int, tol: float) -> dict[str, Any]:
    checks.integer(1)("max_steps", max_steps)
    checks.number(0, open_low=True)("tol", tol)
    return {"max_steps": max_steps, "tol": tol}


def _arrays(options: dict[str, Any]) -> dict[str, Any]:
    """As arrays, so that other numbers do not compile anew."""
    dtype = {"max_steps": jnp.int32}
    return {name: jnp.asarray(value, dtype.get(name, jnp.float32)) for name, value in options.items()}


def _square_or_row(n: int) -> tuple[int, int]:
    side = math.isqrt(n)
    return (side, side) if side**2 == n else (1, n)


def _pair(name: str, value: Any) -> tuple[int, int]:
    """(height, width) from one number or two."""
    both: Any = value if isinstance(value, tuple | list) and len(value) == 2 else (value, value)
    for each in both:
        checks.integer(1)(name, each)
    return int(both[0]), int(both[1])


@jitted
def _denoised(model: Any, noisy: Float[Array, "n h w"], options: dict[str, Any]) -> Float[Array, "n h w"]:
    field, noisy, options = model.field(), *cast_like((noisy, options), model)

    def one(noisy: Image) -> Image:
        image, unit = model.standardised(noisy), options["sigma"] / model.spread
        task = Task(image, jnp.ones(image.shape, bool), 1 / unit**2, options["weight"], options["blur"] * unit)
        x, _, _ = settled(field, task, image, max_steps=options["max_steps"], tol=options["tol"] * unit)
        return model.mean + model.spread * x

    return jax.vmap(one)(noisy)


@jitted
def _inpainted(
    model: Any, known: Float[Array, "n h w"], free: Bool[Array, "n h w"], options: dict[str, Any]
) -> Float[Array, "n h w"]:
    field, known, options = model.field(), *cast_like((known, options), model)

    def one(known: Image, free: Any) -> Image:
        image = model.standardised(known)
        nothing = jnp.zeros((), image.dtype)
        task = Task(image, free, nothing, jnp.ones((), image.dtype), nothing)
        start = smooth_start(field, task)
        x, _, _ = settled(field, task, start, max_steps=options["max_steps"], tol=options["tol"])
        return model.mean + model.spread * x

    return jax.vmap(one)(known, free)
