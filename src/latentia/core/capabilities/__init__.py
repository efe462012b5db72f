"""The capabilities of models: one abstract class for each.

A model that implements the methods of a class can be used with the algorithms that need it. ``gives`` describes the
use of the methods; :func:`table` lists all classes, and the documentation shows that list.
"""

from __future__ import annotations

from latentia.core.capabilities.conditional import Conditional, Restricts
from latentia.core.capabilities.density import (
    FreeEnergy,
    KnownLogZ,
    LatentFreeEnergy,
    Normalised,
    NormalisedJoint,
    PartlyDirected,
    Projected,
    Projections,
    Standardises,
)
from latentia.core.capabilities.inference import (
    Amortised,
    BinarySites,
    Clamps,
    ClampsToSites,
    Decodes,
    Encodes,
    ExactPosterior,
    ExpectedGiven,
    Infers,
    LinearSplit,
    MeanField,
    ParallelMeanField,
    ProxSplit,
    Reconstructs,
)
from latentia.core.capabilities.learning import (
    Bounded,
    Centred,
    ClosedForm,
    Constrained,
    Heats,
    Initialised,
    MStep,
    Relative,
    RelativeSlopes,
)
from latentia.core.capabilities.sampling import (
    Conditionals,
    ExactSampler,
    Settles,
    Starts,
    Tempered,
)
from latentia.core.model import AbstractModel

__all__ = [
    "Amortised",
    "BinarySites",
    "Bounded",
    "Centred",
    "Clamps",
    "ClampsToSites",
    "ClosedForm",
    "Conditional",
    "Conditionals",
    "Constrained",
    "Decodes",
    "Encodes",
    "ExactPosterior",
    "ExactSampler",
    "ExpectedGiven",
    "FreeEnergy",
    "Heats",
    "Infers",
    "Initialised",
    "KnownLogZ",
    "LatentFreeEnergy",
    "LinearSplit",
    "MStep",
    "MeanField",
    "Normalised",
    "NormalisedJoint",
    "ParallelMeanField",
    "PartlyDirected",
    "Projected",
    "Projections",
    "ProxSplit",
    "Reconstructs",
    "Relative",
    "RelativeSlopes",
    "Restricts",
    "Settles",
    "Standardises",
    "Starts",
    "Tempered",
    "methods",
    "table",
]


def methods(capability: type[AbstractModel]) -> list[str]:
    """The methods that a capability requires of a model, besides those of every model."""
    return sorted(set(capability.__abstractmethods__) - set(AbstractModel.__abstractmethods__))


def table() -> list[tuple[type[AbstractModel], list[str], str]]:
    """(capability, methods to write, what they give), in the order of the modules."""
    found = [each for each in globals().values() if isinstance(each, type) and "gives" in vars(each)]
    return [(each, methods(each), each.gives) for each in found]
