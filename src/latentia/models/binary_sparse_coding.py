"""Binary sparse coding: examples are sums of atoms that are on or off, in normal noise.

    E(x, z) = −log p(x, z) = Σ_i [S(b_i) − b_i z_i] + ½ Σ_j β_j (x_j − W_jᵀz)² + ½ Σ_j log(2π/β_j),      log Z = 0,
    p(z_i = 1 | x, others) = σ(b_i + xᵀBW_i − ½ W_iᵀBW_i − Σ_{j≠i} W_iᵀBW_j z_j),      B = diag(β).

Atoms W, how often each is on (b) and the noise β are learned by EM, with posteriors by any inference that fits. See
:mod:`latentia.energies.binary_sparse_coding` for the formulas.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
import numpy as np

from latentia.core import space
from latentia.core.algorithms import AbstractInference
from latentia.energies.binary_sparse_coding import BinarySparseCodingModel
from latentia.estimator import checks
from latentia.estimator.batch import BatchEstimator
from latentia.estimator.declared import changed, param
from latentia.estimator.rows_to_learn import LearningRows, some_rows
from latentia.inference import (
    Enumeration,
    GibbsInference,
    MeanFieldInference,
    TruncatedInference,
    variational_energy,
)
from latentia.learning import fit as loop
from latentia.learning.em import EM
from latentia.learning.progress import display
from latentia.ops import random
from latentia.ops.compiling import jitted

Inference = Literal["auto", "exact", "truncated", "mean_field", "parallel_mean_field", "gibbs"]
Noise = Literal["shared", "per_feature"]
Annealed = Literal["posterior", "likelihood"]

#: Up to so many atoms "auto" goes through all their states.
FEW = 10
#: Rows on which starts are tried (at least so many, and so many for every atom: what is learned from too few is
#: noise that EM hardly ever leaves), and steps at temperature 1 before they are compared.
START_ROWS, ROWS_PER_ATOM, SETTLING = 4096, 100, 10


class BinarySparseCoding(BatchEstimator):
    """Binary sparse coding: sums of atoms that are on or off, in normal noise; fitted by EM.

    There is no intercept: subtract the mean of data that are not sums of parts.

    Example:
        >>> import numpy as np
        >>> from latentia import BinarySparseCoding
        >>> rng = np.random.default_rng(0)
        >>> on = rng.random((300, 2)) < 0.4
        >>> X = on @ np.array([[4.0, 4.0, 0.0], [0.0, 4.0, 4.0]]) + 0.1 * rng.normal(size=(300, 3))
        >>> coder = BinarySparseCoding(n_components=2, random_state=0).fit(X)
        >>> bool(np.abs(coder.reconstruct(X) - X).mean() < 0.1)
        True

    Reference:
        Henniges, Puertas, Bornschein, Eggert and Lücke (2010), *Binary sparse coding*.
    """

    family = "binary-sparse-coding"

    n_components = changed(default=16, doc="number of atoms.")
    inference: Inference = param(
        default="auto",
        check=checks.one_of(*get_args(Inference)),
        doc='inference of the posteriors: "exact" (all states of the atoms), "truncated" (the best states of a '
        'search), "mean_field" (atom after atom), "parallel_mean_field" (all atoms at once, damped), "gibbs" '
        '(averages over chains); "auto" is exact for up to 10 atoms and truncated for more.',
    )
    n_best_states: int = param(
        default=32, check=checks.integer(1), doc="number of states of a truncated posterior."
    )
    n_sweeps: int = param(default=50, check=checks.integer(1), doc="number of Gibbs sweeps to average over.")
    noise: Noise = param(
        default="shared",
        check=checks.one_of(*get_args(Noise)),
        doc='noise variance: "shared" by all features, or one "per_feature".',
    )
    temperature: float = param(
        default=1.7, check=checks.number(1), doc="initial temperature of the posteriors; 1 does not anneal."
    )
    annealed: Annealed = param(
        default="posterior",
        check=checks.one_of(*get_args(Annealed)),
        doc='what the temperature applies to: the whole "posterior", or the "likelihood" alone, which keeps codes '
        "sparse while the temperature is high (for image patches, together with a temperature of 4).",
    )
    n_annealing: int = param(default=50, check=checks.integer(0), doc="EM steps until the temperature is 1.")
    n_init: int = param(
        default=4,
        check=checks.integer(1),
        doc="annealed starts, on up to 4096 rows each (100 per atom, if that is more); the one with the best bound "
        "is continued with all rows.",
    )
    n_epochs = changed(default=300)
    random_state = changed(doc="seed of the start.")

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> BinarySparseCodingModel:
        """A model with the right shapes; its ``initialise`` places it."""
        return BinarySparseCodingModel.make(
            blueprint["n_features"],
            self.n_components,
            key=random.key(seed),
            shared_noise=self.noise == "shared",
            inference=self._inference(),
        )

    def _inference(self) -> AbstractInference:
        name = self.inference
        if name == "auto":
            name = "exact" if self.n_components <= FEW else "truncated"
        if name == "exact":
            return Enumeration()
        if name == "truncated":
            return TruncatedInference(self.n_best_states)
        if name == "gibbs":
            return GibbsInference(self.n_sweeps)
        return MeanFieldInference(parallel=name == "parallel_mean_field")

    def _learner(self, plan: Any) -> EM:
        del plan
        return EM(self._inference())

    def _pretrain(self, model: Any, rows: LearningRows, seed: int, plan: Any) -> Any:
        """The best of the annealed starts."""
        del plan
        n_steps = self.n_annealing + SETTLING
        learner = EM(
            self._inference(),
            temperature=self.temperature,
            n_annealing=self.n_annealing,
            heat_prior=self.annealed == "posterior",
        )
        few = some_rows(rows.training, seed, rows.weights, max(START_ROWS, ROWS_PER_ATOM * self.n_components))
        starts = []
        for start in range(self.n_init):
            settings = loop.Settings(n_steps, len(few), seed=seed, chunk=n_steps, stage=f"start {start + 1}")
            settings.display = display(self.verbose, f"{type(self).__name__}: {settings.stage}")
            key = jax.random.fold_in(random.key(seed), start)
            begun = _initialised(model, few, key)
            result = loop.fit(begun, few, learner, self._prepare(model), settings, key=key)
            starts.append((float(_bound(result.model, few, key)), result.model))
        return max(starts, key=lambda each: each[0])[1]

    @property
    def components_(self) -> np.ndarray:
        """The atoms, one a row."""
        return np.asarray(self.model_.weights).T

    @property
    def probabilities_(self) -> np.ndarray:
        """The probability of every atom to be on."""
        return 1 / (1 + np.exp(-np.asarray(self.model_.bias, np.float64)))

    @property
    def noise_variance_(self) -> np.ndarray:
        """1/β, of every feature."""
        return 1 / np.asarray(self.model_.precision())


@jitted
def _initialised(model: BinarySparseCodingModel, rows: Any, key: Any) -> BinarySparseCodingModel:
    return model.initialise(space.encode(model.x_space, rows), key=key)


@jitted
def _bound(model: BinarySparseCodingModel, rows: Any, key: Any) -> Any:
    x = space.encode(model.x_space, rows)
    q = model.inference.infer_many(model, x, key=key)
    return -jax.numpy.mean(jax.vmap(lambda x, q: variational_energy(model, x, q))(x, q))
