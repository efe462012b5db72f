"""What an estimator stores of a fit, and the seeds of successive passes over data."""

from __future__ import annotations

from typing import Any

#: Seeds are smaller than this.
MOST_SEED = 2**31 - 1
#: What is remembered besides the attributes whose names end in an underscore.
_REMEMBERED = ("_state", "_log_z", "_log_likelihood", "_next_seed", "_n_rows", "_n_features_out")
#: What checking the data of the next fit has just found out.
_OF_THE_DATA = ("n_features_in_", "feature_names_in_")


def forget(estimator: Any) -> None:
    """Drop what was fitted, so that a second fit is a first one."""
    fitted = [n for n in vars(estimator) if n.endswith("_") and not n.startswith("_") and n not in _OF_THE_DATA]
    for name in (*fitted, *_REMEMBERED):
        vars(estimator).pop(name, None)


def following(seed: int) -> int:
    """The seed of the pass after the one with this seed.

    >>> following(3)
    4
    """
    return (seed + 1) % MOST_SEED
