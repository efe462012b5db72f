"""Learning: objectives and learners by name, and the one training loop."""

from __future__ import annotations

from collections.abc import Callable

from latentia.core.algorithms import AbstractObjective, misfit
from latentia.core.errors import ParameterError, UnknownNameError
from latentia.core.model import AbstractModel
from latentia.learning import (
    contrastive,
    elbo,
    exact_likelihood,
    noise_contrast,
    ratio_matching,
    reconstruction,
    score_matching,
    variational_nce,
)

#: Objectives by name. Each factory takes the numbers it names and ignores none.
OBJECTIVES: dict[str, Callable[..., AbstractObjective]] = {
    "cd": contrastive.cd,
    "pcd": contrastive.pcd,
    "tempering": contrastive.tempering,
    "exact": exact_likelihood.ExactLikelihood,
    "hybrid": contrastive.hybrid,
    "score_matching": score_matching.ScoreMatching,
    "sliced_score_matching": score_matching.sliced,
    "denoising_score_matching": score_matching.DenoisingScoreMatching,
    "nonnegative_score_matching": score_matching.NonnegativeScoreMatching,
    "ratio_matching": ratio_matching.RatioMatching,
    "nce": noise_contrast.NCE,
    "conditional_nce": noise_contrast.ConditionalNCE,
    "vnce": variational_nce.VNCE,
    "reconstruction": reconstruction.Reconstruction,
    "elbo": elbo.ELBO,
    "iwae": elbo.IWAE,
}


def fitting(model: AbstractModel) -> list[str]:
    """The names of the objectives that can train a model."""
    return [name for name, make in OBJECTIVES.items() if misfit(make(), model) is None]


def objective(name_or_object: str | AbstractObjective, **numbers: int | float | None) -> AbstractObjective:
    """An objective by name, with those of ``numbers`` that its factory takes; an object is returned as it is."""
    if isinstance(name_or_object, AbstractObjective):
        return name_or_object
    if not isinstance(name_or_object, str):
        raise ParameterError(f"objective must be a name or an objective, got {name_or_object!r}.")
    if name_or_object not in OBJECTIVES:
        raise UnknownNameError("objective", name_or_object, OBJECTIVES)
    import inspect

    make = OBJECTIVES[name_or_object]
    former = getattr(make, "former_names", {})
    taken = {*inspect.signature(make).parameters, *(old for old, new in former.items() if new not in numbers)}
    return make(**{name: value for name, value in numbers.items() if name in taken})


__all__ = ["OBJECTIVES", "fitting", "objective"]
