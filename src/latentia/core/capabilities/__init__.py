"""What a model may be able to do: one abstract class for each thing.

The rule is "implement these methods, get those algorithms". Each class says in ``gives`` what its methods are good
for; :func:`table` lists them all, and the documentation shows that list.
"""

from __future__ import annotations

from latentia.core.capabilities.conditional import Conditional, Restricts
from latentia.core.capabilities.density import (
    FreeEnergy,
    KnownLogZ,
    LatentFreeEnergy,
    Normalised,
    PartlyDirected,
    Projected,
    Projections,
    Standardises,
)
from latentia.core.capabilities.inference import (
    Amortised,
    Clamps,
    Decodes,
    Encodes,
    ExactPosterior,
    ExpectedGiven,
    MeanField,
    ProxSplit,
    Reconstructs,
)
from latentia.core.capabilities.learning import (
    Bounded,
    Centred,
    ClosedForm,
    Constrained,
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
    "Bounded",
    "Centred",
    "Clamps",
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
    "Initialised",
    "KnownLogZ",
    "LatentFreeEnergy",
    "MStep",
    "MeanField",
    "Normalised",
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
    """What a capability asks a model to write, beyond what every model writes."""
    return sorted(set(capability.__abstractmethods__) - set(AbstractModel.__abstractmethods__))


def table() -> list[tuple[type[AbstractModel], list[str], str]]:
    """(capability, methods to write, what they give), in the order of the modules."""
    found = [each for each in globals().values() if isinstance(each, type) and "gives" in vars(each)]
    return [(each, methods(each), each.gives) for each in found]
