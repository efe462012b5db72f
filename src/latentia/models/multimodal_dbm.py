"""Multimodal deep Boltzmann machines: one pathway per kind of data, joined at the top.

Every modality m has visible units of its own type and its own hidden layers; the highest of each pathway is coupled
to one joint layer j, so that E is a sum of one deep Boltzmann machine per pathway over a shared top:

    E(x, z) = Σ_m [E_m(x_m) + Σ_l couplings along pathway m + coupling(h_m^top, j)] − cᵀj.

A modality that is missing is one more layer without data: mean field infers it, clamped Gibbs sampling generates
it, and the joint code given one modality is comparable with the joint code given another. Reference: Srivastava and
Salakhutdinov (2012, 2014). The energy and all that follows from it: :mod:`latentia.energies.layered`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from scipy.sparse import issparse

from latentia.abilities.finetuning import Finetunes
from latentia.abilities.label_units import Labelled
from latentia.core import space
from latentia.core.errors import DataError, ParameterError
from latentia.energies.layered import LayeredModel, apply_switches, label_energies
from latentia.estimator import checks
from latentia.estimator.declared import changed, param
from latentia.estimator.door import DataKind
from latentia.estimator.gradient import GradientEstimator
from latentia.estimator.groups import Centring, Chains, InitialWeights, MeanField, Objective, Replicas
from latentia.estimator.rows import apply_rows
from latentia.inference import infer_means
from latentia.ops import random
from latentia.ops.examples import Examples, side_by_side
from latentia.units import Bernoulli
from latentia.units import make as make_units

VISIBLE = ("bernoulli", "spin", "gaussian", "categorical")


class MultimodalDBM(
    Labelled, Finetunes, Objective, Chains, MeanField, Replicas, Centring, InitialWeights, GradientEstimator
):
    """Deep Boltzmann machine over several kinds of data.

    Data are given as one matrix with the modalities' columns side by side, or as a mapping from their names to
    matrices; ``transform``, ``joint``, ``impute``, ``retrieve`` and ``predict`` also take mappings that lack some.

    Example:
        >>> import numpy as np
        >>> from latentia import MultimodalDBM
        >>> rng = np.random.default_rng(0)
        >>> data = {"image": rng.normal(size=(60, 4)), "text": rng.normal(size=(60, 2))}
        >>> machine = MultimodalDBM({"image": 4, "text": 2}, hidden=(3,), joint=3, n_epochs=2, random_state=0)
        >>> machine.fit(data).impute({"image": data["image"]})["text"].shape
        (60, 2)

    References:
        Srivastava and Salakhutdinov (2012, 2014).
    """

    family = "multimodal-dbm"
    accepts: ClassVar[frozenset[DataKind]] = frozenset({"parts"})

    modalities: Mapping[str, int] | None = param(
        default=None,
        doc='names and numbers of columns, in the order of the columns; None halves the columns into "first" '
        'and "second".',
        kw_only=False,
    )
    visible: str | Sequence[str] = param(
        default="gaussian",
        doc='type of the visible units ("gaussian", "bernoulli", "spin", "categorical"), for all modalities or '
        "one for each.",
    )
    hidden: Sequence[Any] = param(
        default=(64,),
        doc="sizes of the hidden layers of every pathway, from below; one tuple for all, or one for each.",
    )
    joint: int = param(default=64, check=checks.integer(1), doc="size of the joint layer.")

    objective = changed(doc='"pcd", "cd", "tempering", or an objective object.')
    n_sampler_steps = 5
    learning_rate = 0.003
    clip = 10.0
    weight_scale = changed(
        doc="standard deviation of the initial weights at the visibles; narrow hidden layers start larger.",
    )
    early_stopping = changed(doc="stop when the held-out rows are no longer reconstructed better.")
    monitor = changed(
        doc='whether to record the squared error of the reconstructions of a few training rows: "auto" and '
        '"always" do, None does not.',
    )

    # -- structure -----------------------------------------------------------------------------------------

    def _blueprint(self, X: Examples) -> dict[str, Any]:
        facts = self._structure(X.n_columns)
        ends = np.cumsum([0, *facts["modalities"].values()])
        for number, (begin, end) in enumerate(itertools.pairwise(ends)):
            if facts["units"][number] == "categorical":
                facts["n_states"][number] = max(
                    2, 1 + max(int(side_by_side(block)[:, begin:end].max()) for block in X.blocks())
                )
        return facts

    def _structure(self, n_features: int) -> dict[str, Any]:
        """What the parameters alone say of the modalities; categorical sites have two states until data come."""
        widths = self._widths(n_features)
        units = [self.visible] * len(widths) if isinstance(self.visible, str) else list(self.visible)
        if len(units) != len(widths):
            raise ParameterError(f"visible names {len(units)} unit types for {len(widths)} modalities.")
        for kind in units:
            checks.one_of(*VISIBLE)("visible", kind)
        states = [2 if kind == "categorical" else None for kind in units]
        return {"n_features": n_features, "modalities": widths, "units": units, "n_states": states}

    def _widths(self, n: int) -> dict[str, int]:
        if self.modalities is None:
            if n < 2:
                raise DataError(f"X has n_features = {n}, but a multimodal machine needs one column per modality.")
            return {"first": n // 2, "second": n - n // 2}
        given = dict(self.modalities) if isinstance(self.modalities, Mapping) else {}
        if len(given) < 2 or not all(isinstance(w, int | np.integer) and w > 0 for w in given.values()):
            raise ParameterError(
                f"modalities must name at least two kinds of data with their numbers of columns, such as "
                f"{{'image': 128, 'text': 10}}, got {self.modalities!r}."
            )
        if sum(given.values()) != n:
            raise DataError(f"X has {n} columns, but the modalities {given} have {sum(given.values())} together.")
        return {name: int(width) for name, width in given.items()}

    def _pathways(self, n: int) -> list[tuple[int, ...]]:
        nested = bool(len(self.hidden)) and not all(isinstance(size, int | np.integer) for size in self.hidden)
        pathways = [tuple(p) for p in self.hidden] if nested else [tuple(self.hidden)] * n
        if len(pathways) != n:
            raise ParameterError(f"hidden describes {len(pathways)} pathways for {n} modalities.")
        for pathway in pathways:
            checks.sizes(1)("hidden", pathway)
        return pathways

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> LayeredModel:
        """Small random weights along every pathway and to the joint layer; labels, if any, joined there too."""
        facts = blueprint if "modalities" in blueprint else self._structure(blueprint["n_features"])
        widths = facts["modalities"]
        kinds = zip(facts["units"], widths.values(), facts["n_states"], strict=True)
        visible = [make_units(kind, width, states) for kind, width, states in kinds]
        if "classes" in blueprint:
            visible.append(make_units("categorical", 1, len(blueprint["classes"])))
        edges, sizes, first = [], [], len(visible)
        for m, pathway in enumerate(self._pathways(len(widths))):
            chain = [m, *(first + len(sizes) + i for i in range(len(pathway)))]
            edges += [*itertools.pairwise(chain), (chain[-1], -1)]
            sizes += pathway
        top = first + len(sizes)
        edges = [(i, top if j < 0 else j) for i, j in edges]
        edges += [(first - 1, top)] if "classes" in blueprint else []
        layers = [Bernoulli.make(int(n)) for n in (*sizes, self.joint)]
        return LayeredModel.make(visible, layers, edges, key=random.key(seed), weight_scale=self.weight_scale)

    # -- data ----------------------------------------------------------------------------------------------

    def part_sizes(self, n_features: int | None) -> dict[str, int] | None:
        """Names and numbers of columns of the modalities, as far as they are known."""
        if n_features is not None:
            return self.blueprint_["modalities"]
        return None if self.modalities is None else self._widths(sum(dict(self.modalities).values()))

    # -- use -----------------------------------------------------------------------------------------------

    def _switches(self) -> tuple[np.ndarray, np.ndarray]:
        """Codes with one unit on and off; the layers below it follow it down, the others stay at their means."""
        return apply_switches(self.model_)

    def joint_code(self, X: Any) -> np.ndarray:
        """Mean-field activities of the joint layer, given the modalities that there are."""
        return apply_rows(_joint, self._needs(LayeredModel, "joint_code"), self._visibles(X, purpose="coding"))

    def impute(
        self, X: Mapping[str, Any], *, n_draws: int = 10, n_steps: int = 100, random_state: Any = None
    ) -> dict[str, np.ndarray]:
        """Means of the modalities that are missing, given those that there are.

        Averages over several clamped chains: mean field would converge to one of the modes.
        """
        drawn = self.sample(
            n_draws, given=self._with_gaps(X), n_steps=n_steps, mean=True, random_state=random_state
        )
        spaces = space.seen(self.model_.x_space, self.n_features_in_)
        means = drawn.reshape(-1, n_draws, drawn.shape[1]).mean(axis=1)
        return self._missing(
            X, [leaf.flatten(part) for leaf, part in zip(spaces, space.unflatten(spaces, means), strict=True)]
        )

    def generate(
        self, X: Mapping[str, Any], *, n_steps: int = 200, random_state: Any = None
    ) -> dict[str, np.ndarray]:
        """Draws of the modalities that are missing, by clamped Gibbs sampling, one per row."""
        drawn = self.sample(1, given=self._with_gaps(X), n_steps=n_steps, random_state=random_state)
        ends = np.cumsum(list(self.blueprint_["modalities"].values()))[:-1]
        return self._missing(X, np.split(drawn, ends, axis=1))

    def _with_gaps(self, X: Mapping[str, Any]) -> np.ndarray:
        """One matrix with NaN where a modality is missing."""
        if not _named(X):
            raise DataError("Pass a mapping from the names of the modalities that there are to matrices.")
        self._visibles(X, purpose="coding")  # checks what is given
        widths, n = self.blueprint_["modalities"], len(next(iter(X.values())))
        return np.column_stack(
            [X[name] if name in X else np.full((n, width), np.nan) for name, width in widths.items()]
        )

    def _missing(self, X: Mapping[str, Any], parts: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        named = zip(self.blueprint_["modalities"], parts, strict=True)
        return {name: part for name, part in named if name not in X}

    def retrieve(
        self, queries: Mapping[str, Any], database: Mapping[str, Any], n_neighbors: int = 10, by: str = "joint"
    ) -> np.ndarray:
        """For every query the numbers of the nearest rows of the database, nearest first: :meth:`similarity`."""
        checks.integer(1)("n_neighbors", n_neighbors)
        similarity = self.similarity(queries, database, by)
        return np.argsort(-similarity, axis=1, kind="stable")[:, :n_neighbors]

    def similarity(self, queries: Mapping[str, Any], database: Mapping[str, Any], by: str = "joint") -> np.ndarray:
        """Cosines between every query and every row of the database.

        Args:
            queries: some modalities by name.
            database: some modalities by name, not necessarily the same.
            by: "joint" compares the joint codes, centred on the training data's; "labels" compares p(y | what is
                there), for machines with label units.
        """
        checks.one_of("joint", "labels")("by", by)
        if by == "labels" and not self.has_labels:
            raise ParameterError("by='labels' needs label units: fit(X, y).")
        centre = np.asarray(self.model_.offsets[-1])
        code = self._label_probabilities if by == "labels" else lambda side: self.joint_code(side) - centre
        codes = [code(side) for side in (queries, database)]
        rows = [code / np.maximum(np.linalg.norm(code, axis=1, keepdims=True), 1e-12) for code in codes]
        return rows[0] @ rows[1].T

    def _label_probabilities(self, X: Any) -> np.ndarray:
        """p(y | what is there) from the variational energy with every label in turn."""
        *parts, _ = self._visibles(X, purpose="coding")
        energies = apply_rows(label_energies, self.model_, tuple(parts)).astype(np.float64)
        p = np.exp(energies.min(axis=1, keepdims=True) - energies)
        return p / p.sum(axis=1, keepdims=True)

    def _feed_forward(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The joint layer over the highest layers of the pathways; labels, if any, stand at their offsets."""
        model = self.model_
        ends = _below_joint(model)
        weights = np.concatenate([np.asarray(model.weights[edge]) for _, edge in ends])
        offsets = np.concatenate([np.asarray(model.offsets[layer]) for layer, _ in ends])
        return [(weights, np.asarray(model.hidden[-1].bias) - offsets @ weights)]

    def _network_inputs(self, X: Any) -> np.ndarray:
        """Mean-field activities of the highest layers of the pathways."""
        return apply_rows(_pathway_ends, self.model_, self._visibles(X, purpose="coding"))


def _named(X: Any) -> bool:
    """Whether data are given by the names of their modalities (one of SciPy's sparse matrices is a mapping too)."""
    return isinstance(X, Mapping) and not issparse(X)


def _below_joint(model: LayeredModel) -> list[tuple[int, int]]:
    """(layer, edge) of every hidden layer that is coupled to the joint one."""
    top, first = len(model.layers) - 1, len(model.visible)
    return [(i, edge) for edge, (i, j) in enumerate(model.edges) if j == top and i >= first]


def _pathway_ends(model: LayeredModel, x: Any) -> Any:
    means = infer_means(model, x)
    return jnp.concatenate([means[layer - len(model.visible)] for layer, _ in _below_joint(model)])


def _joint(model: LayeredModel, x: Any) -> Any:
    return infer_means(model, x)[-1]
