"""The result of a likelihood evaluation: an interval and the method."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

from latentia.likelihood.picture import interval_html


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate between two bounds, in nats.

    Attributes:
        lower: lower end of the two-sided interval.
        upper: upper end.
        estimate: the best single number, ``lower ≤ estimate ≤ upper``.
        stderr: standard error of the estimate from the Monte-Carlo error of log Z; 0 if exact.
        method: how it was found, in words.
        details: diagnostics; numbers and strings only. ``details["warning"]``, if present, says in plain
            words why the interval should not be trusted or is wide.
    """

    #: What the number is, for people.
    title: ClassVar[str] = "Value"

    lower: float
    upper: float
    estimate: float
    stderr: float
    method: str
    details: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def width(self) -> float:
        """upper − lower."""
        return self.upper - self.lower if self.upper > self.lower else 0.0

    @property
    def is_exact(self) -> bool:
        """Whether there is no Monte-Carlo error at all."""
        return self.lower == self.upper and self.stderr == 0

    @property
    def warning(self) -> str | None:
        """Why the interval should not be trusted or is wide; None if all is well."""
        return self.details.get("warning")

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and dictionaries; JSON has no infinity, so it becomes None."""
        return {**_plain(dataclasses.asdict(self)), "width": _plain(self.width)}

    def __str__(self) -> str:
        """For instance ``-82.95 nats (two-sided [-83.01, -82.90], stderr 0.01, AIS and reverse AIS …)``."""
        if self.is_exact:
            return f"{self.estimate:.2f} nats ({self.method})"
        span = f"two-sided [{self.lower:.2f}, {self.upper:.2f}]"
        return f"{self.estimate:.2f} nats ({span}, stderr {self.stderr:.2g}, {self.method})"

    def _repr_html_(self) -> str:
        """For notebooks: the interval drawn."""
        error = "" if self.is_exact else f"standard error {self.stderr:.2g}; "
        notes = [error + self.method, f"⚠ {self.warning}" if self.warning else ""]
        return interval_html(self.title, self.lower, self.estimate, self.upper, notes)


@dataclasses.dataclass(frozen=True)
class LogZ(Interval):
    """log Z, the logarithm of the normaliser, in nats."""

    title: ClassVar[str] = "log Z"

    __str__ = Interval.__str__


@dataclasses.dataclass(frozen=True)
class LogLikelihood(Interval):
    """The mean log-likelihood per example, in nats: mean log p(x) = −mean F(x) − log Z."""

    title: ClassVar[str] = "Mean log-likelihood"

    __str__ = Interval.__str__


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    number = float(value)
    return number if math.isfinite(number) else None
