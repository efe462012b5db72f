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
from typing import Any, ClassVar

from latentia.energies.rbm import RBMModel
from latentia.estimator import checks
from latentia.estimator.boltzmann import BOLTZMANN_CHECKS, BoltzmannEstimator
from latentia.learning.optimizer import Schedule
from latentia.ops import random
from latentia.units import UNITS
from latentia.units import make as make_units


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
