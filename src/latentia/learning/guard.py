"""When a run has gone wrong although all of its numbers are finite.

Steps that are far too long can drive a machine into a corner: its units saturate, its chains freeze, its
parameters are large but not absurd, and nothing that it computes is ever infinite. What gives it away is that it
knows less than nothing: its reconstructions miss the rows by more than their mean would, or its pseudo-likelihood
is below that of sites that have nothing to do with each other. Left alone, such a run creeps back to that ignorance
as its rate falls, with dead units, and ends without a complaint.

Both measures lie on one side of zero, and away from it is worse, so that one rule serves for them:

    |measured|  >  WORSE · max(|ignorance|, |start|).

The start counts too, since a run may begin worse than ignorant, and has a right to.
"""

from __future__ import annotations

from collections.abc import Mapping

#: A collapsed model is this many times worse than an ignorant one. Sound runs stay below 1.025, even on data with
#: no structure; runs that came to nothing were seen from 1.09 up, most of them above 1.5.
WORSE = 1.05


class Guard:
    """Tells a collapsed model by its metrics.

    Args:
        ignorance: by the name of a metric, its value for a model of independent sites. Metrics that are not named
            are not judged.
        start: the same metrics of the model before the first step.

    >>> guard = Guard({"pseudo_likelihood": -27.0}, {"pseudo_likelihood": -27.3})
    >>> guard.collapsed({"pseudo_likelihood": -21.0}) is None
    True
    >>> print(guard.collapsed({"pseudo_likelihood": -495.0}))
    collapse: pseudo_likelihood is -495, for a model that knows nothing it is -27
    """

    def __init__(self, ignorance: Mapping[str, float], start: Mapping[str, float]):
        self.ignorance = dict(ignorance)
        self.limits = {name: WORSE * max(abs(value), abs(start[name])) for name, value in ignorance.items()}

    def collapsed(self, metrics: Mapping[str, float]) -> str | None:
        """What has happened, or None if nothing has."""
        for name, limit in self.limits.items():
            if abs(metrics[name]) > limit:
                nothing = self.ignorance[name]
                return (
                    f"collapse: {name} is {metrics[name]:.3g}, for a model that knows nothing it is {nothing:.3g}"
                )
        return None
