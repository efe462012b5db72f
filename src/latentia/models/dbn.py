"""Deep belief networks, learned layer by layer and then as a whole.

An RBM is learned on the data, a second one on the hidden activities of the first, and so on; the RBMs below the
last become directed layers, x ← h¹ ← … ← h^{L−1} – h^L:

    E(x, z) = E_RBM(h^{L−1}, h^L) − log p(x | h¹) − Σ_{l<L−1} log p(h^l | h^{l+1}),      log Z that of the RBM.

A new RBM replaces the prior that the one below has over
its hidden units, and a better prior raises a bound on log p(x) (Hinton, Osindero and Teh, 2006). Afterwards the
recognition weights are untied from the generative ones and all of them learn together, up and down
(:mod:`latentia.learning.up_down`). With labels, one softmax group joins the visibles of the last RBM. The energy
and the bounds: :mod:`latentia.energies.belief_net`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from latentia import likelihood
from latentia.abilities.finetuning import Finetunes
from latentia.abilities.label_units import Labelled
from latentia.core import space
from latentia.core.errors import ParameterError
from latentia.energies.belief_net import DBNModel, switches
from latentia.energies.belief_sampling import dream, fill_in
from latentia.energies.rbm import RBMModel
from latentia.estimator import checks, drawing, training
from latentia.estimator.boltzmann import BoltzmannEstimator, Visibles
from latentia.estimator.declared import changed, param
from latentia.estimator.groups import Layers, PretrainingEpochs
from latentia.estimator.rows import apply_rows
from latentia.estimator.rows_to_learn import LearningRows, some_rows
from latentia.estimator.scoring import average
from latentia.learning import objective
from latentia.learning.contrastive import Contrastive, ContrastiveState
from latentia.learning.gradient import GradientLearner
from latentia.learning.stacking import Maker, Stage
from latentia.learning.up_down import ContrastiveWakeSleep, UpDownState
from latentia.likelihood import LogLikelihood
from latentia.ops import random
from latentia.ops.compiling import jitted
from latentia.ops.examples import Examples, WithLabels, without_labels
from latentia.units import Bernoulli
from latentia.units import make as make_units

VISIBLE = ("bernoulli", "spin", "gaussian", "categorical")


class DBN(Labelled, Finetunes, Layers, Visibles, PretrainingEpochs, BoltzmannEstimator):
    """Deep belief network.

    Example:
        >>> import numpy as np
        >>> from latentia import DBN
        >>> X = np.random.default_rng(0).integers(0, 2, (64, 6))
        >>> dbn = DBN(hidden=(4, 3), pretraining_epochs=2, n_epochs=1, batch_size=16, random_state=0)
        >>> dbn.fit(X, X[:, 0]).predict(X).shape, dbn.transform(X, layer=2).shape
        ((64,), (64, 3))

    References:
        Hinton, Osindero and Teh (2006); Burda, Grosse and Salakhutdinov (2016) for the bound.
    """

    family = "dbn"

    up_down_learning_rate: float = param(
        default=0.01,
        check=checks.number(0, open_low=True),
        doc="step size at the start of the passes up and down.",
    )
    discriminative: float = param(
        default=0.0,
        check=checks.number(0),
        doc="weight of log p(label | x), computed from the means on the way up, relative to the likelihood in "
        "the passes up and down; 0 is purely generative.",
    )

    hidden = changed(
        default=(500, 500, 2000),
        doc="sizes of the hidden layers, from below; the last two are those of the RBM on top.",
    )
    visible = changed(
        check=checks.one_of(*VISIBLE),
        doc='type of the visible units: "bernoulli" ({0, 1}), "spin" ({−1, +1}), "categorical" (integers), '
        '"gaussian" (real).',
    )
    objective = changed(
        doc='objective of the RBMs, layer by layer and on top: "pcd", "cd", "tempering", or a contrastive '
        "objective.",
    )
    pretraining_epochs = changed(
        check=checks.integer(1),
        doc="passes over the data for every layer, one after another.",
    )
    n_epochs = changed(
        default=10,
        check=checks.integer(0),
        doc="passes over the data, up and down through all layers; 0 leaves the layers as they are.",
    )
    learning_rate = changed(doc="step size at the start of every layer.")
    early_stopping = changed(
        doc="stop the passes up and down when the reconstructions of held-out rows no longer improve."
    )
    monitor = changed(
        doc='whether to record the squared error of the reconstructions of a few training rows: "auto" and '
        '"always" do, None does not.',
    )
    resume = changed(doc="continue from the folder's checkpoints.")

    # -- learning ------------------------------------------------------------------------------------------

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> DBNModel:
        """Small random weights between neighbouring layers; labels, if any, next to the last layer but one."""
        visible = make_units(self.visible, blueprint["n_features"], blueprint.get("n_states"))
        layers = [visible, *(Bernoulli.make(int(n)) for n in self.hidden)]
        n_labels = len(blueprint["classes"]) if "classes" in blueprint else None
        return DBNModel.make(layers, key=random.key(seed), n_labels=n_labels, weight_scale=self.weight_scale)

    def _pretrain(self, model: DBNModel, rows: LearningRows, seed: int, plan: training.Plan) -> DBNModel:
        makers = [self._stage(model, index, rows.weights) for index in range(len(self.hidden))]
        stages = training.run_stack(self, rows, makers, plan, seed)
        self.pretraining_history_ = [stage.history for stage in stages]
        return DBNModel.from_stack([stage.model for stage in stages])

    def _stage(self, model: DBNModel, index: int, weights: Any) -> Maker:
        """The RBM between layers ``index`` and ``index + 1``; the last one includes the labels too."""
        depth, hidden = len(self.hidden), model.layers[index + 1]
        below = model.top.visible if index == depth - 1 else model.layers[index]

        def make(rows: Examples, key: PRNGKeyArray) -> Stage:
            # Hidden activities are probabilities: they are sampled anew at every step, like grey values.
            prepare = training.Encode(below.space, sample=index > 0 or self.binarize == "sample")
            plan = self._stage_plan(len(rows), self.pretraining_epochs)
            learner = GradientLearner(self._contrastive(), self._optimizer(plan), self.averaging, self.centring)
            make_key, prepare_key = jax.random.split(key)
            rbm = RBMModel.make(below, hidden, key=make_key, weight_scale=self.weight_scale)
            rbm = _started(rbm, prepare(jax.device_put(some_rows(rows, 0, weights)), key=prepare_key), key)

            def encode(rbm: RBMModel, rows: Any) -> Any:
                codes = np.asarray(_codes(rbm, space.encode(rbm.x_space, jax.device_put(without_labels(rows)))))
                return rows._replace(data=codes) if isinstance(rows, WithLabels) else codes  # for the last stage

            name = f"layer {index + 1} of {depth}"
            return Stage(name, rbm, learner, prepare, plan.n_steps, plan.batch_size, plan.chunk, encode)

        return make

    def _contrastive(self) -> Contrastive:
        found = objective(self.objective, **self._objective_numbers())
        if not isinstance(found, Contrastive):
            raise ParameterError(
                f"objective must be a contrastive one ('pcd', 'cd', 'tempering'), whose chains begin the way down; "
                f"got {type(found).__name__}."
            )
        return found

    def _surrogate(self, plan: training.Plan) -> ContrastiveWakeSleep:
        del plan
        return ContrastiveWakeSleep(self._contrastive(), float(self.discriminative))

    def _main_rate(self) -> float:
        return self.up_down_learning_rate

    def validation_scorer(self, rows: Any, weights: Any = None) -> Callable[[Any], float]:
        """The negative squared error of reconstructions from the means of the layers."""
        portions = self._scored(rows)
        return lambda model: -average(portions.apply(_rebuilding_error, model), weights)

    # -- use -----------------------------------------------------------------------------------------------

    def transform(self, X: Any, layer: int | None = None) -> np.ndarray:
        """Means of the hidden layers on the way up: of all of them side by side, or of one (1 is the lowest)."""
        if layer is not None and (not isinstance(layer, int | np.integer) or not 1 <= layer <= len(self.hidden)):
            raise ParameterError(f"layer must be an integer from 1 to {len(self.hidden)}, got {layer!r}.")
        visibles = self._visibles(X, purpose="coding")
        means = apply_rows(DBNModel.means, self.model_, visibles)
        return np.concatenate(means, axis=1) if layer is None else means[layer - 1]

    def _switches(self) -> tuple[np.ndarray, np.ndarray]:
        """Codes with one unit on and off; the layers below it follow it down, those above stay at their means."""
        return switches(self.model_)

    def _label_probabilities(self, X: Any) -> np.ndarray:
        """p(y | ĥ), ĥ the means on the way up: a softmax over the top RBM's exact free energies of all labels."""
        visibles = self._visibles(X, purpose="coding")
        energies = apply_rows(DBNModel.label_energies, self.model_, visibles).astype(np.float64)
        p = np.exp(energies.min(axis=1, keepdims=True) - energies)
        return p / p.sum(axis=1, keepdims=True)

    def _feed_forward(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The way up; labels, where there are any, stand at their offsets."""
        model, n = self.model_, self.model_.layers[-2].n_statistics
        layers = [(d.weights.T, d.units.bias - d.weights @ d.offset) for d in model.recognition]
        weights, offset = model.top.weights[:n], model.top.visible_offset[:n]
        layers.append((weights, model.top.hidden.bias - offset @ weights))
        return [(np.asarray(w), np.asarray(b)) for w, b in layers]

    def _network_inputs(self, X: Any) -> np.ndarray:
        return apply_rows(_inputs, self.model_, self._visibles(X, purpose="coding"))

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
        """Draw from the model, free or with some entries given.

        Free draws are Gibbs sweeps in the top RBM, then one pass down. With ``given`` a Markov chain over all
        layers draws the free entries of x from p(x_free | x_known). Its sweeps leave this distribution exactly as
        it is: the recognition model only proposes (see :mod:`latentia.energies.belief_sampling`). They visit the
        hidden units one by one, so a sweep takes longer than a free one.

        Args:
            n_samples: how many; with ``given``, how many for each of its rows.
            n_steps: sweeps from a start without couplings, or from the way up with ``given``; draws are exact in
                the limit of many.
            given: rows with known entries; the others are drawn from their conditional distribution.
            mask: True where ``given`` is known; by default wherever it is not NaN.
            label: draw from p(x | y = label); any label if None.
            mean: return E[x | h¹] instead of x in the end (smoother pictures).
            random_state: seed; the estimator's own by default.

        Returns:
            ``(n_samples, n_features)``, or ``(rows · n_samples, n_features)`` with ``given``.
        """
        check_is_fitted(self, "model_")
        checks.integer(1)("n_samples", n_samples)
        checks.integer(1)("n_steps", n_steps)
        seed = self.random_state if random_state is None else random_state
        key = random.key(int(check_random_state(seed).randint(2**31 - 1)))
        if given is None:
            drawing.no_mask(mask)
            one_hot = None
            if label is not None:
                one_hot = jax.nn.one_hot(
                    jnp.asarray([self.label_code(label)]), len(self.classes_), dtype=np.float32
                )
            x, means = dream(self.model_, one_hot, n_steps, jax.random.split(key, n_samples))
        else:
            if label is not None:
                given, mask = self.with_label(label, given, mask)
            x, fixed = drawing.known_entries(self, given, mask, n_samples)
            x, means = (jax.tree.leaves(each)[0] for each in fill_in(self.model_, x, fixed, n_steps, key))
        own = space.leaves(self.model_.x_space)[0]
        return np.asarray(own.flatten(means) if mean else own.decode(x))

    # -- likelihood ----------------------------------------------------------------------------------------

    def _contrastive_state(self, state: Any) -> ContrastiveState | None:
        return state.top if isinstance(state, UpDownState) else None

    def score_samples(self, X: Any, n_samples: int = 100) -> np.ndarray:
        """A lower bound on log p(x) of every row, in nats, importance-weighted over ``n_samples`` paths."""
        checks.integer(2)("n_samples", n_samples)  # the noise cannot be estimated from one
        x = self._visibles(X, purpose="scoring")
        known = {"key": random.key(0), "n_samples": n_samples, "log_z": self.log_z().estimate}
        return likelihood.log_probabilities(self.model_, x, **known)

    def log_likelihood(self, X: Any, *, n_samples: int = 100, **options: Any) -> LogLikelihood:
        """A lower bound on the mean of log p(x), in nats.

        The importance-weighted bound over ``n_samples`` paths, less log Z of the top RBM. ``lower`` and ``upper``
        hold what is known of log Z from both sides; the likelihood itself may lie above all of them. Options go to
        :func:`latentia.likelihood.log_z` (``method``, ``n_temperatures``, ``n_chains`` …).
        """
        checks.integer(2)("n_samples", n_samples)  # the noise cannot be estimated from one
        x = self._visibles(X, purpose="scoring")
        known = {"key": random.key(0), "n_samples": n_samples, "normaliser": self.log_z(**options)}
        return self._remember("_log_likelihood", likelihood.log_likelihood(self.model_, x, **known))


@jitted
def _started(rbm: RBMModel, x: Any, key: PRNGKeyArray) -> RBMModel:
    return rbm.initialise(x, key=key)


@jitted
def _codes(rbm: RBMModel, x: Any) -> Any:
    return jax.vmap(lambda x: rbm.posterior(x).mean())(x)


def _inputs(model: DBNModel, x: Any) -> Any:
    return model.layers[0].statistic(jax.tree.leaves(x)[0])


def _rebuilding_error(model: DBNModel, x: Any) -> Any:
    again = jax.tree.leaves(model.decode(model.means(x)))[0]
    return jnp.mean((again - jax.tree.leaves(x)[0]) ** 2)
