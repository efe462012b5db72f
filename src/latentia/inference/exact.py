"""Exact inference: the model's own posterior."""

from __future__ import annotations

from typing import Any

from jaxtyping import PRNGKeyArray

from latentia.core.algorithms import AbstractInference
from latentia.core.capabilities import ExactPosterior
from latentia.core.model import AbstractModel, AbstractPosterior


class Exact(AbstractInference):
    """p(z | x) where the model knows it in closed form."""

    @property
    def requires(self) -> tuple[type[AbstractModel], ...]:
        """``ExactPosterior``."""
        return (ExactPosterior,)

    def infer(self, model: ExactPosterior, x: Any, *, key: PRNGKeyArray) -> AbstractPosterior:
        """The model's posterior; nothing random happens."""
        del key
        return model.posterior(x)
