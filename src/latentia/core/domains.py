"""The only list of domains, the sets of values of a variable. This module imports nothing large."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

Domain = Literal["binary", "spin", "categorical", "real", "nonnegative", "count", "simplex"]


class Kind(NamedTuple):
    """What all variables of a domain have in common: their values in words, and the ends of an entry's range."""

    values: str
    low: float
    high: float


#: Every domain and what it is.
KINDS: dict[Domain, Kind] = {
    "binary": Kind("0 or 1", 0.0, 1.0),
    "spin": Kind("-1 or +1", -1.0, 1.0),
    "categorical": Kind("one of several states", 0.0, 1.0),
    "real": Kind("any number", -math.inf, math.inf),
    "nonnegative": Kind("at least 0", 0.0, math.inf),
    "count": Kind("a whole number of at least 0", 0.0, math.inf),
    "simplex": Kind("shares: at least 0, with a sum of 1", 0.0, 1.0),
}
