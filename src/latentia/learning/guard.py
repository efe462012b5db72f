"""When a run has gone wrong although all of its numbers are finite.

Steps that are far too long can drive a machine into a corner: its units saturate, its chains freeze, its
parameters are large but not absurd, and nothing that it computes is ever infinite. What gives it away is that it
knows less than nothing: its reconstructions miss the rows by more than their mean would, or its pseudo-likelihood
is below that of sites that have nothing to do with each other. Left alone, such a run creeps back to that baseline
as its rate falls, with dead units, and ends without a complaint.

Both measures lie on one side of zero, and away from it is worse, so that one rule serves for them:

    |measured|  >  WORSE · max(|independent|, |start|).

The start counts too, since a run may begin worse than ignorant, and has a right to.

A deep machine can lose its upper layers and stay just within that, since the lowest one rebuilds the data alone. So
a model that had learned something and forgets most of it has collapsed too:

    |measured| − best  >  FORGOTTEN · (|independent| − best),    |independent| − best  >  LEARNED · |independent|,

where best is the |measured| that was nearest to zero so far.
"""

from __future__ import annotations

from collections.abc import Mapping

#: A collapsed model is this many times worse than an ignorant one. Sound runs stay below 1.025, even on data with
#: no structure; runs that came to nothing were seen from 1.09 up, most of them above 1.5.
WORSE = 1.05
#: The part of what a model knew that only a collapse takes from it, and the part of all that there is to know from
#: which on it is judged by that.
FORGOTTEN, LEARNED = 0.75, 0.2


class Guard:
    """Tells a collapsed model by its metrics.

    Args:
        independent: by the name of a metric, its value for a model of independent sites. Metrics that are not named
            are not judged.
        start: the same metrics of the model before the first step.

    >>> guard = Guard({"pseudo_likelihood": -27.0}, {"pseudo_likelihood": -27.3})
    >>> guard.collapsed({"pseudo_likelihood": -21.0}) is None
    True
    >>> print(guard.collapsed({"pseudo_likelihood": -495.0}))
    collapse: pseudo_likelihood is -495, for a model that knows nothing it is -27
    >>> guard.keep({"pseudo_likelihood": -21.0})
    >>> print(guard.collapsed({"pseudo_likelihood": -26.0}))
    collapse: pseudo_likelihood is -26 after -21, for a model that knows nothing it is -27
    """

    def __init__(self, independent: Mapping[str, float], start: Mapping[str, float]):
        self.independent = dict(independent)
        self.limits = {name: WORSE * max(abs(value), abs(start[name])) for name, value in independent.items()}
        self.best = {name: start[name] for name in independent}

    def collapsed(self, metrics: Mapping[str, float]) -> str | None:
        """What has happened, or None if nothing has."""
        for name, limit in self.limits.items():
            forgot = self._forgot(name, metrics[name])
            if forgot or abs(metrics[name]) > limit:
                before = f" after {self.best[name]:.3g}" if forgot else ""
                return (
                    f"collapse: {name} is {metrics[name]:.3g}{before}, for a model that knows nothing it is "
                    f"{self.independent[name]:.3g}"
                )
        return None

    def _forgot(self, name: str, value: float) -> bool:
        nothing, best = abs(self.independent[name]), abs(self.best[name])
        return nothing - best > LEARNED * nothing and abs(value) - best > FORGOTTEN * (nothing - best)

    def keep(self, metrics: Mapping[str, float]) -> None:
        """Metrics of a chunk that was kept: what the model is known to have known."""
        self.best = {name: min(best, metrics[name], key=abs) for name, best in self.best.items()}
