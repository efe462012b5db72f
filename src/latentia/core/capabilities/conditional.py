"""Capabilities of conditional models: a distribution of y for every context, and joint models that become one."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

from latentia.core.model import AbstractModel


class Conditional(AbstractModel):
    """p(y, z | c) = exp(−E(y, z; c)) / Z(c): a distribution of y for every context c, each with a log Z of its own.

    An example is the dictionary ``{"y": …, "c": …}``, in ``x_space`` and in every batch, so that a context travels
    with its row. ``energy`` takes such an example; it may differ from the energy of ``given(c)`` by a function of
    c, which log Z(c) takes up. What a conditional model can do is what ``given(c)`` can do, the same for every c:
    :mod:`latentia.core.conditioning` calls it row by row.
    """

    gives: ClassVar[str] = "p(y | c): contrastive learning, samples and likelihoods with a context for every row"

    @abc.abstractmethod
    def given(self, context: Any) -> AbstractModel:
        """The model of y for one context."""


class Restricts(AbstractModel):
    """Some parts of x can be fixed, which leaves a model of the other parts and z with the same capabilities."""

    gives: ClassVar[str] = "conditional versions of joint models, annealing included"

    @abc.abstractmethod
    def restricted(self, x: Any) -> AbstractModel:
        """The model of (the parts of x that are None, z) given the other parts, up to a function of these."""
