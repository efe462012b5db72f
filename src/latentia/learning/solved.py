"""A model found by a solver on the host; the training loop only records it."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.algorithms import AbstractLearner, Metrics, Need


class Solved(AbstractLearner):
    """Leaves the model as it is, and reports the mean log-likelihood that the solver reached."""

    log_likelihood: Float[Array, ""]

    @property
    def requires(self) -> tuple[Need, ...]:
        """Nothing."""
        return ()

    @property
    def period(self) -> int:
        """The only step reports the likelihood."""
        return 1

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> None:
        """Nothing to keep."""

    def step(
        self, model: Any, x: Any, weights: Any, state: None, *, key: PRNGKeyArray, since: int
    ) -> tuple[Any, None, Metrics]:
        """The same model, and its log-likelihood."""
        del x, weights, state, key, since
        return model, None, {"log_likelihood": self.log_likelihood}

    def halve_step(self, state: None) -> None:
        """There is no step size."""

    def final(self, model: Any, state: None) -> Any:
        """The model itself."""
        del state
        return model
