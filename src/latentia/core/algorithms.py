"""The protocols of inferences, samplers, objectives and learners.

Algorithms use these protocols and the capabilities of :mod:`latentia.core.capabilities`, and never name a model.
Each lists the capabilities it needs in ``requires``; :func:`require` checks them and explains a mismatch.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable, Iterable
from types import UnionType
from typing import Any, Self, get_args

import equinox as eqx
import jax
from jaxtyping import Array, PRNGKeyArray

from latentia.core import conditioning
from latentia.core.capabilities import Conditional
from latentia.core.errors import CapabilityError
from latentia.core.hooks import hook
from latentia.core.model import AbstractModel, AbstractPosterior, Scalar
from latentia.core.space import Domain

Metrics = dict[str, Array]
#: A capability, or several of which one is enough (``FreeEnergy | Clamps``).
Need = type[AbstractModel] | UnionType


#: Present names of methods by their former ones: classes that define the latter are still understood.
FORMER_METHODS = {"slower": "halve_step", "settles": "ends_with_sweep"}


class AbstractAlgorithm(eqx.Module):
    """An algorithm that declares the capabilities that it needs."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for old, new in FORMER_METHODS.items():
            if old in vars(cls) and new not in vars(cls):
                warnings.warn(f"{cls.__name__}.{old} is called {new} now.", DeprecationWarning, stacklevel=2)
                setattr(cls, new, vars(cls)[old])

    @property
    @abc.abstractmethod
    def requires(self) -> tuple[Need, ...]:
        """The capabilities that a model must have."""

    @property
    @hook
    def name(self) -> str:
        """Its name in error messages."""
        return type(self).__name__

    @property
    @hook
    def conditional(self) -> bool:
        """Whether it works on p(y | c) of a :class:`~latentia.core.capabilities.Conditional` model, row by row."""
        return False


class AbstractInference(AbstractAlgorithm):
    """Finds z given x."""

    @property
    @hook
    def goes_on(self) -> bool:
        """Whether :meth:`improved` begins where an earlier posterior stopped, so that it is worth keeping."""
        return False

    @property
    @hook
    def is_random(self) -> bool:
        """Whether the posterior depends on the key."""
        return False

    @abc.abstractmethod
    def infer(self, model: Any, x: Any, *, key: PRNGKeyArray) -> AbstractPosterior:
        """The (approximate) posterior of one example."""

    @hook
    def begun(self, model: Any, x: Any, *, key: PRNGKeyArray) -> AbstractPosterior:
        """The start of :meth:`improved` if there is no earlier posterior."""
        return self.infer(model, x, key=key)

    @hook
    def improved(self, model: Any, x: Any, q: Any, *, key: PRNGKeyArray) -> AbstractPosterior:
        """The posterior of one example, from an earlier one, which another model may have had."""
        del q
        return self.infer(model, x, key=key)

    @hook
    def infer_many(self, model: Any, x: Any, *, key: PRNGKeyArray) -> AbstractPosterior:
        """The posteriors of a batch; host-side solvers replace this."""
        keys = jax.random.split(key, jax.tree.leaves(x)[0].shape[0])
        return jax.vmap(lambda x, key: self.infer(model, x, key=key))(x, keys)


class AbstractSampler(AbstractAlgorithm):
    """Draws from p. The state must survive between steps; the info is for diagnosis only.

    A sampler is itself a pytree: what it adapts (a temperature ladder, a step size) are its array leaves,
    and :meth:`adapt` returns the adapted sampler.
    """

    @property
    @hook
    def domains(self) -> tuple[Domain, ...]:
        """The domains that the visibles may have; by default all."""
        return get_args(Domain)

    @property
    def conditional(self) -> bool:
        """A chain follows given(c) of its own context (see :func:`latentia.samplers.advance`)."""
        return True

    @property
    @hook
    def ends_with_sweep(self) -> bool:
        """Whether a step ends with a sweep of the model, so that the block drawn last may be summed out again."""
        return False

    @hook
    def sized(self, x: Any) -> Self:
        """The sampler with what it adapts made to measure for chains that start at the rows of ``x``."""
        del x
        return self

    @abc.abstractmethod
    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> Any:
        """The state of one chain that starts at ``x``."""

    @abc.abstractmethod
    def step(self, model: Any, state: Any, *, key: PRNGKeyArray, fixed: Any = None) -> tuple[Any, Any]:
        """(next state, info) of one chain; entries of x where ``fixed`` is True do not move."""

    @abc.abstractmethod
    def visible(self, state: Any) -> Any:
        """The visible part of a state."""

    @abc.abstractmethod
    def latent(self, state: Any) -> Any:
        """The latent part of a state."""

    @hook
    def adapt(self, info: Any) -> Self:
        """The sampler adapted to the infos of many chains (leading axis); by default nothing adapts."""
        del info
        return self

    @hook
    def metrics(self, info: Any) -> Metrics:
        """Numbers worth showing, from the infos of many chains (leading axis)."""
        del info
        return {}


class AbstractObjective(AbstractAlgorithm):
    """A scalar surrogate whose gradient is the learning direction."""

    @property
    @hook
    def domains(self) -> tuple[Domain, ...]:
        """The domains that the visibles may have; by default all."""
        return get_args(Domain)

    @property
    @hook
    def latent_domains(self) -> tuple[Domain, ...] | None:
        """The domains that the latents may have, of which there must be some; None if it does not matter."""
        return None

    @hook
    def surveyed(self, model: Any, look: Callable[[], Any], *, key: PRNGKeyArray) -> Self:
        """The objective after a look at the data (many visibles, from ``look``), before training; runs on the host.

        Noise distributions are fitted here. By default nothing is looked at.
        """
        del model, look, key
        return self

    @hook
    def learned(self, state: Any) -> Any:
        """The part of the state that is learned along with the model (an encoder, say); by default None."""
        del state
        return None

    @hook
    def with_learned(self, state: Any, learned: Any) -> Any:
        """The state with that part exchanged."""
        del learned
        return state

    @abc.abstractmethod
    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> Any:
        """The objective's state (persistent chains …), from a batch."""

    @abc.abstractmethod
    def prepare(self, model: Any, x: Any, state: Any, *, key: PRNGKeyArray, weights: Any = None) -> Any:
        """What the loss needs but no gradient flows through (samples, noise): the new state.

        ``weights`` are those of :meth:`loss`.
        """

    @abc.abstractmethod
    def loss(self, model: Any, x: Any, weights: Any, state: Any) -> tuple[Scalar, Metrics]:
        """(surrogate, metrics) for a batch with sample weights that average to one (None: all ones)."""


class AbstractLearner(AbstractAlgorithm):
    """Changes θ. The training loop uses only this interface."""

    @property
    @hook
    def domains(self) -> tuple[Domain, ...]:
        """The domains that the visibles may have; by default all."""
        return get_args(Domain)

    @property
    @hook
    def latent_domains(self) -> tuple[Domain, ...] | None:
        """See :attr:`AbstractObjective.latent_domains`."""
        return None

    @hook
    def surveyed(self, model: Any, look: Callable[[], Any], *, key: PRNGKeyArray) -> Self:
        """See :meth:`AbstractObjective.surveyed`."""
        del model, look, key
        return self

    @property
    @hook
    def host_side(self) -> bool:
        """Whether the loop steps it from Python, on NumPy batches, instead of compiling its steps.

        A host-side ``step`` gets a model and a state whose arrays are NumPy arrays of its own, which it may change
        in place; a batch of all rows comes in their order, so that it may keep one thing a row. ``init`` returns
        JAX arrays as that of any other.
        """
        return False

    @property
    @hook
    def keeps_rows(self) -> bool:
        """Whether its state has one thing a row, so that a batch of all rows must come in their order."""
        return False

    @abc.abstractmethod
    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> Any:
        """The learner's state, from a batch."""

    @property
    @abc.abstractmethod
    def period(self) -> int:
        """At least one step in so many must be a full one, with metrics and slow bookkeeping."""

    @abc.abstractmethod
    def step(
        self, model: Any, x: Any, weights: Any, state: Any, *, key: PRNGKeyArray, since: int
    ) -> tuple[Any, Any, Metrics]:
        """(model, state, metrics) after one batch.

        ``since`` is the number of steps since the last full one, this included, if this is a full one; 0 asks
        for a light one, whose metrics nobody reads.
        """

    @abc.abstractmethod
    def halve_step(self, state: Any) -> Any | None:
        """The state with half the step, after a divergence; None if there is no step to halve."""

    @abc.abstractmethod
    def final(self, model: Any, state: Any) -> Any:
        """The model to keep (the averaged one if the learner averages)."""


def missing(algorithm: AbstractAlgorithm, model: AbstractModel) -> list[Need]:
    """The capabilities that the algorithm needs and the model lacks."""
    return [need for need in algorithm.requires if not isinstance(model, need)]


def foreign(algorithm: AbstractAlgorithm, model: AbstractModel) -> list[str]:
    """The domains of the model's visibles that the algorithm cannot work in."""
    if not isinstance(algorithm, AbstractSampler | AbstractObjective | AbstractLearner):
        return []
    return sorted({leaf.domain for leaf in jax.tree.leaves(model.x_space)} - set(algorithm.domains))


def misfit(algorithm: AbstractAlgorithm, model: AbstractModel) -> str | None:
    """Why the algorithm cannot be used with the model; None if it can."""
    reasons = []
    if isinstance(model, Conditional):
        if not algorithm.conditional:
            return "it works on p(x) of whole examples, not on p(y | c) with a context for every row"
        model = conditioning.kind(model)
    lacking = missing(algorithm, model)
    if lacking:
        needs = (" or ".join(f"{c.__name__} ({', '.join(_methods(c))})" for c in _either(n)) for n in lacking)
        reasons.append(f"it needs {' and '.join(needs)}")
    strange = foreign(algorithm, model)
    if strange:
        reasons.append(f"it works on {_list(algorithm.domains)} data, not on {_list(strange)}")  # type: ignore[attr-defined]
    reasons += _latent_misfit(algorithm, model)
    return "; ".join(reasons) or None


def _latent_misfit(algorithm: AbstractAlgorithm, model: AbstractModel) -> list[str]:
    if not isinstance(algorithm, AbstractObjective | AbstractLearner) or algorithm.latent_domains is None:
        return []
    found = {leaf.domain for leaf in jax.tree.leaves(model.z_space)}
    if not found:
        return ["it needs latents, and the model has none"]
    strange = sorted(found - set(algorithm.latent_domains))
    return [f"it infers {_list(algorithm.latent_domains)} latents, not {_list(strange)} ones"] if strange else []


def require(
    algorithm: AbstractAlgorithm, model: AbstractModel, *, fitting: Iterable[str] | Callable[[], Iterable[str]] = ()
) -> None:
    """Raise a :class:`CapabilityError` that says what is missing and which algorithms would fit.

    ``fitting`` names those, or is a function that finds them when they are needed.
    """
    reason = misfit(algorithm, model)
    if reason is None:
        return
    fits = list(fitting() if callable(fitting) else fitting)
    hint = f" Objectives that fit: {', '.join(fits)}." if fits else ""
    raise CapabilityError(f"{algorithm.name} cannot be used with {type(model).__name__}: {reason}.{hint}")


def _list(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def _either(need: Any) -> tuple[type[AbstractModel], ...]:
    return get_args(need) or (need,)


def _methods(capability: type[AbstractModel]) -> list[str]:
    inherited = AbstractModel.__abstractmethods__
    return sorted(set(capability.__abstractmethods__) - set(inherited))
