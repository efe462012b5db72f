"""The matrix: every registered family × every objective.

A pair that fits trains the family's tiny model from random parameters, and the exactly computed likelihood
(enumeration, quadrature or a closed form) must rise; a pair that does not fit is refused with its reason.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import (
    at,
    free_energies,
    nodes,
    perturbed,
    random_model,
    summed_energies,
    tiny,
    toy_rows,
    typical,
    visibles,
)
from scipy.special import logsumexp

from latentia import registry
from latentia.core import space
from latentia.core.algorithms import misfit, require
from latentia.core.capabilities import (
    Clamps,
    Conditionals,
    ExactSampler,
    FreeEnergy,
    Initialised,
    Normalised,
    Reconstructs,
)
from latentia.core.errors import CapabilityError
from latentia.estimator.training import Encode
from latentia.learning import OBJECTIVES, fit, fitting
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import Optimizer
from latentia.learning.variational_nce import VNCE
from latentia.likelihood.precision import batch_to_double, double, to_double
from latentia.registry import FAMILIES

N_ROWS, N_STEPS = 240, 240
#: An objective cannot tell light steps from full ones (learner and loop, tested elsewhere, can): chunks that
#: are too short for light ones have half as much to compile.
CHUNK = fit.SHORT_CHUNK - 1


#: The registry's tiny configurations have binary and real data; a machine for non-negative ones stands beside them.
RECTIFIED = registry.Family(
    "rectified-rbm", "latentia.models.rbm:RBM", "", "", {"n_components": 2, "visible": "rectified"}, "real"
)
ALL = (*FAMILIES, RECTIFIED)
BY_NAME = {family.name: family for family in ALL}


def rows_of(family):
    rows = toy_rows(family.tiny_data, N_ROWS)
    return np.abs(rows) if family is RECTIFIED else rows


@functools.cache
def _start(name):
    """A poor model: the family's own start for the data, with every parameter moved.

    The same one with 64-bit types, though random numbers depend on the precision that they are drawn in.
    """
    family = BY_NAME[name]
    with jax.enable_x64(False):
        estimator, blueprint = tiny(family)
        model = random_model(family, 21)
        if isinstance(model, Initialised):
            moved = estimator.build(blueprint).initialise(visibles(model, rows_of(family)), key=jax.random.key(0))
            model = perturbed(moved, 21)
    return to_double(model) if jax.config.jax_enable_x64 else model


def start(family):
    return _start(family.name)


PAIRS = [(f, name) for f in ALL for name in OBJECTIVES]
#: Whether a pair fits does not depend on the parameters, which would take long to find while tests are collected.
FRESH = {family.name: family.tiny_model() for family in ALL}
FITTING = [(f, name) for f, name in PAIRS if misfit(OBJECTIVES[name](), FRESH[f.name]) is None]
REFUSED = [pair for pair in PAIRS if pair not in FITTING]


def ids(pairs):
    return [f"{family.name}-{name}" for family, name in pairs]


def exact_log_likelihood(family, model) -> float:
    """Mean log p(x) of the toy rows: −F(x) − log Z, both by sums or integrals over the energy alone."""
    with double():
        model = to_double(model)
        rows = rows_of(family)
        x = batch_to_double(space.encode(model.x_space, rows))
        known = isinstance(model, ExactSampler | Conditionals)
        grid = nodes(model.x_space, typical(model)[0] if known else wide(x))
        log_z = logsumexp(grid.log_weights - energies(model, grid.points))
        return -float(np.mean(energies(model, x))) - log_z


def mean_negative_energy(family, model) -> float:
    """For energies that are losses: they have no log Z, and are what is learned."""
    x = visibles(model, rows_of(family))
    return -float(jnp.mean(jax.jit(jax.vmap(lambda x: model.energy(x, ())))(x)))


def score(family, model) -> float:
    """What training must raise."""
    of = mean_negative_energy if isinstance(model, Reconstructs) else exact_log_likelihood
    return of(family, model)


@functools.cache
def start_score(name) -> float:
    """The score of the poor model, which all objectives start from."""
    return score(BY_NAME[name], _start(name))


def wide(x):
    """Points that spread more than the data, for models that have no draws of their own to place a grid by."""
    return jax.tree.map(lambda a: np.asarray(a) + 1.5 * (np.asarray(a) - np.asarray(a).mean(0)), x)


def energies(model, x):
    return np.asarray(free_energies(model, x)) if isinstance(model, FreeEnergy) else summed_energies(model, x)


#: Pairs that need more than the objective's defaults, with the number of steps. The atoms of a binary sparse code
#: explain one another away, which an affine encoder cannot follow: its bound is too loose (−8.00 → −8.13 nats).
NEEDS_MORE = {("binary-sparse-coding", "vnce"): (lambda: VNCE(ratio=5, hidden=16, n_samples=16), 4 * N_STEPS)}


@pytest.mark.parametrize(("family", "name"), FITTING, ids=ids(FITTING))
def test_training_raises_the_exact_likelihood(family, name):
    model, rows = start(family), rows_of(family)
    assert misfit(OBJECTIVES[name](), model) is None
    make, n_steps = NEEDS_MORE.get((family.name, name), (OBJECTIVES[name], N_STEPS))
    optimizer = Optimizer.make("adam", learning_rate=0.03, n_steps=n_steps, schedule="linear", clip=10.0)
    learner = GradientLearner(make(), optimizer)
    x = visibles(model, rows)
    learner = learner.surveyed(model, lambda: x, key=jax.random.key(0))
    settings = fit.Settings(n_steps, 60, chunk=CHUNK)
    result = fit.fit(model, rows, learner, Encode(model.x_space), settings, key=jax.random.key(0))
    assert result.rollbacks == 0
    assert score(family, result.model) > start_score(family.name) + 0.1


@pytest.mark.parametrize(("family", "name"), REFUSED, ids=ids(REFUSED))
def test_what_does_not_fit_is_refused_with_its_reason(family, name):
    model = start(family)
    reason = misfit(OBJECTIVES[name](), model)
    with pytest.raises(CapabilityError) as error:
        require(OBJECTIVES[name](), model, fitting=fitting(model))
    assert reason in str(error.value)
    assert name not in str(error.value).partition("Objectives that fit: ")[2].rstrip(".").split(", ")


def test_the_exact_likelihood_is_the_model_s_own_where_it_is_normalised():
    for family in ALL:
        model = start(family)
        if isinstance(model, Normalised) and not isinstance(model, Clamps):
            x = visibles(model, rows_of(family))
            own = -np.mean(np.asarray(free_energies(model, at(x, slice(None)))))
            assert exact_log_likelihood(family, model) == pytest.approx(own, abs=1e-3)


def test_the_matrix_has_no_empty_row_or_column():
    assert {family.name for family, _ in FITTING} == {family.name for family in ALL}
    assert {name for _, name in FITTING} == set(OBJECTIVES)
