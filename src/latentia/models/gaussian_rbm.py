"""The restricted Boltzmann machine for real-valued data, ready-made.

    E(x, z) = Σ_i (x̂_i − a_i)²/2σ_i² − Σ_ij (x̂_i/σ_i² − μ_i) W_ij (z_j − λ_j) − bᵀz,      x̂ the standardised x,

so that

    p(x̂ | z) = N(a + W(z − λ), diag σ²),      p(z_j = 1 | x) = sigmoid(b_j + Σ_i (x̂_i/σ_i² − μ_i) W_ij).

Data are standardised *inside* the model: raw pixels, counts or millimetres all train with the same settings, and
likelihoods and samples are in the data's own units. σ is learned in the log domain, more slowly than the weights
(Cho, Ilin and Raiko, 2011; Melchior, Wang and Wiskott, 2017).
"""

from __future__ import annotations

from typing import ClassVar

from latentia.estimator.declared import changed
from latentia.models.rbm import AbstractRBM


class GaussianRBM(AbstractRBM):
    """Restricted Boltzmann machine with Gaussian visible units, for real data of any scale.

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

    visible: ClassVar[str] = "gaussian"

    learning_rate = 0.003
    optimizer = "adam"
    clip = 10.0
    monitor = changed(
        doc="whether to record the squared error of the reconstructions of a few training rows after every "
        'epoch: "auto" and "always" do, None does not.',
    )
