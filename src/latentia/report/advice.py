"""What a reader should be warned of, in plain words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from latentia.core import space
from latentia.report import facts, plots
from latentia.report.runs import Run

#: An interval wider than this many nats says little.
WIDE = 1.0
#: A latent is dead if its activation varies by less than this (times the most varying one's, if unbounded).
DEAD = 0.02


def warnings(run: Run, codes: np.ndarray | None) -> list[str]:
    """One line for everything that casts doubt on the run."""
    found = [run.problems[key] for key in ("config", "metrics", "model") if key in run.problems]
    return [*found, *_training(run), *_likelihood(run), *_dead(run, codes), *_records(run)]


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
    if isinstance(planned, int) and isinstance(epochs, int | float) and epochs < planned - 1:
        found.append(f"Training ended after {epochs:.0f} of {planned} epochs: stopped early, or not finished.")
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
    bounded = all(leaf.is_discrete for leaf in space.leaves(run.estimator.model_.z_space))
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
    if run.config.get("family") is not None and facts.family_of(run) is None:
        found.append(f"This release does not know the model family {run.config['family']!r}.")
    return found


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
