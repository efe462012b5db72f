"""Deep Boltzmann machines.

Layers z = (h¹, h², …) in a chain above x, neighbours coupled, with offsets μ that centre the couplings:

    E(x, z) = E_v(x) − Σ_l b_lᵀh^l − (x − μ⁰)ᵀW¹(h¹ − μ¹) − (h¹ − μ¹)ᵀW²(h² − μ²) − …

Neither p(h | x) nor F(x) is tractable: the data enter through the mean-field bound, the model's own samples through
persistent chains, and all layers learn together from random weights (Salakhutdinov and Hinton, 2009; Montavon and
Müller, 2012, for the centring that makes this work). Label units, where there are labels, are one more visible site
that is joined to the top layer. The energy and everything that follows from it: :mod:`latentia.energies.layered`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from latentia.abilities.finetuning import Finetunes
from latentia.abilities.label_units import Labelled
from latentia.core import space
from latentia.core.errors import ParameterError
from latentia.energies.layered import LayeredModel, apply_switches, label_energies
from latentia.energies.replicated import ReplicatedRBM, assemble
from latentia.estimator import checks, training
from latentia.estimator.boltzmann import BoltzmannEstimator, Visibles
from latentia.estimator.declared import changed, param
from latentia.estimator.groups import Layers, MeanField, PretrainingEpochs
from latentia.estimator.rows import apply_rows
from latentia.estimator.rows_to_learn import LearningRows, some_rows
from latentia.learning import contrastive
from latentia.learning.compiled import AbstractPrepare
from latentia.learning.gradient import GradientLearner
from latentia.learning.stacking import Maker, Stage
from latentia.ops import random
from latentia.ops.compiling import jitted
from latentia.ops.examples import Examples
from latentia.units import Bernoulli
from latentia.units import make as make_units

VISIBLE = ("bernoulli", "spin", "gaussian", "categorical")


class DBM(Labelled, Finetunes, Layers, Visibles, MeanField, PretrainingEpochs, BoltzmannEstimator):
    """Deep Boltzmann machine.

    Example:
        >>> import numpy as np
        >>> from latentia import DBM
        >>> X = np.random.default_rng(0).integers(0, 2, (64, 6))
        >>> dbm = DBM(hidden=(4, 3), n_epochs=2, batch_size=16, random_state=0).fit(X)
        >>> dbm.transform(X).shape, dbm.transform(X, layer=2).shape
        ((64, 7), (64, 3))

    References:
        Salakhutdinov and Hinton (2009, 2012); Montavon and Müller (2012).
    """

    family = "dbm"

    finetune_rounds: int = param(
        default=2,
        check=checks.integer(1),
        doc="rounds of mean field that ``finetune`` unrolls into its network. More rounds make it deeper and "
        "slower and, with sigmoid units, better.",
    )

    hidden = changed(
        default=(500, 1000),
        check=checks.sizes(2),
        doc="sizes of the hidden layers, from below; at least two.",
    )
    visible = changed(
        check=checks.one_of(*VISIBLE),
        doc='type of the visible units: "bernoulli" ({0, 1}), "spin" ({−1, +1}), "categorical" (integers), '
        '"gaussian" (real).',
    )
    objective = changed(doc='"pcd", "cd", "tempering", or an objective object.')
    n_sampler_steps = 5
    pretraining_epochs = changed(
        default=0,
        doc="passes over the data for every layer of a greedy pretraining; 0 for none.",
    )
    n_epochs = changed(doc="passes over the data, all layers together.")
    weight_scale = changed(
        doc="standard deviation of the initial weights at the visibles; narrow hidden layers start larger.",
    )
    early_stopping = changed(doc="stop when the held-out rows are no longer reconstructed better.")
    monitor = changed(
        doc='whether to record the squared error of the reconstructions of a few training rows: "auto" and '
        '"always" do, None does not.',
    )

    # -- learning ------------------------------------------------------------------------------------------

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> LayeredModel:
        """Small random weights between neighbouring layers; labels, if any, joined to the top."""
        visible = [make_units(self.visible, blueprint["n_features"], blueprint.get("n_states"))]
        if "classes" in blueprint:
            visible.append(make_units("categorical", 1, len(blueprint["classes"])))
        first, depth = len(visible), len(self.hidden)
        edges = [(0, first), *((first + i, first + i + 1) for i in range(depth - 1))]
        edges += [(1, first + depth - 1)] if len(visible) > 1 else []
        layers = [Bernoulli.make(int(n)) for n in self.hidden]
        return LayeredModel.make(visible, layers, edges, key=random.key(seed), weight_scale=self.weight_scale)

    def _pretrain(self, model: Any, rows: LearningRows, seed: int, plan: training.Plan) -> Any:
        if not self.pretraining_epochs:
            return model
        makers = [self._stage(model, index, rows.weights) for index in range(len(self.hidden))]
        data = rows.training
        stages = training.run_stack(self, dataclasses.replace(rows, training=data.data), makers, plan, seed)
        model = assemble(model, [stage.model for stage in stages])
        x = space.encode(model.x_space, jax.device_put(some_rows(data, seed, rows.weights)))
        return _recentred(model, x)

    def _stage(self, model: LayeredModel, index: int, weights: Any) -> Maker:
        """The RBM between layers ``index`` and ``index + 1``, with the copies that its position requires."""
        depth = len(self.hidden)
        below = model.visible[0] if index == 0 else model.hidden[index - 1]
        copies = (1 if index == depth - 1 else 2, 1 if index == 0 else 2)

        def make(rows: Examples, key: PRNGKeyArray) -> Stage:
            stage = ReplicatedRBM.make(below, model.hidden[index], copies, key=key, weight_scale=self.weight_scale)
            # Hidden activities are probabilities: they are sampled anew at every step, like grey values.
            encode = training.Encode(below.space, sample=index > 0 or self.binarize == "sample")
            prepare = Copies(encode, copies[0])
            plan = self._stage_plan(len(rows), self.pretraining_epochs)
            learner = GradientLearner(contrastive.pcd(1), self._optimizer(plan), centring=self.centring)
            x = prepare(jax.device_put(some_rows(rows, 0, weights)), key=key)
            return Stage(
                f"pretraining layer {index + 1} of {depth}",
                _started(stage, x, key),
                learner,
                prepare,
                plan.n_steps,
                plan.batch_size,
                plan.chunk,
                lambda model, rows: np.asarray(_codes(model, below.space.encode(jax.device_put(rows)))),
            )

        return make

    # -- use -----------------------------------------------------------------------------------------------

    def transform(self, X: Any, layer: int | None = None) -> np.ndarray:
        """Mean-field activities of the hidden layers: of all of them side by side, or of one (1 is the lowest)."""
        codes = super().transform(X)
        if layer is None:
            return codes
        ends = np.cumsum([0, *self.hidden])
        whole = isinstance(layer, int | np.integer) and not isinstance(layer, bool)
        if not whole or not 1 <= layer <= len(self.hidden):
            raise ParameterError(f"layer must be an integer from 1 to {len(self.hidden)}, got {layer!r}.")
        return codes[:, ends[layer - 1] : ends[layer]]

    def _switches(self) -> tuple[np.ndarray, np.ndarray]:
        """Codes with one unit on and off; the layers below it follow it down, those above stay at their means."""
        return apply_switches(self.model_)

    def sample(
        self,
        n_samples: int = 1,
        *,
        n_steps: int = 1000,
        given: Any = None,
        mask: Any = None,
        label: Any = None,
        mean: bool = False,
        random_state: Any = None,
    ) -> np.ndarray:
        """Draw from the model; with ``label``, from p(x | y = label). The rest as in every estimator."""
        if label is not None:
            given, mask = self.with_label(label, given, mask)
        return super().sample(
            n_samples, n_steps=n_steps, given=given, mask=mask, mean=mean, random_state=random_state
        )

    def _label_probabilities(self, X: Any) -> np.ndarray:
        """p(y | x) from the variational energy of x with every label in turn."""
        x, _ = self._visibles(X, purpose="coding")
        energies = apply_rows(label_energies, self.model_, (x,)).astype(np.float64)
        p = np.exp(energies.min(axis=1, keepdims=True) - energies)
        return p / p.sum(axis=1, keepdims=True)

    def _feed_forward(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Mean field as a network: up to h², back to h¹ from x and h², ``finetune_rounds`` times, then upwards.

        Layers that have not been reached, and labels, stand at their offsets. Every round gets weights of its own
        to learn. One round is the way up of a belief net.
        """
        model, first = self.model_, len(self.model_.visible)
        offsets, lowest, above = model.offsets, *model.weights[:2]
        bias = model.hidden[0].bias - offsets[0] @ lowest
        up = [
            (weights, model.hidden[below + 1].bias - offsets[first + below] @ weights)
            for below, weights in enumerate(model.weights[1 : len(self.hidden)])
        ]
        again = (jnp.concatenate([lowest, above.T]), bias - above @ offsets[first + 1])
        rounds = [(lowest, bias), *([up[0], again] * (self.finetune_rounds - 1)), *up]
        return [(np.asarray(w), np.asarray(b)) for w, b in rounds]

    def _network_inputs(self, X: Any) -> np.ndarray:
        return apply_rows(_inputs, self.model_, self._visibles(X, purpose="coding"))


class Copies(AbstractPrepare):
    """Every example as several equal copies."""

    encode: training.Encode
    n: int = eqx.field(static=True)

    def __call__(self, rows: Any, *, key: PRNGKeyArray) -> Any:
        """Rows → a tuple of copies of the visibles."""
        x = self.encode(rows, key=key)
        return x if self.n == 1 else (x,) * self.n


@jitted
def _started(model: Any, x: Any, key: PRNGKeyArray) -> Any:
    return model.initialise(x, key=key)


@jitted
def _recentred(model: LayeredModel, x: Any) -> LayeredModel:
    return model.recentred(model.centres(x, None), 1.0)


@jitted
def _codes(model: ReplicatedRBM, x: Any) -> Any:
    return jax.vmap(model.code)(x)


def _inputs(model: LayeredModel, x: Any) -> Any:
    return model.visible[0].statistic(jax.tree.leaves(x)[0])
