"""Dictionary learning: atoms D such that signals have sparse codes z, x ≈ zD.

Each update of the atoms is a learner of the one training loop; what they share stands in
:mod:`latentia.learning.dictionary.base`. :class:`OperatorGradient` learns the parameters of any linear operator.
"""

from __future__ import annotations

from latentia.learning.dictionary.atoms import Constraint
from latentia.learning.dictionary.base import DictionaryLearner
from latentia.learning.dictionary.online import Online
from latentia.learning.dictionary.operator_gradient import OperatorGradient
from latentia.learning.dictionary.whole import KSVD, Gradient, OptimalDirections

#: The updates by name.
UPDATES: dict[str, type[DictionaryLearner]] = {
    "online": Online,
    "gradient": Gradient,
    "mod": OptimalDirections,
    "ksvd": KSVD,
}

__all__ = [
    "KSVD",
    "UPDATES",
    "Constraint",
    "DictionaryLearner",
    "Gradient",
    "Online",
    "OperatorGradient",
    "OptimalDirections",
]
