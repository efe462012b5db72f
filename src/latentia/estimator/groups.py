"""Parameters that many families share, in groups: parent classes of estimators.

A family inherits the groups that it needs, most of them through its base class, and can change a default in
one line (see :mod:`latentia.estimator.declared`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from latentia.estimator import checks
from latentia.estimator.declared import Parameters, param
from latentia.learning.optimizer import Schedule
from latentia.units import UNITS

# -- the size of the model -------------------------------------------------------------------------------


class Components(Parameters):
    """For models with one layer of latents."""

    n_components: int = param(default=64, check=checks.integer(1), doc="number of latents.", kw_only=False)


class Layers(Parameters):
    """For models with layers of several sizes."""

    hidden: Sequence[int] = param(
        default=(64, 64),
        check=checks.sizes(1),
        doc="numbers of units per layer, from the data upwards.",
        kw_only=False,
    )


# -- the data --------------------------------------------------------------------------------------------


class VisibleUnits(Parameters):
    """For models whose visible units have one of several types."""

    visible: str = param(
        default="bernoulli",
        check=checks.one_of(*UNITS),
        doc='type of the visible units: "bernoulli" ({0, 1}), "spin" ({−1, +1}), "categorical" (integers), '
        '"gaussian" (real), "rectified" (non-negative).',
    )


class States(Parameters):
    """For models whose visible units may be categorical."""

    n_states: int | None = param(
        default=None,
        check=checks.integer(2, optional=True),
        doc="states of a categorical visible site; the largest value in the data plus one if None.",
    )


class GreyValues(Parameters):
    """For binary models that also take probabilities."""

    binarize: str | None = param(
        default=None,
        check=checks.one_of("sample", "threshold", None),
        doc='treatment of data in [0, 1] for Bernoulli visibles: None refuses them, "sample" samples each pixel '
        'from a Bernoulli distribution at every training step, "threshold" cuts at ½.',
    )


# -- objectives ------------------------------------------------------------------------------------------


class Objective(Parameters):
    """For models that learn by an objective."""

    objective: Any = param(default="pcd", doc='"cd", "pcd", "tempering", or an objective object.')


class Chains(Parameters):
    """For objectives that draw samples from the model."""

    n_sampler_steps: int = param(default=1, check=checks.integer(1), doc="sampler steps per update.", formerly="k")
    n_chains: int | None = param(
        default=None,
        check=checks.integer(1, optional=True),
        doc="number of persistent chains; the batch size if None.",
    )


class Replicas(Parameters):
    """For objectives that sample at several temperatures."""

    n_replicas: int = param(default=10, check=checks.integer(2), doc='number of temperatures of "tempering".')


class Centring(Parameters):
    """For models whose couplings are centred."""

    centring: float = param(
        default=0.01,
        check=checks.number(0, 1),
        doc="rate at which the centring offsets follow the data's means; 0 turns centring off.",
    )


class InitialWeights(Parameters):
    """For models that start from random weights of a chosen scale."""

    weight_scale: float = param(
        default=0.01, check=checks.number(0), doc="standard deviation of the initial weights."
    )


class MeanField(Parameters):
    """For models whose latents are found by mean field."""

    rounds: int = param(default=10, check=checks.integer(1), doc="rounds of mean field per batch.")


# -- training --------------------------------------------------------------------------------------------


class PretrainingEpochs(Parameters):
    """For models with layer-by-layer pretraining."""

    pretraining_epochs: int = param(
        default=20, check=checks.integer(0), doc="passes over the data per layer; 0 for no pretraining."
    )


class Epochs(Parameters):
    """The length of the training."""

    n_epochs: int = param(default=50, check=checks.integer(1), doc="passes over the data.")


class BatchSize(Parameters):
    """For models that learn from mini-batches."""

    batch_size: int = param(default=100, check=checks.integer(1), doc="rows per update.")


class LearningRate(Parameters):
    """The step size."""

    learning_rate: float = param(default=0.1, check=checks.number(0, open_low=True), doc="initial step size.")


class Optimisation(Parameters):
    """How an objective is minimised; see :class:`latentia.learning.optimizer.Optimizer`."""

    schedule: Schedule = param(
        default="linear",
        check=checks.one_of(*get_args(Schedule)),
        doc='schedule of the step size: "constant", or falling to zero: "linear", "cosine", "warmup" (after a '
        "rise).",
    )
    optimizer: Any = param(default="adam", doc='"sgd", "nesterov", "adam", "rmsprop", or an Optax transformation.')
    momentum: float = param(
        default=0.0, check=checks.number(0, 1, open_high=True), doc="momentum: decay of past gradients."
    )
    weight_decay: float = param(
        default=0.0, check=checks.number(0), doc="decay of the weights per unit of learning rate."
    )


class Clipping(Parameters):
    """For gradients that are sometimes very large."""

    clip: float = param(default=0.0, check=checks.number(0), doc="maximal norm of the gradient; 0 does not clip.")


class Averaging(Parameters):
    """For parameters that are averaged over the last steps."""

    averaging: float = param(
        default=0.0,
        check=checks.number(0, 1, open_high=True),
        doc="decay of a running average of the parameters that becomes the final model; 0 for none.",
    )


class EarlyStopping(Parameters):
    """Early stopping."""

    early_stopping: bool = param(
        default=False, check=checks.flag, doc="stop when the score of held-out rows no longer rises."
    )
    validation_fraction: float = param(
        default=0.1,
        check=checks.number(0, 1, open_low=True, open_high=True),
        doc="fraction of rows held out for early stopping.",
    )
    patience: int = param(
        default=5, check=checks.integer(1), doc="epochs without improvement before early stopping."
    )


class Monitoring(Parameters):
    """Metrics recorded during training."""

    monitor: str | None = param(
        default="auto",
        check=checks.one_of("auto", "always", None),
        doc='whether to record the score of a few training rows after every epoch: "auto" and "always" do, None '
        "does not.",
    )


class RunDir(Parameters):
    """The run folder."""

    run_dir: Any = param(
        default=None, doc="folder for config, metrics, checkpoints and model; None writes nothing."
    )
    resume: bool = param(default=False, check=checks.flag, doc="continue from the folder's checkpoint.")


class Callbacks(Parameters):
    """Callbacks of a run."""

    callbacks: Any = param(
        default=None,
        doc="functions called with a ``latentia.learning.fit.Event`` after every chunk of steps; returning True "
        "stops.",
    )


class Seed(Parameters):
    """The random seed."""

    random_state: Any = param(default=None, doc="random seed.")


class Verbosity(Parameters):
    """Output on the screen."""

    verbose: int = param(default=0, doc="0 is silent, 1 shows progress, 2 also prints every row of metrics.")


class GradientTraining(
    Epochs,
    BatchSize,
    LearningRate,
    Optimisation,
    Clipping,
    Averaging,
    EarlyStopping,
    Monitoring,
    RunDir,
    Callbacks,
):
    """How gradients train a model, step by step."""


#: The groups whose parameters mean the same in every family.
GENERAL = (Objective, Chains, Replicas, Centring, GradientTraining, Seed, Verbosity)
