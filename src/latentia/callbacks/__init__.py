"""Logs for TensorBoard, MLflow and Weights & Biases, and the base class for your own callbacks.

Each writes the estimator's parameters when the fit begins, a row of metrics after every chunk of steps (by step,
with the epoch), and times, outcome and pictures when it ends. A resumed run continues its log. The packages are
optional and imported when a callback is made.

Examples:
    >>> from latentia import RBM, callbacks
    >>> log = callbacks.TensorBoard("logs")  # doctest: +SKIP
    >>> RBM(n_components=64, callbacks=[log]).fit(X)  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latentia.core.errors import UnknownNameError
from latentia.core.run_folder import RunFolder

if TYPE_CHECKING:
    from latentia.callbacks.logger import Logger
    from latentia.callbacks.mlflow_log import MLflow
    from latentia.callbacks.tensorboard_log import TensorBoard
    from latentia.callbacks.wandb_log import WeightsAndBiases
    from latentia.estimator.callbacks import Callback

__all__ = ["Callback", "Logger", "MLflow", "TensorBoard", "WeightsAndBiases", "by_name"]

_PLACES = {
    "Callback": "latentia.estimator.callbacks",
    "Logger": "latentia.callbacks.logger",
    "MLflow": "latentia.callbacks.mlflow_log",
    "TensorBoard": "latentia.callbacks.tensorboard_log",
    "WeightsAndBiases": "latentia.callbacks.wandb_log",
}
#: The logs by their names on the command line.
NAMES = ("tensorboard", "mlflow", "wandb")


def by_name(name: str, run_dir: str | Path) -> Logger:
    """A log by name, for a run in a folder.

    Args:
        name: "tensorboard" (written to the folder ``tensorboard`` in the run's), "mlflow" (to wherever
            ``MLFLOW_TRACKING_URI`` says, or MLflow's default) or "wandb" (online or not as ``WANDB_MODE`` says).
        run_dir: the run folder.
    """
    if name not in NAMES:
        raise UnknownNameError("log", name, NAMES)
    from latentia.callbacks.mlflow_log import MLflow
    from latentia.callbacks.tensorboard_log import TensorBoard
    from latentia.callbacks.wandb_log import WeightsAndBiases

    folder = RunFolder.of(run_dir)
    if name == "tensorboard":
        return TensorBoard(folder.tensorboard)
    if name == "mlflow":
        return MLflow(name=folder.path.name)
    return WeightsAndBiases(name=folder.path.name, folder=folder.path)


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
