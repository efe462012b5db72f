"""Warnings of the report."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from latentia import __version__
from latentia.core import space
from latentia.report import facts, plots
from latentia.report.latents import code_space
from latentia.report.runs import Run

#: An interval wider than this many nats says little.
WIDE = 1.0
#: A latent is dead if its activation varies by less than this (times the most varying one's, if unbounded).
DEAD = 0.02


#: R̂ above this: chains depend on their starting points. Rates below these: a sampler that hardly moves.
MIXED, LEAST_SWAPS, LEAST_ACCEPTED = 1.1, 0.1, 0.2


def warnings(run: Run, codes: np.ndarray | None, r_hat: float = math.nan) -> list[str]:
    """One line for everything that casts doubt on the run.

    Args:
        run: what its folder holds.
        codes: of some rows, if there are any.
        r_hat: R̂ over chains that ran for the report; NaN if none did.
    """
    found = [run.problems[key] for key in ("config", "metrics", "model") if key in run.problems]
    return [
        *found,
        *_training(run),
        *_likelihood(run),
        *_mixing(run, r_hat),
        *_dead(run, codes),
        *_records(run),
    ]


def _mixing(run: Run, r_hat: float) -> list[str]:
    found = []
    if r_hat > MIXED:
        found.append(
            f"Gibbs chains do not mix: they still depend on their starting points (R̂ = {r_hat:.2f}; above {MIXED} "
            "is too much). Samples may miss some modes of the model; parallel tempering helps."
        )
    last = run.history[-1] if run.history else {}
    swaps, accepted = last.get("swap_rate_min"), last.get("acceptance")
    if isinstance(swaps, int | float) and swaps < LEAST_SWAPS:
        found.append(
            f"Tempered chains hardly swap: the lowest rate was {swaps:.2g} in the end. More replicas would help."
        )
    if isinstance(accepted, int | float) and accepted < LEAST_ACCEPTED:
        found.append(f"The sampler accepts {accepted:.0%} of its proposals: its steps are too long for this model.")
    return found


def _training(run: Run) -> list[str]:
    found = []
    rollbacks = _count(run.config.get("rollbacks", run.progress.get("rollbacks")))
    if rollbacks:
        times = "once" if rollbacks == 1 else f"{rollbacks} times"
        found.append(
            f"Training diverged {times}; each time it was rolled back and the step halved. A lower "
            "learning_rate would avoid that."
        )
    bad = sorted(
        {
            name
            for row in run.history
            for name, value in row.items()
            if isinstance(value, float) and not math.isfinite(value)
        }
    )
    if bad:
        found.append(f"Not a finite number at some point: {', '.join(bad)}.")
    planned, epochs = run.params.get("n_epochs"), run.history[-1].get("epoch") if run.history else None
    short = isinstance(planned, int) and isinstance(epochs, int | float) and epochs < planned - 1
    if short and "model" in run.problems:  # with a model it was a stopping rule, which is no reason to worry
        found.append(f"Training was interrupted after {epochs:.3g} of {planned} epochs.")
    return found


def _likelihood(run: Run) -> list[str]:
    result = run.likelihood
    if result is None:
        return []
    lower, _, upper = plots.interval_ends(result)
    said = (result.get("details") or {}).get("warning")
    if said:
        return [f"Likelihood: {said}"]
    if not upper - lower <= WIDE:
        width = f"{upper - lower:.1f} nats wide" if math.isfinite(upper - lower) else "open on one side"
        return [
            f"The likelihood's interval is {width}: compare models with care. "
            "More temperatures or chains would narrow it."
        ]
    return []


def _dead(run: Run, codes: np.ndarray | None) -> list[str]:
    if codes is None or len(codes) < 10:
        return []
    spread = codes.std(axis=0)
    bounded = all(leaf.is_discrete for leaf in space.leaves(code_space(run.estimator)))
    dead = int(np.sum(spread < DEAD * (1.0 if bounded else max(float(spread.max()), 1e-6))))
    if not dead:
        return []
    return [f"{dead} of {codes.shape[1]} latents hardly respond to the data: their activation is nearly constant."]


def _records(run: Run) -> list[str]:
    found = []
    objects = facts.unrecorded(run)
    if objects:
        found.append(
            f"Passed as objects, so not recorded: {', '.join(objects)}. The command below leaves them out."
        )
    made_with = (run.config.get("environment") or {}).get("latentia")
    if isinstance(made_with, str) and made_with.split(".")[:2] != __version__.split(".")[:2]:
        found.append(f"Made with Latentia {made_with}; this page was written by {__version__}.")
    if run.config.get("family") is not None and facts.family_of(run) is None:
        found.append(f"This release has no model family {run.config['family']!r}.")
    return found


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
