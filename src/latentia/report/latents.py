"""The latents of a model: their number, their use, and a picture of each.

Everything depends on capabilities and public attributes, never on a family's name. A latent is shown by

- its filter where filters slide over pictures (``filters_``);
- what switching it on changes in the visibles (:class:`~latentia.core.capabilities.Decodes`);
- else its row of ``components_``;
- else the direction of the visibles that activates it most, by the gradient of the code.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import eigh

from latentia.core import space
from latentia.core.capabilities import Amortised, Decodes, Encodes, ExactPosterior
from latentia.core.space import Space
from latentia.ops.compiling import jitted

_TINY = 1e-7
#: For a model with more latents than this, the switches of all of them, a square matrix, are not computed.
MOST_SWITCHES = 4096
#: Rows over which gradients of codes are averaged.
_GRADIENT_ROWS = 16


class Missing(Exception):
    """Why something cannot be made, in one line."""


@dataclasses.dataclass(frozen=True)
class Group:
    """A layer of latents.

    Args:
        title: "Layer 2"; empty if there is only one.
        leaf: their space.
        begin: the first of their columns in a code.
        count: how many there are; a filter that slides is one, whatever the number of its places.
        places: (height, width) of the places of a sliding filter, else ().
    """

    title: str
    leaf: Space
    begin: int
    count: int
    places: tuple[int, ...] = ()

    @property
    def bounded(self) -> bool:
        """Whether activations lie between two ends, off and on."""
        return self.leaf.is_discrete

    def responses(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """(the activation of every latent ``(rows, count)``, where it was found, for sliding filters)."""
        block = codes[:, self.begin : self.begin + self.count * math.prod(self.places or (1,))]
        if not self.places:
            return block, None
        block = block.reshape(len(codes), self.count, -1)
        where = np.abs(block).argmax(axis=2)
        return np.take_along_axis(block, where[..., None], axis=2)[..., 0], where

    def use(self, activations: np.ndarray) -> np.ndarray:
        """How much every latent is used: its mean activation, without the sign where it may be negative."""
        if self.leaf.domain == "spin":
            return (1 + activations.mean(axis=0)) / 2
        return np.abs(activations).mean(axis=0)

    def active(self, activations: np.ndarray) -> np.ndarray | None:
        """Which activations count as on; None where codes are dense, so that all do."""
        if self.bounded:
            return activations > (0.0 if self.leaf.domain == "spin" else 0.5)
        on = np.abs(activations) > 1e-6 * max(float(np.abs(activations).max(initial=0)), 1e-30)
        return on if on.mean() < 0.95 else None


def code_space(estimator: Any) -> Any:
    """The space of what ``transform`` returns."""
    model = estimator.model_
    return model.code_space if isinstance(model, Encodes) else model.z_space


def groups(estimator: Any, width: int) -> list[Group]:
    """The layers of latents in a code of so many columns."""
    leaves = space.leaves(code_space(estimator))
    if sum(math.prod(leaf.shape) for leaf in leaves) != width:
        return [Group("", Space("real", (width,)), 0, width)]
    found, begin = [], 0
    for index, leaf in enumerate(leaves, start=1):
        title = f"Layer {index}" if len(leaves) > 1 else ""
        places = leaf.shape[1:] if len(leaf.shape) == 3 else ()
        found.append(Group(title, leaf, begin, math.prod(leaf.shape) // math.prod(places or (1,)), places))
        begin += math.prod(leaf.shape)
    return [group for group in found if group.count]


def chosen(use: np.ndarray, most: int) -> np.ndarray:
    """At most so many latents, the most used first: two thirds from the top, the others spread over the rest."""
    order = np.argsort(-use, kind="stable")
    if len(order) <= most:
        return order
    top = max(1, 2 * most // 3)
    rest = np.linspace(top, len(order) - 1, most - top).round().astype(int)
    return np.concatenate([order[:top], order[rest]])


def sampled_words(n: int, total: int, what: str = "latents") -> str:
    """What :func:`chosen` did, in words; empty if it chose all."""
    if n >= total:
        return ""
    top = max(1, 2 * n // 3)
    return f"{n} of {total:,} {what} are shown: the {top} most used, then {n - top} spread evenly over the rest."


def picks_one(z_space: Any) -> bool:
    """Whether the latents name one of several states, as in a mixture."""
    return isinstance(z_space, Space) and z_space.domain == "categorical" and z_space.shape[0] == 1


@dataclasses.dataclass(frozen=True)
class Pictures:
    """One row for every requested latent, the meaning of the rows, and their shape (None: that of the data)."""

    rows: np.ndarray
    meaning: str
    signed: bool
    shape: tuple[int, ...] | None = None


def pictures(estimator: Any, group: Group, which: np.ndarray, rows: np.ndarray | None) -> Pictures:
    """A picture of each of the latents ``which`` of a group; see the module's docstring.

    Args:
        estimator: a fitted estimator.
        group: the layer.
        which: numbers of the latents within the layer.
        rows: some data, for models whose latents only have gradients.
    """
    filters = getattr(estimator, "filters_", None)
    if group.places and filters is not None and np.ndim(filters) == 3 and len(filters) == group.count:
        chosen_filters = np.asarray(filters)[which]
        meaning = "Filters as they slide over the picture: red raises the response, blue lowers it."
        return Pictures(chosen_filters.reshape(len(which), -1), meaning, True, tuple(chosen_filters.shape[1:]))
    if isinstance(estimator.model_, Decodes) and not group.places:
        changes, meaning = switched(estimator, group.begin + which)
        return Pictures(changes, meaning, not picks_one(estimator.model_.z_space))
    components: Any = getattr(estimator, "components_", ())
    if not group.places and np.shape(components) == (group.count, estimator.n_features_in_):
        meaning = "The filter of each latent: red raises its response, blue lowers it."
        return Pictures(np.asarray(components)[which], meaning, True)
    if rows is None or group.places:
        raise Missing("The model has no filters to show: it cannot map latents to visibles (it lacks Decodes).")
    meaning = "Sensitivity of each latent, averaged over some rows: red pixels raise its activation, blue lower it."
    return Pictures(gradients(estimator, group.begin + which, rows), meaning, True)


def switched(estimator: Any, which: np.ndarray) -> tuple[np.ndarray, str]:
    """(what switching each latent on changes, what that means), a row for every latent in ``which``."""
    model = estimator.model_
    on, off = switches(estimator, which)
    means = as_columns(estimator, estimator.inverse_transform(on))
    if picks_one(model.z_space):
        return means, "The mean of the visibles for each component."
    nothing = as_columns(estimator, estimator.inverse_transform(off))
    domain = common_domain(estimator)
    if domain not in ("binary", "spin"):
        meaning = "How switching a latent on changes the mean of the visibles: red raises it, blue lowers it."
        return means - nothing, meaning
    meaning = "How switching a latent on changes the log-odds of each visible: red raises them, blue lowers them."
    return _log_odds(means, domain) - _log_odds(nothing, domain), meaning


def switches(estimator: Any, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(codes with one latent on, codes with it off), a row for every latent in ``which``."""
    width = space.width(code_space(estimator))
    if width <= MOST_SWITCHES:
        on, off = estimator.latent_switches()
        return on[which], off[which]
    on = np.zeros((len(which), width), np.float32)
    on[np.arange(len(which)), which] = 1.0
    return on, np.zeros_like(on)


def latent_pictures(estimator: Any) -> tuple[np.ndarray, str]:
    """(one row per latent, what the rows mean).

    What switching a latent on does to the visibles: the change of their mean, or of their log-odds where they
    are binary, which is not squeezed where they are nearly always on or off. A latent that names a state has
    a mean of its own instead.
    """
    if not isinstance(estimator.model_, Decodes):
        raise Missing("The model cannot map latents to visibles (it lacks Decodes), so it has no filters to show.")
    return switched(estimator, np.arange(space.width(code_space(estimator))))


def gradients(estimator: Any, which: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The gradient of each activation by the visibles, averaged over some rows; needs real visibles in one piece.

    Of binary latents it is the gradient of the log-odds, E(x, 0) − E(x, e_k), which does not vanish where a latent
    is always on.
    """
    model = estimator.model_
    whole = isinstance(model.x_space, Space) and model.x_space.domain == "real"
    if not whole or not isinstance(model, Encodes | ExactPosterior | Amortised):
        raise Missing("The model has no filters to show: it cannot map latents to visibles (it lacks Decodes).")
    some = np.linspace(0, len(rows) - 1, min(_GRADIENT_ROWS, len(rows))).astype(int)
    x = space.encode(model.x_space, jnp.asarray(rows[some], jnp.float32))
    unit = np.zeros((len(which), space.width(code_space(estimator))), np.float32)
    unit[np.arange(len(which)), which] = 1.0
    z_space = model.z_space
    binary = isinstance(model, ExactPosterior) and isinstance(z_space, Space) and z_space.domain == "binary"
    found = (_log_odds_gradients if binary else _gradients)(model, x, jnp.asarray(unit))
    return np.asarray(found).reshape(len(which), -1)


@jitted
def _log_odds_gradients(model: Any, x: Any, states: Any) -> Any:
    def one(x: Any, z: Any) -> Any:
        return jax.grad(lambda x: model.energy(x, jnp.zeros_like(z)) - model.energy(x, z))(x)

    return jax.vmap(lambda z: jnp.mean(jax.vmap(lambda x: one(x, z))(x), axis=0))(states)


@jitted
def _gradients(model: Any, x: Any, directions: Any) -> Any:
    def code(x: Any) -> Any:
        found = model.encode(x) if isinstance(model, Encodes) else _mean(model, x)
        return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(found)])

    def one(x: Any) -> Any:
        pull = jax.vjp(code, x)[1]
        return jax.vmap(lambda d: pull(d)[0])(directions)

    return jnp.mean(jax.vmap(one)(x), axis=0)


def _mean(model: Any, x: Any) -> Any:
    return (model.posterior(x) if isinstance(model, ExactPosterior) else model.recognise(x)).mean()


def _log_odds(means: np.ndarray, domain: str) -> np.ndarray:
    p = np.clip(means if domain == "binary" else (1 + means) / 2, 1e-30, 1 - _TINY)
    return np.log(p) - np.log1p(-p)


def data_spaces(estimator: Any) -> list[Space]:
    """The spaces of the data's columns: without labels."""
    return space.seen(estimator.model_.x_space, estimator.n_features_in_)


def common_domain(estimator: Any) -> str:
    """The domain of the data's columns; "mixed" if they have several."""
    domains = {leaf.domain for leaf in data_spaces(estimator)}
    return domains.pop() if len(domains) == 1 else "mixed"


def as_columns(estimator: Any, rows: np.ndarray) -> np.ndarray:
    """Flat means as one column per feature: a categorical site becomes its expected state."""
    rows, spaces = np.asarray(rows, np.float64), data_spaces(estimator)
    if rows.shape[1] != space.width(spaces):
        return rows
    parts = [
        part @ np.arange(leaf.shape[1]) if leaf.domain == "categorical" else part.reshape(len(rows), -1)
        for leaf, part in zip(spaces, space.unflatten(spaces, rows), strict=True)
    ]
    return np.concatenate(parts, axis=1)


def linear_reconstructions(estimator: Any, training: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    """The rows by as many principal components of training rows as a real-valued code has numbers.

    None where codes are not real, are as wide as the data, or where there are too few rows to learn from.
    """
    codes = space.leaves(code_space(estimator))
    if training is None or training.ndim != 2 or not all(leaf.domain == "real" for leaf in codes):
        return None
    n = space.width(codes)
    if not 0 < n < training.shape[1] or 2 * n > len(training):
        return None
    mean = training.mean(axis=0)
    axes = principal_axes(training - mean, n)
    return mean + (rows - mean) @ axes.T @ axes


def principal_axes(centred: np.ndarray, n: int) -> np.ndarray:
    """The first principal axes of rows with mean zero, one a row, by eigenvectors of the smaller Gram matrix."""
    centred = np.asarray(centred, np.float64)
    if centred.shape[1] <= centred.shape[0]:
        return _leading(centred.T @ centred, n).T
    axes = _leading(centred @ centred.T, n).T @ centred
    return axes / np.maximum(np.linalg.norm(axes, axis=1, keepdims=True), 1e-30)


def _leading(gram: np.ndarray, n: int) -> np.ndarray:
    """Eigenvectors of the largest eigenvalues, one a column, the largest first."""
    return eigh(gram, subset_by_index=[len(gram) - n, len(gram) - 1])[1][:, ::-1]


def data_parts(estimator: Any, image_shape: Sequence[int] | None) -> list[dict[str, Any]]:
    """How a row of data is laid out: one picture, or one picture or row of bars for every kind of data in it.

    Kinds have names where the blueprint has (``modalities``). One is a picture if the shape holds just its numbers.
    """
    widths = [leaf.n_columns for leaf in data_spaces(estimator)]
    named = (getattr(estimator, "blueprint_", None) or {}).get("modalities")
    names = list(named) if isinstance(named, dict) and len(named) == len(widths) else [""] * len(widths)
    shape = [] if image_shape is None else [int(side) for side in image_shape]
    if shape and math.prod(shape) == sum(widths):
        return [{"name": "", "begin": 0, "end": sum(widths), "shape": shape}]
    return [
        {
            "name": str(name),
            "begin": int(end - width),
            "end": int(end),
            "shape": shape if len(shape) == 2 and math.prod(shape) == width else [],
        }
        for name, width, end in zip(names, widths, np.cumsum(widths), strict=True)
    ]
