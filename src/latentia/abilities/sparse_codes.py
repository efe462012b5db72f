"""Shared parts of estimators with sparse codes: exact codes on the host, their objective, and fast encoders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from latentia.abilities.imitation import Imitated
from latentia.core.capabilities import LinearSplit
from latentia.core.errors import DataError, ParameterError
from latentia.estimator import checks, training
from latentia.estimator.declared import Parameters, param
from latentia.estimator.door import DataKind
from latentia.estimator.rows_to_learn import LearningRows
from latentia.estimator.scoring import average
from latentia.imaging.patchwise import PatchDictionary
from latentia.inference import SparseInference
from latentia.ops import penalties
from latentia.ops.examples import Examples
from latentia.ops.operators import Matrix, as_operator
from latentia.ops.whitening import mean_of

Method = Literal["auto", "cd", "lars", "ista", "fista", "omp", "ols", "iht", "working"]
Output = Literal["dense", "csr"]

#: What "auto" takes for a penalty; None where only the number of atoms is limited.
_METHODS: dict[str | None, str] = {
    None: "omp",
    "l1": "cd",
    "elastic_net": "cd",
    "group": "cd",
    "l0": "iht",
    "lq": "ista",
}
#: The penalties that each method can solve.
_SOLVES: dict[str, tuple[str | None, ...]] = {
    "cd": ("l1", "elastic_net", "group"),
    "lars": ("l1", "elastic_net"),
    "ista": ("l1", "elastic_net", "group", "l0", "lq"),
    "fista": ("l1", "elastic_net", "group"),
    "working": ("l1", "elastic_net"),
    "iht": ("l0", None),
    "omp": (None,),
    "ols": (None,),
}


def _penalty(name: str, value: Any) -> None:
    if not isinstance(value, penalties.AbstractPenalty):
        checks.one_of(*penalties.PENALTIES)(name, value)


def _error(name: str, value: Any) -> None:
    if value is not None:
        checks.number(0)(name, value)


class Penalised(Parameters):
    """The strength of what keeps codes sparse, which comes second where parameters are given without names."""

    alpha: float = param(
        default=0.1,
        check=checks.number(0, open_low=True),
        doc="strength of the penalty; not divided by the number of features.",
        kw_only=False,
    )


class SparseEstimator(PatchDictionary, Penalised, Imitated):
    """Codes z = argmin ½‖x − zD‖² + penalty(z)."""

    accepts: ClassVar[frozenset[DataKind]] = frozenset({"sparse"})

    penalty: Any = param(
        default="l1",
        check=_penalty,
        doc='"l1", "elastic_net", "l0", "lq", "group", or an object of ``latentia.ops.penalties``.',
    )
    ratio: float = param(default=0.5, check=checks.number(0, 1), doc="elastic net: fraction of the ℓ1 norm.")
    q: float = param(
        default=0.5,
        check=checks.number(0, 1, open_low=True, open_high=True),
        doc="ℓq penalty: the power, between 0 and 1.",
    )
    groups: Any = param(default=None, doc="group penalty: the group number of every atom.")
    n_nonzero: int | None = param(
        default=None,
        check=checks.integer(1, optional=True),
        doc="maximal number of atoms in a code, by matching pursuit; alpha and penalty are then ignored.",
    )
    error: float | None = param(
        default=None,
        check=_error,
        doc="squared error ‖x − zD‖² at which matching pursuit stops; instead of n_nonzero, or together with it.",
    )
    inference: Method = param(
        default="auto",
        check=checks.one_of(*_SOLVES, "auto"),
        doc='solver of the codes: "cd", "lars", "ista", "fista", "omp", "ols", "iht", "working" (for an '
        'accelerator); "auto" by the penalty.',
    )
    nonnegative_codes: bool = param(default=False, check=checks.flag, doc="codes without negative entries.")
    center: bool = param(
        default=False,
        check=checks.flag,
        doc="subtract the mean of the data first, and add it in reconstructions.",
    )
    tol: float = param(
        default=1e-4,
        check=checks.number(0, open_low=True),
        doc="largest relative duality gap of the codes.",
    )
    max_code_iter: int | None = param(
        default=None,
        check=checks.integer(1, optional=True),
        doc="maximal number of iterations per code; None for the solver's default.",
    )
    n_threads: int | None = param(
        default=None,
        check=checks.integer(1, optional=True),
        doc="threads of the compiled solvers; None for all cores. The result is the same for any number.",
    )

    # -- what the parameters say ---------------------------------------------------------------------------

    def _rule(self) -> dict[str, Any] | None:
        """The penalty in plain values (see :func:`latentia.ops.penalties.penalty`); None for a count of atoms."""
        if self.n_nonzero is not None or self.error is not None:
            return None
        given = self.penalty
        if isinstance(given, penalties.AbstractPenalty):
            plain = {name: value for name, value in vars(given).items() if value is not None}
            lists = ("weights", "groups")
            return {"name": given.name} | {
                name: np.asarray(value).tolist()
                if name in lists
                else (bool if name == "nonnegative" else float)(value)
                for name, value in plain.items()
            }
        own = {"elastic_net": {"ratio": self.ratio}, "lq": {"q": self.q}, "group": {"groups": self._groups()}}
        nonnegative = bool(self.nonnegative_codes)
        return {"name": given, "alpha": float(self.alpha), "nonnegative": nonnegative, **own.get(given, {})}

    def _groups(self) -> list[int] | None:
        return None if self.groups is None else np.asarray(self.groups).tolist()

    def _inference(self) -> SparseInference:
        """How codes are found; refuses what does not go together."""
        rule = self._rule()
        name = None if rule is None else rule["name"]
        method = _METHODS[name] if self.inference == "auto" else self.inference
        if name not in _SOLVES[method]:
            what = "a limited number of atoms (n_nonzero, error)" if name is None else f"the penalty {name!r}"
            able = [other for other, solves in _SOLVES.items() if name in solves]
            raise ParameterError(f"inference={method!r} cannot solve {what}. Use {' or '.join(able)}, or 'auto'.")
        if name is None and method == "iht" and self.n_nonzero is None:
            raise ParameterError(
                "inference='iht' needs n_nonzero; a limit on the error alone is for 'omp' and 'ols'."
            )
        if name is None and self.nonnegative_codes:
            raise ParameterError(
                "A limited number of atoms (n_nonzero, error) has no non-negative version. Use a penalty instead."
            )
        return SparseInference(
            method,
            tol=float(self.tol),
            max_iter=self.max_code_iter,
            n_nonzero=self.n_nonzero,
            error=None if self.error is None else float(self.error),
            n_threads=self.n_threads,
        )

    def _check_size(self, n_components: int) -> None:
        if self.n_nonzero is not None and self.n_nonzero > n_components:
            raise ParameterError(f"n_nonzero={self.n_nonzero} is more than the {n_components} atoms.")
        rule = self._rule()
        if rule is None:
            return
        penalties.penalty(**rule)  # which has its own objections
        wanted = {"groups": n_components}
        wanted["weights"] = n_components if rule["name"] != "group" else len(set(rule["groups"]))
        for name, n in wanted.items():
            if rule.get(name) is not None and len(rule[name]) != n:
                raise ParameterError(f"{name} must have {n} entries here, got {len(rule[name])}.")

    # -- codes ---------------------------------------------------------------------------------------------

    def _signals(self, X: Any) -> Iterator[Any]:
        """The rows, checked, as float32 in blocks; a sparse matrix stays one, unless a mean must be subtracted."""
        check_is_fitted(self, "model_")
        rows = self._accept(X, reset=False)
        if rows.is_sparse and not self.center:
            yield rows.parts
        else:
            yield from rows.blocks()

    def codes(self, X: Any, *, output: Output = "csr") -> Any:
        """Codes with certificates: the :class:`latentia.inference.sparse.Codes` of the rows.

        Args:
            X: data, ``(n, n_features)``: an array, a data frame, a sparse matrix or a memory map.
            output: "csr" or "dense".
        """
        from latentia.inference.sparse import Codes

        checks.one_of("csr", "dense")("output", output)
        model = self._needs(LinearSplit, "codes")
        found = [self._inference().encode(model, block, output=output) for block in self._signals(X)]
        if len(found) == 1:
            return found[0]
        stack: Any = sp.vstack if output == "csr" else np.concatenate
        rest = [np.concatenate([getattr(c, n) for c in found]) for n in ("gaps", "n_iter", "converged")]
        return Codes(stack([c.values for c in found]), *rest)

    def transform(self, X: Any, *, output: Output = "dense") -> Any:
        """The sparse codes of the rows, ``(n, n_components)``.

        Args:
            X: data, ``(n, n_features)``: an array, a data frame, a sparse matrix or a memory map.
            output: "dense", or "csr" for a SciPy sparse matrix.
        """
        return self.codes(X, output=output).values

    def _decoded(self, X: Any) -> np.ndarray:
        """zD (plus the mean) for given codes, which may be a sparse matrix."""
        check_is_fitted(self, "model_")
        Z: Any = sp.csr_array(X) if sp.issparse(X) else np.asarray(X, np.float32)
        if Z.ndim != 2 or Z.shape[1] != self._n_features_out:
            raise DataError(f"Codes must be a matrix with {self._n_features_out} columns, got shape {Z.shape}.")
        operator = as_operator(self.model_.operator)
        if not isinstance(operator, Matrix):
            z = operator.unflat_code(jnp.asarray(Z.toarray() if sp.issparse(Z) else Z, jnp.float32))
            return np.asarray(operator.flat_signal(jax.vmap(self.model_.decode)(z)))
        found = np.asarray(Z.astype(np.float32) @ np.asarray(operator.atoms))
        return found if self.model_.mean is None else found + np.asarray(self.model_.mean)

    def objective(self, X: Any) -> np.ndarray:
        """½‖x − zD‖² + penalty(z) of every row at its code; without the penalty for a limited number of atoms."""
        model, inference = self._needs(LinearSplit, "objective"), self._inference()
        found = []
        for block in self._signals(X):
            codes = inference.encode(model, block)
            found.append(codes.objective(model.signal(block), model.operator, model.penalty))
        return np.concatenate(found)

    def _score(self, X: Any) -> float:
        """Minus the mean objective of the rows: higher is better."""
        return -float(np.mean(self.objective(X)))

    def _lacks(self, method: str) -> str | None:
        if method != "score_samples":
            return None
        return (
            "its codes are not summed out, so log p(x) is not known. objective(X) says how well every row is "
            "represented; score(X) compares models by its mean."
        )

    def validation_scorer(self, rows: Any, weights: Any = None) -> Any:
        """Early stopping goes by the objective of held-out rows."""
        inference, examples = self._inference(), Examples.of(rows)

        def score(model: Any) -> float:
            found = []
            for block in examples.portions():
                codes = inference.encode(model, block)
                found.append(codes.objective(model.signal(block), model.operator, model.penalty))
            return -average(np.concatenate(found), weights)

        return score

    @property
    def components_(self) -> np.ndarray:
        """D, one atom a row."""
        check_is_fitted(self, "model_")
        return np.asarray(self.model_.dictionary)

    # -- beginning -----------------------------------------------------------------------------------------

    def _begin_with(self, model: Any, rows: LearningRows, dictionary: Any) -> Any:
        """The model with a given dictionary (if any) and, where it subtracts one, the mean of the training rows."""
        if dictionary is not None:
            model = model.with_dictionary(checked_dictionary(dictionary, model.dictionary.shape))
        if self.center:
            mean = mean_of(lambda: training.blocks(rows.training), rows.weights)
            model = eqx.tree_at(lambda m: m.mean, model, jnp.asarray(mean, model.mean.dtype))
        return model

    def _check_domain(self, X: Examples, spaces: Any) -> None:
        """Any finite numbers will do."""
        del X, spaces


def checked_dictionary(dictionary: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """A given dictionary (or the .npy file that holds it) as float32; refuses one that cannot be used."""
    if isinstance(dictionary, str | Path):
        try:
            dictionary = np.load(dictionary, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"The dictionary {dictionary!s} is no .npy file that can be read: {error}") from error
    try:
        found = np.asarray(dictionary, np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"The dictionary must be a matrix of numbers, atoms in rows: {error}") from error
    if found.ndim != 2 or 0 in found.shape:
        raise DataError(f"The dictionary must be a matrix with one atom per row, got shape {found.shape}.")
    if shape is not None and found.shape != shape:
        raise DataError(
            f"The dictionary has shape {found.shape}; expected {shape}: atoms in rows, one column a feature."
        )
    if not np.isfinite(found).all():
        raise DataError("The dictionary holds NaN or infinite numbers.")
    empty = ~np.any(found != 0, axis=1)
    if empty.any():
        raise DataError(
            f"Atom {int(np.argmax(empty))} of the dictionary is zero. Leave it out or give it a direction."
        )
    return found
