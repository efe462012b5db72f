"""Autoencoders: an encoder f, a decoder g, and the loss of reconstructing x from its code.

    E(x) = Σ_j ℓ_j(x, g(f(x))),

with ℓ = ½(x_j − x̂_j)² for real data and the cross-entropy ℓ = −x_j log x̂_j − (1 − x_j) log(1 − x̂_j) for values
in [0, 1]. The code cannot be a mere copy of x if it is small, or if learning is regularised: by
corruption of the encoder's input, by sparsity of the code, by contraction of the encoder
(:mod:`latentia.learning.reconstruction`).

E is an energy without a known log Z. One layer with tied weights, x̂ = a + W s(Wᵀx + b), has a *matching* energy
model whose density is known up to log Z: with Φ′ = s,

    F(x) = ½‖x − a‖² − Σ_k Φ(w_kᵀx + b_k),      ∇F(x) = x − x̂,

so that ½‖∇F‖² is the autoencoder's squared loss, and the objective of score matching is this loss less tr ∇²F
(Vincent, 2011). For a sigmoid, F is the free energy of a Gaussian restricted Boltzmann machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp

from latentia.core.errors import DataError, FileFormatError, ParameterError
from latentia.energies.autoencoding import AutoencoderModel, TiedEnergy
from latentia.estimator import checks
from latentia.estimator.declared import changed, param
from latentia.estimator.door import DataKind
from latentia.estimator.reconstructing import ReconstructionEstimator, outside_unit_interval
from latentia.learning.reconstruction import Jacobian
from latentia.ops import networks, random
from latentia.ops.examples import Examples
from latentia.ops.networks import Held


def an_activation(name: str, value: Any) -> None:
    """A known name, or a function."""
    if not callable(value):
        checks.one_of(*get_args(networks.Activation))(name, value)


def _image_shape(name: str, value: Any) -> None:
    if value is not None:
        checks.sizes(2)(name, value)
        if len(value) > 3:
            raise ParameterError(f"{name} must be (height, width) or (height, width, colours), got {value!r}.")


class Autoencoder(ReconstructionEstimator):
    """Autoencoder: codes from which the data can be rebuilt; deep, denoising, sparse, contractive, convolutional.

    Real data should have columns of like scale: they are not standardised inside.

    Example:
        >>> import numpy as np
        >>> from latentia import Autoencoder
        >>> X = np.random.default_rng(0).random((64, 12))
        >>> autoencoder = Autoencoder(hidden=(8, 3), corruption="masking", n_epochs=2, random_state=0).fit(X)
        >>> autoencoder.transform(X).shape, autoencoder.reconstruct(X).shape, autoencoder.energy(X).shape
        ((64, 3), (64, 12), (64,))

    References:
        Hinton and Salakhutdinov (2006); Vincent et al. (2010); Rifai et al. (2011); Makhzani and Frey (2013),
        *k-sparse autoencoders*.
    """

    family = "autoencoder"
    accepts: ClassVar[frozenset[DataKind]] = frozenset({"images"})

    activation: Any = param(
        default="relu",
        check=an_activation,
        doc='activation of the hidden layers: "relu", "leaky_relu", "elu", "silu", "gelu", "softplus", "tanh", '
        '"sigmoid", "linear", or a function of arrays.',
    )
    code_activation: Any = param(
        default="linear", check=an_activation, doc="activation of the code, from the same list."
    )
    tied: bool = param(
        default=False,
        check=checks.flag,
        doc="whether the decoder has the encoder's weights, transposed, instead of its own.",
    )
    output: Any = param(
        default="auto",
        check=lambda name, value: None if value == "auto" else an_activation(name, value),
        doc='output activation of the decoder: "auto" is "sigmoid" for cross-entropy, else "linear".',
    )
    convolutional: bool = param(
        default=False,
        check=checks.flag,
        doc="use 3 × 3 convolutions, for images; every layer of the encoder halves the image, every layer of the "
        "decoder doubles it.",
    )
    image_shape: Sequence[int] | None = param(
        default=None,
        check=_image_shape,
        doc="(height, width) or (height, width, colours) of a row; needed by ``convolutional``. A module given "
        "as ``encoder`` receives x in this shape.",
    )
    encoder: Any = param(
        default=None,
        doc="an Equinox module x ↦ code in place of the network; with ``decoder``. Such a model cannot be saved.",
    )
    decoder: Any = param(
        default=None,
        doc="an Equinox module, code ↦ as many numbers as x has, to which ``output`` is applied.",
    )
    sparsity: Literal["l1", "kl", "k_winners"] | None = param(
        default=None,
        check=checks.one_of("l1", "kl", "k_winners", None),
        doc='sparsity of the codes: "l1" (Σ|z_k|), "kl" (a target mean activity of sigmoid units), "k_winners" '
        "(all but the largest entries are zero), or None.",
    )
    sparsity_weight: float = param(
        default=0.1,
        check=checks.number(0),
        doc='weight of "l1" or "kl" in the objective.',
    )
    sparsity_target: float = param(
        default=0.05,
        check=checks.number(0, 1, open_low=True, open_high=True),
        doc='target mean activity of "kl".',
    )
    n_winners: int | None = param(
        default=None,
        check=checks.integer(1, optional=True),
        doc='number of entries that "k_winners" keeps.',
    )
    contraction: float = param(
        default=0.0,
        check=checks.number(0),
        doc="weight of ‖∂f/∂x‖² in the objective; 0 for none.",
    )
    jacobian: Literal["auto", "exact", "stochastic"] = param(
        default="auto",
        check=checks.one_of("auto", *get_args(Jacobian)),
        doc='computation of that norm: "exact", "stochastic" (unbiased, in a random direction), or "auto": exact '
        "for one layer.",
    )

    hidden = changed(
        default=(200, 10),
        doc="numbers of units from the data to the code, which is the last: (200, 10) has 200 units between the "
        "data and a code of 10. With ``convolutional`` all but the last are numbers of channels.",
    )

    # -- learning ------------------------------------------------------------------------------------------

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> AutoencoderModel:
        """Networks with random weights, or the given modules."""
        n, key = blueprint["n_features"], random.key(seed)
        options = {
            "loss": blueprint["loss"],
            "output": blueprint["output"] if self.output == "auto" else self.output,
            "n_winners": self.n_winners if self.sparsity == "k_winners" else None,
        }
        if self.encoder is not None:
            both = Held.make(self.encoder, self.image_shape), Held.make(self.decoder)
            return AutoencoderModel(*both, n, blueprint["n_code"], **options)
        named = {"activation": self.activation}
        if not self.convolutional:
            sizes, named = (n, *map(int, self.hidden)), {**named, "code_activation": self.code_activation}
            return AutoencoderModel.dense(sizes, key=key, tied=bool(self.tied), **named, **options)
        up, down = jax.random.split(key)
        shape, channels, n_code = tuple(blueprint["image_shape"]), self.hidden[:-1], int(self.hidden[-1])
        encoder = networks.ConvolutionalEncoder.make(
            shape, channels, n_code, key=up, last=self.code_activation, **named
        )
        decoder = networks.ConvolutionalDecoder.make(shape, channels, n_code, key=down, **named)
        return AutoencoderModel(encoder, decoder, n, n_code, **options)

    def _blueprint(self, X: Examples) -> dict[str, Any]:
        facts = super()._blueprint(X)
        facts["output"] = "sigmoid" if facts["loss"] == "cross_entropy" else "linear"
        shape = self.image_shape if self.image_shape is not None else X.item_shape
        if shape is not None:
            facts["image_shape"] = [int(side) for side in shape]
        self._check_choices(facts, X)
        facts["n_code"] = int(self.hidden[-1]) if self.encoder is None else self._module_code(facts["n_features"])
        if self.n_winners is not None and self.n_winners > facts["n_code"]:
            raise ParameterError(f"n_winners is {self.n_winners}, but a code has {facts['n_code']} entries.")
        return facts

    def _check_choices(self, facts: dict[str, Any], X: Examples) -> None:
        """Refuse what does not go together, each with a way out."""
        self._check_noise()
        custom = self.encoder is not None or self.decoder is not None
        if custom and (self.encoder is None or self.decoder is None):
            raise ParameterError("encoder and decoder must be given together, or neither of them.")
        if (custom or self.convolutional) and self.tied:
            raise ParameterError("tied=True is for dense networks, not for convolutions or modules of your own.")
        if self.convolutional and ("image_shape" not in facts or len(self.hidden) < 2):
            raise ParameterError(
                "convolutional=True needs image_shape, and in hidden the channels of at least one convolution "
                f"before the size of the code; got image_shape={self.image_shape!r}, hidden={self.hidden!r}."
            )
        if self.image_shape is not None and math.prod(self.image_shape) != facts["n_features"]:
            raise DataError(
                f"image_shape={tuple(self.image_shape)} has {math.prod(self.image_shape)} entries, but a row of X "
                f"has {facts['n_features']}."
            )
        if self.sparsity == "kl" and not custom and self.code_activation != "sigmoid":
            raise ParameterError(
                "sparsity='kl' holds mean activities against a rate, so codes must lie in (0, 1): pass "
                "code_activation='sigmoid', or use sparsity='l1' or 'k_winners'."
            )
        if (self.sparsity == "k_winners") != (self.n_winners is not None):
            raise ParameterError(
                "sparsity='k_winners' and n_winners=… go together; got "
                f"sparsity={self.sparsity!r}, n_winners={self.n_winners!r}."
            )
        if facts["loss"] == "cross_entropy" and self.output not in ("auto", "sigmoid"):
            raise ParameterError(
                f"Cross-entropy is a loss of probabilities: its output is a sigmoid, not {self.output!r}. Use "
                "loss='squared' for other outputs."
            )
        bounded = self.output == "sigmoid" and facts["loss"] == "squared"
        outside = outside_unit_interval(X) if bounded else None
        if outside is not None:
            raise DataError(f"output='sigmoid' lies in [0, 1], but X holds {outside:g}. Scale X, or use 'linear'.")
        if self.run_dir is not None and self._objects():
            raise ParameterError(f"run_dir cannot be used with {self._objects()}: {_NO_FILE}")

    def _module_code(self, n: int) -> int:
        """The length of the codes of given modules, which are tried on shapes alone."""
        for name, module in (("encoder", self.encoder), ("decoder", self.decoder)):
            if not isinstance(module, eqx.Module) or not callable(module):
                raise ParameterError(f"{name} must be an Equinox module to be called, got {type(module).__name__}.")
        try:
            code = eqx.filter_eval_shape(
                Held.make(self.encoder, self.image_shape), jax.ShapeDtypeStruct((n,), jnp.float32)
            )
            back = eqx.filter_eval_shape(Held.make(self.decoder), code)
        except Exception as error:
            raise ParameterError(f"encoder and decoder do not fit rows of {n} numbers: {error}") from error
        if back.size != n:
            raise ParameterError(f"decoder returns {back.size} numbers, but a row of X has {n}.")
        return int(code.size)

    def _jacobian(self) -> Jacobian:
        shallow = len(self.hidden) == 1 and self.encoder is None
        exact = self.jacobian == "exact" or (self.jacobian == "auto" and shallow)
        return "exact" if exact else "stochastic"

    # -- use -----------------------------------------------------------------------------------------------

    def matching_energy(self) -> TiedEnergy:
        """The energy model whose ½‖∇F(x)‖² is the loss: for one tied layer, squared loss and linear output."""
        return self._needs(AutoencoderModel, "matching_energy").matching_energy()

    def _objects(self) -> str:
        """The parameters that are code, which no file holds."""
        modules = [f"{name}=…" for name in ("encoder", "decoder") if getattr(self, name) is not None]
        names = ("activation", "code_activation", "output")
        return ", ".join(modules + [f"{name}=a function" for name in names if callable(getattr(self, name))])

    def _check_savable(self) -> None:
        """Modules and functions are refused."""
        if self._objects():
            raise FileFormatError(f"A model with {self._objects()} cannot be saved: {_NO_FILE}")


_NO_FILE = (
    "a file holds arrays, and these are code. Keep the arrays with equinox.tree_serialise_leaves(path, "
    "estimator.model_), and read them later into a model of the same structure."
)
