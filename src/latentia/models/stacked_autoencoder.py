"""Stacked autoencoders: deep networks learned layer by layer, then as a whole.

Layer l learns to rebuild what layer l − 1 makes of the data, from a corrupted version of it (Vincent et al., 2010);
or it is a restricted Boltzmann machine over it (Hinton and Salakhutdinov, 2006),

    E(x, z) = −xᵀWz − aᵀx − bᵀz,      p(z_k = 1 | x) = σ(w_kᵀx + b_k),      p(x_j = 1 | z) = σ(w_j z + a_j).

The stack is then *unrolled*: the layers on the way up are the encoder, f(x) = s(W_L ⋯ s(W_1 x + b_1) ⋯ + b_L), and
the same weights transposed are the start of the decoder. From there on all of them are learned together, and the
energy is the loss of the reconstruction, as in :mod:`latentia.models.autoencoder`:

    E(x) = Σ_j ℓ_j(x, g(f(x))).

With labels, the encoder becomes a classifier (``finetune``, ``predict``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.abilities.finetuning import Finetunes
from latentia.core import space
from latentia.core.errors import DataError, ParameterError
from latentia.energies.autoencoding import AutoencoderModel
from latentia.energies.rbm import RBMModel
from latentia.estimator import checks, training
from latentia.estimator.declared import changed, param
from latentia.estimator.fresh import fresh
from latentia.estimator.groups import PretrainingEpochs
from latentia.estimator.reconstructing import ReconstructionEstimator, outside_unit_interval
from latentia.estimator.rows_to_learn import LearningRows, some_rows
from latentia.learning import objective
from latentia.learning.feed_forward import Activation
from latentia.learning.gradient import GradientLearner
from latentia.learning.reconstruction import Reconstruction
from latentia.learning.stacking import Maker, Stage
from latentia.ops import random
from latentia.ops.compiling import jitted
from latentia.ops.examples import Examples
from latentia.ops.networks import MLP, Dense
from latentia.units import AbstractUnits, Bernoulli
from latentia.units import make as make_units

Matrix = Float[Array, "a b"]
Pretraining = Literal["denoising", "rbm"]


class Both(NamedTuple):
    """One layer of the stack: the way up, z = s(W x + b), and down, x = s(V z + c)."""

    up: Matrix
    up_biases: Float[Array, " a"]
    down: Matrix
    down_biases: Float[Array, " b"]


def unrolled(layers: Sequence[Both], named: Sequence[str], *, loss: str, output: str) -> AutoencoderModel:
    """The deep autoencoder of a stack; ``named`` are the activations on the way up, the last that of the code."""
    up = [Dense(layer.up, layer.up_biases, a) for layer, a in zip(layers, named, strict=True)]
    below = ["linear", *named[:-1]]
    down = [Dense(layer.down, layer.down_biases, a) for layer, a in zip(layers, below, strict=True)]
    n, k = layers[0].up.shape[1], layers[-1].up.shape[0]
    return AutoencoderModel(MLP(tuple(up)), MLP(tuple(reversed(down))), n, k, loss, output)


def rbm_layer(rbm: RBMModel) -> Both:
    """The two conditional means of an RBM, less their sigmoids, as affine maps."""
    gain, shift = _affine(rbm.visible.statistic, rbm.visible_offset)
    above, high = _affine(rbm.hidden.statistic, rbm.hidden_offset)
    up_gain, up_shift = _affine(lambda f: _natural(rbm.hidden, f), rbm.hidden_offset)
    down_gain, down_shift = _affine(lambda f: _natural(rbm.visible, f), rbm.visible_offset)
    W = rbm.weights
    return Both(
        up_gain[:, None] * W.T * gain[None, :],
        up_shift + up_gain * ((shift - rbm.visible_offset) @ W),
        down_gain[:, None] * W * above[None, :],
        down_shift + down_gain * (W @ (high - rbm.hidden_offset)),
    )


def _natural(units: AbstractUnits, field: Float[Array, " n"]) -> Float[Array, " n"]:
    """What the sigmoid of binary units is taken of; the mean of real ones."""
    return units.bias + field if isinstance(units, Bernoulli) else units.mean(field)


def _affine(function: Any, like: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Slopes and offsets of a function that is affine in every entry for itself."""
    offset = function(jnp.zeros_like(like))
    return function(jnp.ones_like(like)) - offset, offset


class StackedAutoencoder(Finetunes, PretrainingEpochs, ReconstructionEstimator):
    """Deep autoencoder, pretrained layer by layer; its encoder becomes a classifier with ``finetune(X, y)``.

    Example:
        >>> import numpy as np
        >>> from latentia import StackedAutoencoder
        >>> X = np.random.default_rng(0).integers(0, 2, (64, 6))
        >>> stack = StackedAutoencoder(hidden=(5, 3), pretraining_epochs=2, n_epochs=2, random_state=0).fit(X)
        >>> stack.transform(X).shape, stack.finetune(X, X[:, 0], n_epochs=2).predict(X).shape
        ((64, 3), (64,))

    References:
        Vincent, Larochelle, Lajoie, Bengio and Manzagol (2010); Hinton and Salakhutdinov (2006); Bengio, Lamblin,
        Popovici and Larochelle (2007).
    """

    family = "stacked-autoencoder"

    activation: Activation = param(
        default="sigmoid",
        check=checks.one_of(*get_args(Activation)),
        doc='activation of all layers: "sigmoid", "tanh" or "relu".',
    )
    code_activation: Literal["sigmoid", "relu", "tanh", "linear"] | None = param(
        default=None,
        check=checks.one_of(*get_args(Activation), "linear", None),
        doc='activation of the code; None for that of the other layers; "linear" suits small codes.',
    )
    output: Literal["auto", "linear", "sigmoid"] = param(
        default="auto",
        check=checks.one_of("auto", "linear", "sigmoid"),
        doc='output activation: "auto" is "sigmoid" for cross-entropy, else "linear".',
    )
    pretraining: Pretraining | None = param(
        default="denoising",
        check=checks.one_of(*get_args(Pretraining), None),
        doc='pretraining of the layers: "denoising" (autoencoders with tied weights that undo a corruption), '
        '"rbm" (restricted Boltzmann machines; sigmoid units, the code may be linear), or None: no '
        "pretraining.",
    )
    pretraining_learning_rate: float | None = param(
        default=None,
        check=lambda name, value: None if value is None else checks.number(0, open_low=True)(name, value),
        doc="step size of the pretraining; None for ``learning_rate``.",
    )
    denoise_whole: bool = param(
        default=False,
        check=checks.flag,
        doc="whether x is also corrupted while all layers are trained together.",
    )

    hidden = changed(default=(500, 500, 500), doc="numbers of units from the data to the code, which is the last.")
    pretraining_epochs = changed(doc="passes over the data per layer; 0 for no pretraining.")
    corruption = changed(
        default="masking",
        doc='corruption of the inputs: "masking", "gaussian", "salt_and_pepper", or None.',
    )
    emphasis = changed(
        doc="e: corrupted entries weigh 2e in the loss and others 2(1 − e); 0.5 weighs them equally."
    )
    n_epochs = changed(
        default=20,
        check=checks.integer(0),
        doc="passes over the data for all layers together; 0 trains the layers only one by one.",
    )
    resume = changed(doc="continue from the folder's checkpoints.")

    #: Metrics of the layers' own training, the lowest first.
    pretraining_history_: list[list[dict[str, float]]]

    # -- learning ------------------------------------------------------------------------------------------

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> AutoencoderModel:
        """Random weights."""
        *_, code = self._named()
        options = {"loss": blueprint["loss"], "output": blueprint["output"]}
        sizes, named = (blueprint["n_features"], *map(int, self.hidden)), {"activation": self.activation}
        return AutoencoderModel.dense(sizes, key=random.key(seed), code_activation=code, **named, **options)

    def _named(self) -> list[str]:
        """The activations on the way up."""
        return [self.activation] * (len(self.hidden) - 1) + [self.code_activation or self.activation]

    def _blueprint(self, X: Examples) -> dict[str, Any]:
        facts = super()._blueprint(X)
        entropy = facts["loss"] == "cross_entropy"
        if entropy and self.output == "linear":
            raise ParameterError("Cross-entropy is a loss of probabilities: its output is a sigmoid. Use 'auto'.")
        facts["output"] = ("sigmoid" if entropy else "linear") if self.output == "auto" else self.output
        outside = outside_unit_interval(X) if facts["output"] == "sigmoid" and not entropy else None
        if outside is not None:
            raise DataError(f"A sigmoid output lies in [0, 1], but X holds {outside:g}. Scale X, or use 'linear'.")
        self._check_noise()
        if self.pretraining == "rbm" and (
            self.activation != "sigmoid" or self._named()[-1] not in ("sigmoid", "linear")
        ):
            raise ParameterError(
                "pretraining='rbm' makes sigmoid layers, the code perhaps linear; got "
                f"activation={self.activation!r}, code_activation={self.code_activation!r}. Use them, or "
                "pretraining='denoising'."
            )
        return facts

    def _pretrain(
        self, model: AutoencoderModel, rows: LearningRows, seed: int, plan: training.Plan
    ) -> AutoencoderModel:
        if self.pretraining is None or not self.pretraining_epochs:
            return model
        stage = self._machine if self.pretraining == "rbm" else self._denoiser
        makers = [stage(index, rows.weights) for index in range(len(self.hidden))]
        results = training.run_stack(self, rows, makers, plan, seed)
        self.pretraining_history_ = [result.history for result in results]
        layers = [_layer(result.model) for result in results]
        return unrolled(layers, self._named(), loss=model.loss, output=str(model.output))

    def _denoiser(self, index: int, weights: Any) -> Maker:
        """The autoencoder between layers ``index`` and ``index + 1``."""
        facts, named = self.blueprint_, self._named()
        loss, output = facts["loss"], facts["output"]
        if index:
            output = named[index - 1]
            loss = "cross_entropy" if output == "sigmoid" else "squared"

        def make(rows: Examples, key: PRNGKeyArray) -> Stage:
            sizes = (rows.n_columns, int(self.hidden[index]))
            options = {"code_activation": named[index], "tied": True, "loss": loss, "output": output}
            model = fresh(AutoencoderModel.dense, sizes, key=key, **options)
            some = jax.device_put(some_rows(rows, 0, weights))
            model = _started(model, some, key)
            surrogate = Reconstruction(self._noise(), float(self.emphasis), relative=loss != "cross_entropy")
            surrogate = surrogate.surveyed(model, lambda: some, key=key)
            return self._stage(index, model, surrogate, training.Encode(model.x_space), len(rows))

        return make

    def _machine(self, index: int, weights: Any) -> Maker:
        """The RBM between layers ``index`` and ``index + 1``; activities are sampled at every step."""
        real = index == 0 and self.blueprint_["output"] == "linear"
        units = {"sigmoid": "bernoulli", "linear": "gaussian"}[self._named()[index]]

        def make(rows: Examples, key: PRNGKeyArray) -> Stage:
            visible = fresh(make_units, "gaussian" if real else "bernoulli", rows.n_columns)
            rbm = RBMModel.make(visible, fresh(make_units, units, int(self.hidden[index])), key=key)
            prepare = training.Encode(rbm.x_space, sample=not real)
            rbm = _started(rbm, prepare(jax.device_put(some_rows(rows, 0, weights)), key=key), key)
            return self._stage(index, rbm, objective("cd", n_sampler_steps=1), prepare, len(rows))

        return make

    def _stage(self, index: int, model: Any, surrogate: Any, prepare: training.Encode, n_rows: int) -> Stage:
        plan = self._stage_plan(n_rows, self.pretraining_epochs)
        optimizer = self._optimizer(plan)
        if self.pretraining_learning_rate is not None:
            rate = jnp.asarray(float(self.pretraining_learning_rate), optimizer.learning_rate.dtype)
            optimizer = eqx.tree_at(lambda o: o.learning_rate, optimizer, rate)
        learner = GradientLearner(surrogate, optimizer, averaging=self.averaging)
        named = self._named()[index]

        def encode(model: Any, rows: np.ndarray) -> np.ndarray:
            return np.asarray(_raised(_layer(model), named, jax.device_put(rows)))

        name = f"layer {index + 1} of {len(self.hidden)}"
        return Stage(name, model, learner, prepare, plan.n_steps, plan.batch_size, plan.chunk, encode)

    def _objective(self) -> Reconstruction:
        noise = self._noise() if self.denoise_whole else None
        emphasis = float(self.emphasis) if noise is not None else 0.5
        return Reconstruction(noise, emphasis, relative=self.blueprint_["loss"] != "cross_entropy")

    # -- the classifier ------------------------------------------------------------------------------------

    @property
    def network_activation(self) -> Activation:
        """What the classifier's units do: as the encoder's; a linear code gets units like the others."""
        return self.activation

    def _feed_forward(self) -> list[tuple[np.ndarray, np.ndarray]]:
        layers = self.model_.encoder.layers
        return [(np.asarray(layer.weights).T, np.asarray(layer.biases)) for layer in layers]

    def _network_inputs(self, X: Any) -> np.ndarray:
        return np.asarray(space.flatten(self.model_.x_space, self._visibles(X, purpose="coding")))


def _layer(model: Any) -> Both:
    """What a trained stage leaves."""
    if isinstance(model, RBMModel):
        return rbm_layer(model)
    (layer,) = model.encoder.layers
    return Both(layer.weights, layer.biases, layer.weights.T, model.decoder.biases[0])


@jitted
def _raised(layer: Both, named: str, rows: Matrix) -> Matrix:
    return jax.vmap(Dense(layer.up, layer.up_biases, named))(rows)


@jitted
def _started(model: Any, x: Any, key: PRNGKeyArray) -> Any:
    return model.initialise(x, key=key)
