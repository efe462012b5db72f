"""Detection of a collapse: a run that has failed although all of its numbers are finite.

If steps are far too long, units saturate and chains freeze, while parameters are large but plausible and all values
remain finite. A collapsed model is worse than independent sites: its reconstruction error exceeds the variance of
the rows, or its pseudo-likelihood is below that of independent sites. Without intervention such a run slowly
returns to this baseline as its rate falls, with dead units, and ends without an error.

Both measures have one sign, and larger absolute values are worse, so one rule applies to both:

    |measured|  >  WORSE · max(|independent|, |start|).

The start is included, since a run may begin worse than independent sites.

A deep machine can lose its upper layers and still satisfy this, since the lowest layer alone reconstructs the data.
So a
model that loses most of what it had learned has collapsed too:

    |measured| − best  >  FORGOTTEN · (|independent| − best),    |independent| − best  >  LEARNED · |independent|,

where best is the |measured| that was nearest to zero so far.
"""

from __future__ import annotations

from collections.abc import Mapping

#: A collapsed model is this many times worse than independent sites. Sound runs stay below 1.025, even on data with
#: no structure; failed runs were observed from 1.09 up, most of them above 1.5.
WORSE = 1.05
#: A loss of this part of the improvement over independent sites is a collapse, once the improvement has been at
#: least the second part of the baseline.
FORGOTTEN, LEARNED = 0.75, 0.2


class Guard:
    """Detects a collapsed model from its metrics.

    Args:
        independent: by the name of a metric, its value for a model of independent sites. Metrics that are not named
            are ignored.
        start: the same metrics of the model before the first step.

    >>> guard = Guard({"pseudo_likelihood": -27.0}, {"pseudo_likelihood": -27.3})
    >>> guard.collapsed({"pseudo_likelihood": -21.0}) is None
    True
    >>> print(guard.collapsed({"pseudo_likelihood": -495.0}))
    collapse: pseudo_likelihood is -495, worse than -27 for independent sites
    >>> guard.keep({"pseudo_likelihood": -21.0})
    >>> print(guard.collapsed({"pseudo_likelihood": -26.0}))
    collapse: pseudo_likelihood is -26 after -21, close to -27 for independent sites
    """

    def __init__(self, independent: Mapping[str, float], start: Mapping[str, float]):
        self.independent = dict(independent)
        self.limits = {name: WORSE * max(abs(value), abs(start[name])) for name, value in independent.items()}
        self.best = {name: start[name] for name in independent}

    def collapsed(self, metrics: Mapping[str, float]) -> str | None:
        """A description of the collapse, or None."""
        for name, limit in self.limits.items():
            forgot = self._forgot(name, metrics[name])
            if forgot or abs(metrics[name]) > limit:
                before = f" after {self.best[name]:.3g}" if forgot else ""
                return (
                    f"collapse: {name} is {metrics[name]:.3g}{before}, {'close to' if forgot else 'worse than'} "
                    f"{self.independent[name]:.3g} for independent sites"
                )
        return None

    def _forgot(self, name: str, value: float) -> bool:
        nothing, best = abs(self.independent[name]), abs(self.best[name])
        return nothing - best > LEARNED * nothing and abs(value) - best > FORGOTTEN * (nothing - best)

    def keep(self, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a chunk that was kept."""
        self.best = {name: min(best, metrics[name], key=abs) for name, best in self.best.items()}
