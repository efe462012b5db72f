"""General Boltzmann machines: any two units may be coupled, hidden ones among them or none at all.

The energy and all that follows from it: :mod:`latentia.energies.boltzmann_machine`. Without hidden units
F(x) = E(x), so that ratio matching and noise contrast learn without sampling. With hidden units the data enter
through the mean-field bound, or through Gibbs sampling with x held. Small machines of both kinds learn by exact
maximum likelihood. Patterns can also be stored without learning (:meth:`BoltzmannMachine.hopfield`), and known
couplings, of an Ising lattice for instance, be taken as they are (:meth:`BoltzmannMachine.from_couplings`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from scipy.sparse import coo_array, issparse, triu
from sklearn.utils.validation import check_is_fitted

from latentia.core.errors import DataError, ParameterError
from latentia.energies.boltzmann_machine import (
    BoltzmannMachineModel,
    HiddenBoltzmann,
    VisibleBoltzmann,
    make,
    recall,
)
from latentia.estimator import checks
from latentia.estimator.boltzmann import AbstractBoltzmann
from latentia.estimator.declared import changed, param
from latentia.estimator.energy import NoiseSamples
from latentia.estimator.fits import Watched
from latentia.estimator.gradient import monitored
from latentia.estimator.groups import Components, GreyValues, MeanField
from latentia.estimator.rows import apply_rows
from latentia.estimator.scoring import average
from latentia.inference import infer_means
from latentia.learning.contrastive import POSITIVE
from latentia.ops import random
from latentia.ops.colouring import check_edges
from latentia.ops.couplings import DenseCouplings, SparseCouplings
from latentia.ops.examples import Examples

#: How far an entry of W may lie from its mirror image, as a part of the largest entry: rounding, no more.
SYMMETRY = 1e-6


class BoltzmannMachine(Components, GreyValues, MeanField, NoiseSamples, AbstractBoltzmann):
    """General Boltzmann machine: binary units, visible and hidden, any two of which may be coupled.

    Example:
        >>> import numpy as np
        >>> from latentia import BoltzmannMachine
        >>> patterns = np.array([[1, 1, 1, 1, -1, -1, -1, -1], [1, -1, 1, -1, 1, -1, 1, -1]])
        >>> memory = BoltzmannMachine.hopfield(patterns)
        >>> memory.recall([[1, 1, 1, -1, -1, -1, -1, -1]]).astype(int)
        array([[ 1,  1,  1,  1, -1, -1, -1, -1]])

    References:
        Ackley, Hinton and Sejnowski (1985); Hopfield (1982); Salakhutdinov (2009) for PCD with mean field.
    """

    family = "boltzmann-machine"

    units: str = param(
        default="bernoulli",
        check=checks.one_of("bernoulli", "spin"),
        doc='"bernoulli" ({0, 1}) or "spin" ({−1, +1}), for visible and hidden units.',
    )
    edges: Any = param(
        default=None,
        doc="which units are coupled: pairs of their numbers, visible units first, each pair once. None couples "
        "all pairs. ``grid_edges`` in ``latentia.ops.lattice`` returns those of a lattice.",
    )
    positive: str = param(
        default="mean_field",
        check=checks.one_of(*POSITIVE),
        doc='positive phase of a model with hidden units: "mean_field" (a bound) or "sampled" (Gibbs sampling '
        "with x held, exact in the limit of many rounds).",
    )

    n_components = changed(default=0, check=checks.integer(0), doc="number of hidden units; 0 for none.")
    binarize = changed(
        doc='treatment of data in [0, 1] for Bernoulli units: None refuses them, "sample" samples each entry '
        'from a Bernoulli distribution at every training step, "threshold" cuts at ½.'
    )
    objective = changed(
        doc='"pcd", "cd", "tempering", "exact" (maximum likelihood by enumeration, up to about 20 units); without '
        'hidden units also "ratio_matching", "nce", "conditional_nce"; or an objective object.'
    )
    rounds = changed(doc="rounds of mean field, or sweeps with x held, for every batch.")
    learning_rate = 0.05
    weight_decay = changed(doc="decay of the couplings per unit of learning rate.")
    weight_scale = changed(doc="standard deviation of the initial couplings.")
    monitor = changed(
        doc="the pseudo-likelihood of a few training rows as a metric, or with hidden units the squared error of "
        'predicting each visible unit from all others: "auto" records it if it is cheap, "always" in any '
        "case. None records nothing and does not detect a collapse."
    )

    # -- learning ------------------------------------------------------------------------------------------

    @property
    def visible(self) -> str:
        """The type of the visible units: all are of one type."""
        return self.units

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> VisibleBoltzmann | HiddenBoltzmann:
        """Small random couplings, no biases."""
        return make(
            self.units,
            blueprint["n_features"],
            self.n_components,
            blueprint["edges"],
            key=random.key(seed),
            weight_scale=self.weight_scale,
        )

    def _blueprint(self, X: Examples) -> dict[str, Any]:
        return {**super()._blueprint(X), "edges": self._checked_edges(X.n_columns)}

    def _checked_edges(self, n_visible: int) -> list[list[int]] | None:
        return None if self.edges is None else check_edges(self.edges, n_visible + self.n_components).tolist()

    def _objective_numbers(self) -> dict[str, Any]:
        own = {"rounds": self.rounds, "positive": self.positive, "ratio": self.noise_ratio}
        return {**super()._objective_numbers(), **own}

    def watch(self, model: Any, rows: Any, weights: Any = None) -> Watched:
        """Without hidden units as in every estimator; with them the error of :meth:`reconstruct` on a few rows."""
        if not isinstance(model, HiddenBoltzmann):
            return super().watch(model, rows, weights)
        few = self._scored(monitored(rows, weights))
        x = np.asarray(few.visibles(model.x_space))
        scorer = self.validation_scorer(few)
        monitors = {"reconstruction_error": lambda model: -scorer(model)} if self.monitor else {}
        return Watched(monitors, {"reconstruction_error": float(x.var(axis=0).mean())})

    def validation_scorer(self, rows: Any, weights: Any = None) -> Callable[[Any], float]:
        """The pseudo-likelihood; with hidden units minus the squared error of :meth:`reconstruct`."""
        if not self.n_components:
            return super().validation_scorer(rows, weights)
        portions = self._scored(rows)
        return lambda model: -average(portions.apply(_rebuilding_error, model), weights)

    # -- use -----------------------------------------------------------------------------------------------

    def _reconstructed(self, X: Any) -> np.ndarray:
        """The mean of every visible unit given all others, hidden ones at their posterior means."""
        return apply_rows(
            _site_means, self._needs(BoltzmannMachineModel, "reconstruct"), self._visibles(X, purpose="coding")
        )

    def recall(self, X: Any, *, mask: Any = None, n_sweeps: int = 1000) -> np.ndarray:
        """Sweeps at zero temperature from the rows to a fixed point, along which the energy never rises.

        Every unit in turn takes the state of lower energy, or stays where both have the same. Hidden units start at
        their likelier states.

        Args:
            X: where to start.
            mask: True where an entry of ``X`` is known and must stay; for all rows or for each.
            n_sweeps: how many sweeps at most; a handful suffices as a rule.
        """
        check_is_fitted(self, "model_")
        checks.integer(1)("n_sweeps", n_sweeps)
        x = np.asarray(self._visibles(X, purpose="coding"))
        fixed = np.zeros(x.shape, bool) if mask is None else np.asarray(mask)
        if fixed.dtype != bool or fixed.shape not in (x.shape, x.shape[1:]):
            raise DataError(
                f"mask must be boolean of shape {x.shape} or {x.shape[1:]}, got {fixed.dtype} {fixed.shape}."
            )
        fixed = np.broadcast_to(fixed, x.shape)
        return apply_rows(_Recall(n_sweeps), self.model_, x, fixed.astype(np.float32))

    @property
    def couplings_(self) -> Any:
        """W, symmetric with zero diagonal: an array, or a sparse array where there are edges."""
        check_is_fitted(self, "model_")
        couplings = self.model_.couplings
        if isinstance(couplings, DenseCouplings):
            return np.asarray(couplings.matrix())
        n, (i, j), w = couplings.graph.n, couplings.graph.edges.T, np.asarray(couplings.weights)
        pairs = (np.concatenate([i, j]), np.concatenate([j, i]))
        return coo_array((np.concatenate([w, w]), pairs), shape=(n, n)).tocsr()

    @property
    def components_(self) -> np.ndarray | None:
        """What couples each hidden unit to the visible ones, a row for each; None without hidden units."""
        n = self.n_features_in_
        rows = self.couplings_[n:, :n] if self.n_components else None
        return None if rows is None else np.asarray(rows.toarray() if issparse(rows) else rows)

    @property
    def bias_(self) -> np.ndarray:
        """b."""
        check_is_fitted(self, "model_")
        return np.asarray(self.model_.units.bias)

    # -- machines that are not learned ---------------------------------------------------------------------

    @classmethod
    def from_couplings(cls, couplings: Any, bias: Any = None, **parameters: Any) -> Self:
        """A fitted machine with given W and b.

        Args:
            couplings: W, symmetric with zero diagonal. A SciPy sparse matrix keeps its pairs and no others.
            bias: b; zeros if None.
            parameters: the estimator's own, ``units`` and ``n_components`` (the last so many units are hidden).

        Example:
            >>> import numpy as np
            >>> from latentia import BoltzmannMachine
            >>> pair = BoltzmannMachine.from_couplings(np.array([[0.0, 1.0], [1.0, 0.0]]), units="spin")
            >>> round(pair.log_z().estimate, 3)  # log(2e + 2/e)
            1.82
        """
        if "edges" in parameters:
            raise ParameterError("edges follow from couplings: pass a sparse matrix to leave pairs out.")
        found = _checked_couplings(couplings)
        n = found.shape[0]
        bias = np.zeros(n, np.float32) if bias is None else np.asarray(bias, np.float32)
        if bias.shape != (n,) or not np.isfinite(bias).all():
            raise ParameterError(f"bias must be {n} finite numbers, one for each unit, got shape {bias.shape}.")
        upper: Any = triu(found, 1).tocoo() if issparse(found) else np.triu(found, 1)
        edges = np.stack([upper.row, upper.col], axis=1).tolist() if issparse(found) else None
        machine = cls(**parameters, edges=None if edges is None else tuple(map(tuple, edges)))
        checks.check_parameters(machine)
        n_visible = n - machine.n_components
        if n_visible < 1:
            raise ParameterError(f"{n} units leave none visible beside n_components={machine.n_components}.")
        blueprint = {"n_features": n_visible, "edges": machine._checked_edges(n_visible)}
        model: Any = machine.build(blueprint)
        joined = model.couplings
        if isinstance(joined, SparseCouplings):
            new: Any = SparseCouplings(joined.graph, jnp.asarray(upper.data, jnp.float32))
        else:
            new = DenseCouplings(jnp.asarray(upper, jnp.float32))
        model = eqx.tree_at(lambda m: (m.couplings, m.units.bias), model, (new, jnp.asarray(bias)))
        return machine.adopt(model, blueprint)

    @classmethod
    def hopfield(cls, patterns: Any, **parameters: Any) -> Self:
        """A fitted machine that stores patterns by the Hebb rule, W = Σ ξξᵀ/n with zero diagonal.

        ``recall`` finds the pattern nearest to a damaged one while there are few of them: of random patterns about
        0.14 n (Amit, Gutfreund and Sompolinsky, 1985).

        Args:
            patterns: rows of −1 and +1, or of 0 and 1. The latter make a machine of Bernoulli units with the same
                energies, W = 4 Σ ξξᵀ/n and b_i = −½ Σ_j W_ij with ξ = 2x − 1.
            parameters: the estimator's own.
        """
        rows = np.asarray(patterns, np.float64)
        if rows.ndim != 2 or 0 in rows.shape:
            raise DataError(f"patterns must be a matrix, one pattern a row, got shape {rows.shape}.")
        spin = bool(np.isin(rows, (-1, 1)).all())
        if not spin and not np.isin(rows, (0, 1)).all():
            raise DataError("patterns must hold −1 and +1 only, or 0 and 1 only.")
        if parameters.get("n_components") or "units" in parameters:
            raise ParameterError(
                "hopfield stores patterns in visible units of their own type: no n_components or units."
            )
        xi = rows if spin else 2 * rows - 1
        couplings = xi.T @ xi / xi.shape[1]
        np.fill_diagonal(couplings, 0.0)
        if spin:
            return cls.from_couplings(couplings, units="spin", **parameters)
        return cls.from_couplings(4 * couplings, -2 * couplings.sum(axis=1), units="bernoulli", **parameters)


class _Recall(eqx.Module):
    """A function of a model and one row."""

    n_sweeps: int = eqx.field(static=True)

    def __call__(self, model: Any, x: Any, fixed: Any) -> Any:
        return recall(model, x, fixed > 0, self.n_sweeps).s[: model.n_visible]


def _rebuilding_error(model: Any, x: Any) -> Any:
    return jnp.mean((_site_means(model, x) - x) ** 2)


def _site_means(model: Any, x: Any) -> Any:
    return model.site_means(x, infer_means(model, x) if model.n_hidden else ())


def _checked_couplings(couplings: Any) -> Any:
    """W as float64, dense or CSR, refused unless it is a symmetric matrix of finite numbers without a diagonal."""
    sparse = issparse(couplings)
    found: Any = coo_array(couplings).tocsr().astype(np.float64) if sparse else np.asarray(couplings, np.float64)
    if found.ndim != 2 or found.shape[0] != found.shape[1]:
        raise ParameterError(f"couplings must be a square matrix, one row for each unit, got shape {found.shape}.")
    values = found.data if sparse else found
    if not np.isfinite(values).all():
        raise ParameterError("couplings hold NaN or infinity.")
    largest = float(abs(values).max()) if values.size else 0.0
    if abs(found.diagonal()).max(initial=0.0) > 0:
        raise ParameterError("couplings must have a zero diagonal: no unit is coupled to itself. Use bias instead.")
    if abs(found - found.T).max() > SYMMETRY * largest:
        raise ParameterError("couplings must be symmetric: W_ij and W_ji are one coupling. Pass (W + W.T) / 2.")
    return found
