"""The restricted Boltzmann machine for real-valued data, ready-made.

    E(x, z) = Σ_i (x̂_i − a_i)²/2σ_i² − Σ_ij (x̂_i/σ_i² − μ_i) W_ij (z_j − λ_j) − bᵀz,      x̂ the standardised x,

so that

    p(x̂ | z) = N(a + W(z − λ), diag σ²),      p(z_j = 1 | x) = sigmoid(b_j + Σ_i (x̂_i/σ_i² − μ_i) W_ij).

Data are standardised *inside* the model: raw pixels, counts or millimetres all train with the same settings, and
likelihoods and samples are in the data's own units. σ is learned in the log domain, more slowly than the weights
(Cho, Ilin and Raiko, 2011; Melchior, Wang and Wiskott, 2017).
"""

from __future__ import annotations

from typing import Any

from latentia.learning.optimizer import Schedule
from latentia.models.rbm import RBM


class GaussianRBM(RBM):
    """Restricted Boltzmann machine with Gaussian visible units, for real data of any scale.

    Args:
        n_components: number of hidden units.
        hidden: type of the hidden units: "bernoulli", "spin", "categorical", "gaussian", "rectified".
        n_hidden_states: states of a categorical hidden unit.
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
        monitor: the squared error of the reconstructions of a few training rows as a metric after every epoch:
            "auto" and "always" follow it, None does not.
        run_dir: folder for config, metrics, checkpoints and model; None writes nothing.
        resume: go on from the folder's checkpoint.
        callbacks: functions called with a ``latentia.learning.fit.Event`` now and then; True stops.
        random_state: seed.
        verbose: 0 is silent, 1 shows progress, 2 also prints every row of metrics.

    Example:
        >>> import numpy as np
        >>> from latentia import GaussianRBM
        >>> X = 100 + 20 * np.random.default_rng(0).normal(size=(64, 5))
        >>> rbm = GaussianRBM(n_components=3, n_epochs=2, batch_size=16, random_state=0).fit(X)
        >>> rbm.sample(2).shape
        (2, 5)

    References:
        Cho, Ilin and Raiko (2011), *Improved learning of Gaussian-Bernoulli restricted Boltzmann machines*;
        Melchior, Wang and Wiskott (2017), *Gaussian-binary restricted Boltzmann machines for modeling natural image
        statistics*.
    """

    family = "gaussian-rbm"

    def __init__(
        self,
        n_components: int = 256,
        *,
        hidden: str = "bernoulli",
        n_hidden_states: int = 3,
        objective: Any = "pcd",
        k: int = 1,
        n_chains: int | None = None,
        n_replicas: int = 10,
        n_epochs: int = 20,
        batch_size: int = 100,
        learning_rate: float = 0.003,
        schedule: Schedule = "linear",
        optimizer: Any = "adam",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        clip: float = 10.0,
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
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__(visible="gaussian", **given)
