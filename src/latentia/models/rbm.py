"""Restricted Boltzmann machines over any two unit types.

With units' own energies E_v and E_h, statistics s and t, weights W and offsets μ and λ,

    E(x, z) = E_v(x) + E_h(z) − (s(x) − μ)ᵀ W (t(z) − λ).

The offsets *centre* the couplings (Montavon and Müller, 2012; Melchior, Fischer and Wiskott, 2016): they change
the gradient's geometry, not what the model can express, and zero offsets give the textbook form. With
f = Wᵀ(s(x) − μ), all follows from the units' log-partitions Γ:

    F(x) = E_v(x) + λ·f − Γ_h(f),      p(z | x) = units under the field f,      and likewise with x and z exchanged.
"""

from __future__ import annotations

from typing import Any

from latentia.energies.rbm import RBMModel
from latentia.estimator import checks
from latentia.estimator.boltzmann import BoltzmannEstimator, Visibles
from latentia.estimator.declared import changed, param
from latentia.estimator.groups import Components
from latentia.ops import random
from latentia.units import UNITS
from latentia.units import make as make_units


class AbstractRBM(Components, BoltzmannEstimator):
    """The base class of restricted Boltzmann machines: one layer of hidden units of any type."""

    hidden: str = param(
        default="bernoulli",
        check=checks.one_of(*UNITS),
        doc='type of the hidden units: "bernoulli", "spin", "categorical", "gaussian", "rectified".',
    )
    n_hidden_states: int = param(default=3, check=checks.integer(2), doc="states of a categorical hidden unit.")

    n_components = changed(default=256, doc="number of hidden units.")

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> RBMModel:
        """Small random weights between the two layers."""
        visible = make_units(self.visible, blueprint["n_features"], blueprint.get("n_states"))
        hidden = make_units(self.hidden, self.n_components, self.n_hidden_states)
        return RBMModel.make(visible, hidden, key=random.key(seed), weight_scale=self.weight_scale)


class RBM(Visibles, AbstractRBM):
    """Restricted Boltzmann machine over any pair of unit types.

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

    hidden = changed(doc="type of the hidden units, from the same list.")
    monitor = changed(
        doc="the pseudo-likelihood over all sites (squared error of the reconstructions for real data) of a few "
        'training rows as a metric: "auto" records it after every epoch if it is cheap and the squared error '
        'otherwise, "always" records it in any case, None follows nothing and notices no collapse.',
    )
