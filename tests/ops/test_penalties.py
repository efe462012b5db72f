"""Penalties against a global grid search, and their duality gaps against dual objectives written out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latentia.core.errors import ParameterError, UnknownNameError
from latentia.ops.penalties import L0, L1, ElasticNet, Group, Lq, penalty

POWERS = (0.05, 0.3, 0.5, 2 / 3, 0.8, 0.95)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def omega(kind: str, z: np.ndarray, alpha: float, extra: float, nonnegative: bool) -> np.ndarray:
    """Ω of single numbers, written again."""
    values = {
        "l1": lambda: np.abs(z),
        "elastic_net": lambda: extra * np.abs(z) + (1 - extra) * z**2 / 2,
        "l0": lambda: (z != 0).astype(float),
        "lq": lambda: np.abs(z) ** extra,
    }[kind]()
    return np.where(nonnegative & (z < 0), np.inf, alpha * values)


def make(kind: str, alpha: float, extra: float, nonnegative: bool, weights=None):
    own = {"elastic_net": {"ratio": extra}, "lq": {"q": extra}}.get(kind, {})
    return penalty(kind, alpha, **own, nonnegative=nonnegative, weights=weights)


def global_minimum(function, u: float) -> float:
    """min over z of a function of one number: a grid that holds 0 and u, refined around its best points."""
    z = np.concatenate([np.linspace(-1.2 * abs(u) - 1e-3, 1.2 * abs(u) + 1e-3, 4001), [0.0, u]])
    for _ in range(4):
        values = function(z)
        best = z[np.argsort(values)[:3]]
        width = np.diff(np.sort(z)).max()
        z = np.concatenate([best, *(np.linspace(b - width, b + width, 801) for b in best), [0.0]])
    return float(function(z).min())


def jump_of(alpha: float, step: float, q: float) -> float:
    """Where z = 0 and the other minimum tie, by bisection on the grid search's own terms."""
    low, high = 0.0, 50.0
    for _ in range(60):
        u = (low + high) / 2
        z = np.linspace(1e-9, u, 20001)
        low, high = (u, high) if ((z - u) ** 2 / 2 / step + alpha * z**q).min() > u**2 / 2 / step else (low, u)
    return (low + high) / 2


KINDS = [("l1", 0.0), ("elastic_net", 0.3), ("elastic_net", 0.0), ("l0", 0.0), *(("lq", q) for q in POWERS)]


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize(("kind", "extra"), KINDS)
def test_prox_is_the_global_minimum(kind, extra, nonnegative):
    rng = np.random.default_rng(3)
    for _ in range(6):
        alpha, step = float(np.exp(rng.normal())), float(np.exp(rng.normal()))
        us = rng.normal(size=8) * 3
        found = np.asarray(make(kind, alpha, extra, nonnegative).prox(jnp.asarray(us), step))
        for u, z in zip(us, found, strict=True):

            def energy(z, u=u, step=step, alpha=alpha):
                return (z - u) ** 2 / (2 * step) + omega(kind, z, alpha, extra, nonnegative)

            least = global_minimum(energy, u)
            assert energy(np.array([z]))[0] <= least + 1e-10 * (1 + abs(least))


@pytest.mark.parametrize("q", [*POWERS, 0.99])
def test_the_jump_of_lq_is_where_the_minima_tie(q):
    alpha, step = 0.7, 1.3
    jump = jump_of(alpha, step, q)
    below, above = np.asarray(Lq(alpha, q).prox(jnp.array([jump * (1 - 1e-6), jump * (1 + 1e-6)]), step))
    assert below == 0
    assert above > 0
    assert above == pytest.approx((2 * alpha * step * (1 - q)) ** (1 / (2 - q)), rel=1e-2)  # the least it can be
    for u, z in ((jump * (1 - 1e-4), below), (jump * (1 + 1e-4), None)):
        z = float(Lq(alpha, q).prox(jnp.array([u]), step)[0]) if z is None else z
        energy = lambda z, u=u: (z - u) ** 2 / (2 * step) + alpha * np.abs(z) ** q  # noqa: E731
        assert energy(np.array([z]))[0] <= global_minimum(energy, u) + 1e-12


@pytest.mark.parametrize("q", [0.5, 2 / 3])
def test_closed_forms_agree_with_newton_next_to_them(q):
    """q ± 1e-9 takes Newton's method; the maps are continuous in q away from the jump."""
    u = jnp.asarray(np.linspace(1.7, 40, 200))
    closed, newton = Lq(0.6, q).prox(u, 1.0), Lq(0.6, q + 1e-9).prox(u, 1.0)
    np.testing.assert_allclose(closed, newton, rtol=1e-8)
    assert np.abs(np.asarray(closed - u)).max() > 0.1


def test_the_hard_threshold_is_at_the_root_of_twice_alpha():
    cut = np.sqrt(2 * 0.3 * 0.5)
    z = L0(0.3).prox(jnp.array([cut * (1 - 1e-9), cut * (1 + 1e-9), -cut * (1 + 1e-9)]), 0.5)
    np.testing.assert_allclose(z, [0, cut, -cut])
    assert float(L0(0.3, nonnegative=True).prox(jnp.array([-5.0]), 0.5)[0]) == 0


@pytest.mark.parametrize("nonnegative", [False, True])
def test_the_group_map_is_the_global_minimum(nonnegative):
    """Two entries a group: a grid of the plane, then random neighbours of the answer."""
    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(*[np.linspace(-4, 4, 201)] * 2), -1).reshape(-1, 2)
    for _ in range(12):
        u, step, alpha, factor = rng.normal(size=2) * 2, np.exp(rng.normal()), np.exp(rng.normal() - 1), 1.7
        rule = Group(alpha, (1, 0, 1), weights=[0.4, factor], nonnegative=nonnegative)
        z = np.asarray(rule.prox(jnp.array([u[0], 3.0, u[1]]), step))
        near = z[[0, 2]] + rng.normal(size=(2000, 2)) * 10.0 ** rng.uniform(-6, -1, size=(2000, 1))
        points = np.concatenate([[z[[0, 2]]], grid, near, [[0, 0]]])
        energy = ((points - u) ** 2).sum(-1) / (2 * step) + alpha * factor * np.linalg.norm(points, axis=-1)
        energy = np.where(nonnegative & (points < 0).any(-1), np.inf, energy)
        assert energy[0] <= energy.min() + 1e-12
        assert z[1] == pytest.approx(max(3.0 - 0.4 * alpha * step, 0))


def test_values_and_weights_are_those_written_out():
    z = np.random.default_rng(1).normal(size=(5, 4))
    w = np.array([0.5, 1, 2, 3])
    cases = [(L1(0.7, weights=w), "l1", 0.0), (L0(0.7, weights=w), "l0", 0.0)]
    cases += [(ElasticNet(0.7, 0.4, weights=w), "elastic_net", 0.4), (Lq(0.7, 0.3, weights=w), "lq", 0.3)]
    for rule, kind, extra in cases:
        np.testing.assert_allclose(rule.value(jnp.asarray(z)), (w * omega(kind, z, 0.7, extra, False)).sum(1))
        single = [make(kind, 0.7 * v, extra, False).prox(jnp.asarray(z[:, j]), 0.8) for j, v in enumerate(w)]
        np.testing.assert_allclose(rule.prox(jnp.asarray(z), 0.8), np.stack(single, 1), rtol=1e-12)
        steps = jnp.asarray(np.linspace(0.1, 2, 5))[:, None]  # one a signal
        rows = [rule.prox(jnp.asarray(z[i]), steps[i, 0]) for i in range(5)]
        np.testing.assert_allclose(rule.prox(jnp.asarray(z), steps), np.stack(rows), rtol=1e-12)
    groups = Group(0.7, (0, 1, 0, 1), weights=[2.0, 3.0])
    norms = np.stack([np.hypot(z[:, 0], z[:, 2]), np.hypot(z[:, 1], z[:, 3])], 1)
    np.testing.assert_allclose(groups.value(jnp.asarray(z)), 0.7 * norms @ [2.0, 3.0])
    assert np.all(np.isinf(np.asarray(L1(0.7, nonnegative=True).value(jnp.asarray(-np.abs(z))))))


@pytest.mark.parametrize("nonnegative", [False, True])
def test_conjugates_are_the_largest_difference(nonnegative):
    rng = np.random.default_rng(2)
    grid = np.linspace(-40, 40, 160001)
    w = np.array([0.5, 1.0, 2.0])
    rule = ElasticNet(0.8, 0.3, weights=w, nonnegative=nonnegative)
    for v in rng.normal(size=(5, 3)) * 2:
        each = [grid * v[j] - w[j] * omega("elastic_net", grid, 0.8, 0.3, nonnegative) for j in range(3)]
        assert float(rule.conjugate(jnp.asarray(v))) == pytest.approx(sum(e.max() for e in each), abs=1e-6)
    l1 = L1(0.8, weights=w, nonnegative=nonnegative)
    assert float(l1.conjugate(0.999 * 0.8 * jnp.asarray(w))) == 0
    assert float(l1.conjugate(1.001 * 0.8 * jnp.asarray(w))) == np.inf
    far_below = float(l1.conjugate(-5 * jnp.asarray(w)))
    assert far_below == (0 if nonnegative else np.inf)
    group = Group(0.8, (0, 0, 1), nonnegative=nonnegative)
    assert float(group.dual_norm(jnp.array([3.0, -4.0, 0.1]))) == pytest.approx((3 if nonnegative else 5) / 0.8)


def dual_values(rule, x, thetas, D):
    """½‖x‖² − ½‖x − θ‖² − Ω*(Dθ): a bound from below for every θ."""
    return x @ x / 2 - ((x - thetas) ** 2).sum(1) / 2 - np.asarray(rule.conjugate(jnp.asarray(thetas @ D.T)))


RULES = {
    "l1": L1(0.3),
    "l1 weighted": L1(0.3, weights=np.linspace(0.5, 2, 8)),
    "l1 nonnegative": L1(0.3, nonnegative=True),
    "elastic": ElasticNet(0.3, 0.6),
    "elastic nonnegative": ElasticNet(0.3, 0.6, nonnegative=True, weights=np.linspace(0.5, 2, 8)),
    "ridge": ElasticNet(0.3, 0.0),
    "nearly l1": ElasticNet(0.3, 1.0),
    "group": Group(0.3, (0, 1, 2, 0, 1, 2, 3, 3)),
    "group nonnegative": Group(0.3, (0, 1, 2, 0, 1, 2, 3, 3), weights=[1, 2, 0.5, 1], nonnegative=True),
}


@pytest.mark.parametrize("name", RULES)
def test_the_gap_bounds_the_distance_from_the_minimum_and_closes_there(name):
    """Proximal gradient steps in NumPy; the gap of every iterate must bound what is left, and end at zero."""
    rule, rng = RULES[name], np.random.default_rng(5)
    D, x = rng.normal(size=(8, 6)), rng.normal(size=6) * 2
    D /= np.linalg.norm(D, axis=1, keepdims=True)
    step = 1 / np.linalg.eigvalsh(D @ D.T)[-1]
    z, seen = np.zeros(8), []
    move = jax.jit(lambda u: rule.prox(u, step))
    for k in range(2000):
        r = x - z @ D
        if k < 20 or k % 500 == 499:
            gap = float(rule.gap(jnp.asarray(z), jnp.asarray(r), jnp.asarray(D @ r)))
            seen.append((r @ r / 2 + float(rule.value(jnp.asarray(z))), gap))
        z = np.asarray(move(z + step * (D @ r)))
    least = seen[-1][0]
    assert seen[-1][1] < 1e-12
    for value, gap in seen:
        assert gap >= value - least - 1e-12
    assert seen[3][1] < 20 * (seen[3][0] - least) + 1e-9  # a bound of use, not just a large number
    assert seen[0][1] <= x @ x / 2 + 1e-12


@pytest.mark.parametrize("name", ["l1", "l1 weighted", "l1 nonnegative", "nearly l1", "group", "group nonnegative"])
def test_the_gap_is_that_of_the_best_multiple_of_the_residual(name):
    """Against dual objectives on a fine grid of multiples."""
    rule, rng = RULES[name], np.random.default_rng(6)
    D, x = rng.normal(size=(8, 6)), rng.normal(size=6) * 2
    z = np.abs(rng.normal(size=8)) * (rng.random(8) < 0.4) * 0.2
    r = x - z @ D
    value = r @ r / 2 + float(rule.value(jnp.asarray(z)))
    gap = float(rule.gap(jnp.asarray(z), jnp.asarray(r), jnp.asarray(D @ r)))
    bound = dual_values(rule, x, np.linspace(0, 1.5, 100_001)[:, None] * r, D).max()
    assert gap == pytest.approx(value - bound, abs=1e-3)
    assert gap <= value - bound + 1e-9


@pytest.mark.parametrize("nonnegative", [False, True])
def test_the_gap_of_an_elastic_net_is_the_better_one_of_two(nonnegative):
    """The ℓ1 gap of the problem with √λ₂ on the diagonal below D, and Fenchel–Young at the residual."""
    rng = np.random.default_rng(7)
    better = []
    for ratio in (0.3, 0.7, 0.98):
        rule = ElasticNet(0.4, ratio, nonnegative=nonnegative)
        step = jax.jit(lambda u, size, rule=rule: rule.prox(u, size))
        for n_steps in (0, 0, 0, 100, 200):  # far from the solution, and near it
            D, x = rng.normal(size=(8, 6)), rng.normal(size=6)
            z = np.abs(rng.normal(size=8)) * (rng.random(8) < 0.5) * rng.choice([0.05, 0.5])
            size = 1 / np.linalg.eigvalsh(D @ D.T)[-1]
            for _ in range(n_steps):
                z = np.asarray(step(z + size * (x - z @ D) @ D.T, size))
            square = 0.4 * (1 - ratio)
            wide, longer = np.concatenate([D, np.sqrt(square) * np.eye(8)], 1), np.concatenate([x, np.zeros(8)])
            r = longer - z @ wide
            l1 = L1(0.4 * ratio, nonnegative=nonnegative)
            first = float(l1.gap(jnp.asarray(z), jnp.asarray(r), jnp.asarray(wide @ r)))
            c = D @ (x - z @ D)
            second = float(rule.value(jnp.asarray(z)) + rule.conjugate(jnp.asarray(c))) - z @ c
            gap = float(rule.gap(jnp.asarray(z), jnp.asarray(x - z @ D), jnp.asarray(c)))
            assert gap == pytest.approx(min(first, second), rel=1e-9)
            better.append(first < second)
    assert 0 < sum(better) < len(better)


def test_single_precision_codes_keep_it():
    for rule in RULES.values():
        z = jnp.asarray(np.random.default_rng(0).random((2, 8)), jnp.float32)
        assert rule.prox(z, 0.5).dtype == jnp.float32
        assert rule.value(z).dtype == jnp.float32
        assert rule.gap(z, z, z).dtype == jnp.float32


def test_mistakes_are_refused():
    with pytest.raises(UnknownNameError, match="elastic_net"):
        penalty("elastic", 1.0)
    for alpha in (0, -1, np.nan, np.inf, "1"):
        with pytest.raises(ParameterError, match="alpha"):
            penalty("l1", alpha)
    with pytest.raises(ParameterError, match=r"in \(0, 1\)"):
        Lq(1.0, 1.0)
    with pytest.raises(ParameterError, match="ratio"):
        ElasticNet(1.0, 1.5)
    with pytest.raises(ParameterError, match="ratio belongs to"):
        penalty("l1", 1.0, ratio=0.5)
    with pytest.raises(ParameterError, match="needs groups"):
        penalty("group", 1.0)
    with pytest.raises(ParameterError, match="without a gap"):
        Group(1.0, (0, 2))
    with pytest.raises(ParameterError, match="2 groups"):
        Group(1.0, (0, 1), weights=[1, 1, 1])
    with pytest.raises(ParameterError, match="above 0"):
        L1(1.0, weights=[1, 0])
    with pytest.raises(ParameterError, match="each of 3 atoms"):
        L1(1.0, weights=[1, 2]).prox(jnp.zeros((1, 3)), 1.0)
