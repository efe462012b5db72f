"""Variational autoencoders (Kingma and Welling, 2014; Rezende, Mohamed and Wierstra, 2014).

A directed model p(x, z) = p(x | z) p(z) whose conditional distributions are networks is learned together with a
recognition network q(z | x) by raising

    ELBO = E_q[log p(x | z)] − β KL(q(z | x) ‖ p(z)) ≤ log p(x)        (a bound for β = 1),

or its importance-weighted relative (Burda, Grosse and Salakhutdinov, 2016). Latents are real or binary, in one
layer or in several (Sønderby et al., 2016, for the ladder); the uppermost prior is normal, or made of posteriors of
pseudo-inputs (Tomczak and Welling, 2018). With a linear decoder and unit noise, binary latents
with means μ_k and a uniform prior,

    −ELBO = ½‖x − Wμ‖² + ½ Σ_k μ_k(1 − μ_k)‖w_k‖² − Σ_k H(μ_k) + K log 2 + (D/2) log 2π,

exactly, and nothing needs to be drawn. See :mod:`latentia.energies.vae_model` for the distributions.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Sequence
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from latentia.core import space
from latentia.core.capabilities import Amortised
from latentia.core.errors import DataError, FileFormatError, ParameterError
from latentia.energies import vae_model
from latentia.energies.vae_model import AbstractVAE, Latents
from latentia.energies.vae_parts import AbstractVisible, Bits, Reals, Sites, Variance
from latentia.estimator import checks, grey_values
from latentia.estimator.declared import changed, param
from latentia.estimator.directed import DirectedEstimator
from latentia.estimator.groups import Components, GreyValues, States
from latentia.inference.posteriors import n_numbers
from latentia.ops import random
from latentia.ops.compiling import jitted
from latentia.ops.examples import Examples
from latentia.ops.networks import Activation, Held

Visible = Literal["auto", "bernoulli", "gaussian", "categorical"]


def _sizes(name: str, value: Any) -> None:
    """A tuple of sizes, perhaps empty, or one such tuple for every layer of latents."""
    nested = (
        isinstance(value, Sequence) and not isinstance(value, str) and any(isinstance(v, Sequence) for v in value)
    )
    for part in value if nested else [value]:
        checks.sizes(0)(name, part)


def _perhaps(check: checks.Check) -> checks.Check:
    return lambda name, value: None if value is None else check(name, value)


class VAE(Components, States, GreyValues, DirectedEstimator):
    """Variational autoencoder: networks from latents to data and back, learned by bounds on the likelihood.

    Example:
        >>> import numpy as np
        >>> from latentia import VAE
        >>> X = np.random.default_rng(0).integers(0, 2, (64, 6))
        >>> vae = VAE(n_components=2, hidden=(8,), n_epochs=2, batch_size=16, random_state=0).fit(X)
        >>> vae.transform(X).shape, vae.interpolate(X[:1], X[1:2], 5).shape, vae.traverse().shape
        ((64, 2), (1, 5, 6), (2, 7, 6))

    References:
        Kingma and Welling (2014), *Auto-encoding variational Bayes*; Rezende, Mohamed and Wierstra (2014); Burda,
        Grosse and Salakhutdinov (2016), *Importance weighted autoencoders*; Sønderby et al. (2016); Tucker et al.
        (2019); Tomczak and Welling (2018), *VAE with a VampPrior*.
    """

    family = "vae"

    hidden: tuple[int, ...] = param(
        default=(200, 200),
        check=_sizes,
        doc="hidden sizes of the networks between x and the latents, from x upwards; the decoder has them in "
        "reverse order. With several layers of latents, one tuple for all or one for each.",
        kw_only=False,
    )
    latent: tuple[int, ...] | None = param(
        default=None,
        check=_perhaps(checks.sizes(1)),
        doc="latents of every layer, the lowest first, such as (64, 32); None for one layer of ``n_components``.",
    )
    latents: Latents = param(
        default="gaussian",
        check=checks.one_of(*get_args(Latents)),
        doc='"gaussian" or "bernoulli".',
    )
    posterior: Literal["diagonal", "full"] = param(
        default="diagonal",
        check=checks.one_of("diagonal", "full"),
        doc='"diagonal", or "full" for a covariance matrix of the (real) latents of each layer.',
    )
    ladder: bool = param(
        default=False,
        check=checks.flag,
        doc="recognition of several layers from the top downwards, each combined with the model's prediction; "
        "False goes upwards.",
    )
    prior: Literal["normal", "vamp"] = param(
        default="normal",
        check=checks.one_of("normal", "vamp"),
        doc='prior of the top latents: "normal" (for binary ones: learned odds), or "vamp", the equally weighted '
        "mixture of the posteriors of ``n_pseudo_inputs`` learned inputs; for one layer or a ladder.",
    )
    n_pseudo_inputs: int = param(default=500, check=checks.integer(1), doc='number of pseudo-inputs of "vamp".')
    visible: Visible = param(
        default="auto",
        check=checks.one_of(*get_args(Visible)),
        doc='"bernoulli", "gaussian", "categorical", or "auto": Bernoulli if all data are 0 or 1, else Gaussian.',
    )
    variance: Variance = param(
        default="learned",
        check=checks.one_of(*get_args(Variance)),
        doc='σ of Gaussian visibles: "learned" (one for all), "per_pixel" (one for each), "predicted" (by the '
        'decoder for every z) or "fixed".',
    )
    sigma: float = param(
        default=1.0,
        check=checks.number(0, open_low=True),
        doc="σ if it is fixed, in the data's units.",
    )
    activation: Activation | Literal["gated"] = param(
        default="tanh",
        check=checks.one_of(*get_args(Activation), "gated"),
        doc='"tanh", "relu", "leaky_relu", "sigmoid", "softplus", "silu", "gelu", "elu", "linear", or "gated": '
        "linear values times sigmoid gates, with twice the weights.",
    )
    decoder_hidden: tuple[int, ...] | None = param(
        default=None,
        check=_perhaps(_sizes),
        doc="hidden sizes of the decoder, from the latents downwards; () for a linear decoder.",
    )
    encoder: Any = param(
        default=None,
        doc="an Equinox module from x (flat) to the numbers of q(z | x): means, then logarithms of standard "
        "deviations (then the Cholesky factor's entries below the diagonal), or log-odds. No file can hold "
        "it.",
    )
    decoder: Any = param(
        default=None,
        doc="an Equinox module from z to the numbers of x: log-odds, means in units of the data's standard "
        "deviations from their mean, or logits. No file can hold it.",
    )

    n_components = changed(default=50, doc="number of latents, if there is one layer of them.")
    n_states = changed(doc="states of categorical visibles; None counts those of the data.")
    binarize = changed(
        doc='grey values in [0, 1] as probabilities of Bernoulli visibles: "sample" samples them at every step, '
        '"threshold" cuts at ½.',
    )
    n_epochs = 100

    # -- building ----------------------------------------------------------------------------------------------

    @property
    def _levels(self) -> tuple[int, ...]:
        return (self.n_components,) if self.latent is None else tuple(self.latent)

    def _each_level(self, value: Any) -> tuple[tuple[int, ...], ...]:
        """Hidden sizes for every layer of latents."""
        n = len(self._levels)
        if not any(isinstance(part, Sequence) for part in value):
            return (tuple(value),) * n
        if len(value) != n:
            raise ParameterError(f"hidden has sizes for {len(value)} layers of latents, but there are {n}.")
        return tuple(map(tuple, value))

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> AbstractVAE:
        """Networks with random weights, or those given."""
        hidden = self._each_level(self.hidden)
        down = (
            tuple(h[::-1] for h in hidden) if self.decoder_hidden is None else self._each_level(self.decoder_hidden)
        )
        given = {n: Held.make(m, (-1,)) for n in ("encoder", "decoder") if (m := getattr(self, n)) is not None}
        return vae_model.build(
            self._visible(blueprint),
            sizes=self._levels,
            hidden=hidden,
            decoder_hidden=down,
            latents=self.latents,
            posterior=self.posterior,
            ladder=bool(self.ladder) and len(self._levels) > 1,
            activation=self.activation,
            key=random.key(seed),
            n_pseudo_inputs=self.n_pseudo_inputs if self.prior == "vamp" else 0,
            **given,
        )

    def _visible(self, blueprint: dict[str, Any]) -> AbstractVisible:
        n = blueprint["n_features"]
        if blueprint["visible"] == "bernoulli":
            return Bits(n)
        if blueprint["visible"] == "categorical":
            return Sites(n, blueprint["n_states"])
        return Reals.make(n, self.variance, self.sigma)

    def _blueprint(self, X: Examples) -> dict[str, Any]:
        self._check_latents()
        facts = super()._blueprint(X)
        binary = self.binarize is not None or all(np.isin(block, (0, 1)).all() for block in X.blocks())
        facts["visible"] = self.visible if self.visible != "auto" else "bernoulli" if binary else "gaussian"
        if self.binarize is not None and facts["visible"] != "bernoulli":
            raise ParameterError(f"binarize={self.binarize!r} needs visible='bernoulli', got {self.visible!r}.")
        if facts["visible"] == "categorical":
            largest = max(float(block.max()) for block in X.blocks())
            facts["n_states"] = self.n_states or max(2, int(largest) + 1)
        self._check_modules(facts)
        return facts

    def _check_latents(self) -> None:
        if self.latents == "bernoulli" and self.posterior == "full":
            raise ParameterError(
                "posterior='full' is a covariance matrix, for real latents; binary ones have none."
            )
        if self.latents == "bernoulli" and self.ladder:
            raise ParameterError("ladder=True adds precisions, which binary latents lack. Use ladder=False.")
        if self.ladder and self.posterior == "full":
            raise ParameterError("ladder=True multiplies independent latents; it takes posterior='diagonal' only.")
        if self.ladder and not all(self._each_level(self.hidden)):
            raise ParameterError("ladder=True needs hidden layers on every rung; hidden must not be empty.")
        if self.prior == "vamp" and len(self._levels) > 1 and not self.ladder:
            raise ParameterError(
                "prior='vamp' needs q(z | x) of the top layer, which is intractable if recognition goes "
                "upwards through several layers. Use ladder=True, or one layer."
            )
        if self.prior == "vamp" and self.free_bits:
            raise ParameterError(
                "free_bits counts nats of each latent, but prior='vamp' has no divergence per latent."
            )
        if self.ladder and self.encoder is not None:
            raise ParameterError("ladder=True has rungs of its own; it cannot be used with encoder=.")

    def _check_modules(self, blueprint: dict[str, Any]) -> None:
        visible, first = self._visible(blueprint), self._levels[0]
        width = space.width(visible.space)
        kind = "full" if self.posterior == "full" else self.latents
        wanted = {"encoder": (width, n_numbers(kind, first)), "decoder": (first, visible.n_numbers)}
        for name, (n_in, n_out) in wanted.items():
            module = getattr(self, name)
            if module is not None:
                _check_module(name, module, n_in, n_out)
                if self.run_dir is not None:
                    raise ParameterError(f"run_dir cannot be used with {name}=: {_NO_FILE}")

    # -- data --------------------------------------------------------------------------------------------------

    def _refuse(self, X: Any) -> None:
        if isinstance(X, np.ndarray) and X.dtype.kind == "f" and np.isnan(X).any():
            raise DataError(
                "X contains NaN: missing values. VAE learns from and encodes complete rows; a fitted model fills "
                "them in with impute(X)."
            )

    def _check_domain(self, X: Examples, spaces: Any) -> None:
        binarize: Any = self.binarize
        if binarize is None:
            X.check(functools.partial(space.check, spaces), fix=_FIX.get(self.blueprint_["visible"], ""))
        else:
            grey_values.check(X, binarize, "visible='gaussian'")

    # -- use ---------------------------------------------------------------------------------------------------

    def traverse(
        self, X: Any = None, *, latents: Any = None, n_steps: int = 7, span: float = 3.0, level: int = 0
    ) -> np.ndarray:
        """Mean visibles while one latent moves and the others stay.

        Args:
            X: a row whose code is the starting point; None starts at the prior's mean, in lower layers at
                zero (binary latents: at ½).
            latents: which latents of the layer move; None for all.
            n_steps: points for each.
            span: how far real latents go to both sides of 0; binary ones go from 0 to 1.
            level: the layer, 0 the lowest; the layers below follow at their means.

        Returns:
            ``(latents, n_steps, n_features)``.
        """
        checks.integer(1)("n_steps", n_steps)
        model = self._needs(Amortised, "traverse")
        sizes = self._levels
        if not isinstance(level, numbers.Integral) or not 0 <= level < len(sizes):
            raise ParameterError(f"level must be an integer from 0 to {len(sizes) - 1}, got {level!r}.")
        real = self.latents == "gaussian"
        begin = sum(sizes[:level])
        base = np.full(sizes[level], 0.0 if real else 0.5, np.float32)
        if level == len(sizes) - 1:
            base = np.array(model.prior(level, ()).mean(), np.float32)
        if X is not None:
            base = self.transform(np.reshape(X, (1, -1)))[0, begin : begin + sizes[level]]
        chosen = np.arange(sizes[level]) if latents is None else np.asarray(latents, int)
        if chosen.ndim != 1 or (chosen < 0).any() or (chosen >= sizes[level]).any():
            raise ParameterError(f"latents must be indices from 0 to {sizes[level] - 1}, got {latents!r}.")
        values = np.linspace(-span, span, n_steps) if real else np.linspace(0, 1, n_steps)
        codes = np.repeat(base[None], len(chosen) * n_steps, axis=0).reshape(len(chosen), n_steps, -1)
        codes[np.arange(len(chosen))[:, None], np.arange(n_steps)[None], chosen[:, None]] = values[None]
        means = _descended(model, int(level), jnp.asarray(codes.reshape(-1, sizes[level])))
        return np.asarray(means).reshape(len(chosen), n_steps, -1)

    def _check_savable(self) -> None:
        """Modules of your own are refused."""
        if self.encoder is not None or self.decoder is not None:
            raise FileFormatError(f"A model with encoder= or decoder= cannot be saved: {_NO_FILE}")


@jitted
def _descended(model: AbstractVAE, level: int, codes: Any) -> Any:
    return jax.vmap(lambda layer: model.decode(model.descend(level, layer)).reshape(-1))(codes)


def _check_module(name: str, module: Any, n_in: int, n_out: int) -> None:
    if not isinstance(module, eqx.Module) or not callable(module):
        raise ParameterError(f"{name} must be an Equinox module that can be called, got {type(module).__name__}.")
    try:
        out = eqx.filter_eval_shape(module, jax.ShapeDtypeStruct((n_in,), jnp.float32))
    except Exception as error:
        raise ParameterError(f"{name} cannot be applied to a vector of {n_in} numbers: {error}") from error
    if getattr(out, "size", 0) != n_out:
        raise ParameterError(f"{name} must map {n_in} numbers to {n_out}, but it returns {out}.")


_FIX = {
    "bernoulli": "For grey values in [0, 1] pass binarize='sample' or 'threshold'; else use visible='gaussian'.",
    "categorical": "Pass n_states=…, and encode the data as integers from 0.",
}
_NO_FILE = (
    "a file holds arrays, and a module is code. Keep the arrays with equinox.tree_serialise_leaves(path, "
    "estimator.model_), and later read them into a model of the same structure, which VAE(encoder=…, decoder=…)"
    ".adopt(model, estimator.blueprint_) makes an estimator again."
)
