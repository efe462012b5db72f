"""Linear operators: adjoints, largest eigenvalues, and the matrices that they stand for."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latentia.core import space
from latentia.core.errors import ParameterError, UnknownNameError
from latentia.core.parameters import trainable
from latentia.ops.least_squares import duality_gap, objective
from latentia.ops.operators import (
    Composed,
    Convolution,
    LinearOperator,
    Masked,
    Matrix,
    Sum,
    Unpooling,
    as_operator,
    largest_eigenvalue,
    to_matrix,
)
from latentia.ops.penalties import L1

BORDERS = ("circular", "same", "valid", "full")


def draw(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32)


def grey(border="circular", m=3, shape=(6, 5), taps=(3, 2), seed=0):
    return Convolution(draw(seed, m, *taps), shape=shape, border=border)


def colour(border="same", m=2, shape=(5, 6, 3), taps=(2, 3), seed=1):
    return Convolution(draw(seed, m, *taps, shape[-1]), shape=shape, border=border, channels=True)


def unpooling(shape=(4, 6, 2), window=(2, 3, 1), seed=2):
    return Unpooling.of_largest(draw(seed, *shape), window)[1]


def composed():
    """Colour image ← two maps ← unpooled ← four maps below them."""
    first = colour("full", shape=(3, 5, 3))  # maps (4, 7, 2)
    pooled = unpooling((4, 7, 2), (2, 7, 1))  # (2, 1, 2)
    return Composed([first, pooled, colour("circular", m=4, shape=(2, 1, 2), taps=(2, 1), seed=3)])


OPERATORS = {
    "matrix": lambda: Matrix(draw(0, 7, 5)),
    "wide matrix": lambda: Matrix(draw(0, 4, 9)),
    **{f"grey {border}": lambda border=border: grey(border) for border in BORDERS},
    **{f"colour {border}": lambda border=border: colour(border) for border in BORDERS},
    "one map": lambda: grey("valid", m=1),
    "a line": lambda: Convolution(draw(4, 2, 4), shape=(9,), border="same"),
    "a volume": lambda: Convolution(draw(4, 2, 2, 3, 1), shape=(3, 3, 2), border="circular"),
    "unpooling": unpooling,
    "unpooling over maps": lambda: unpooling(window=(2, 2, 2)),
    "shared places": lambda: Unpooling(jnp.array([[0, 3], [3, 9]]), shape=(2, 3)),  # 9 is nowhere
    "masked": lambda: Masked(grey("same"), jax.random.bernoulli(jax.random.key(5), 0.6, (6, 5))),
    "composed": composed,
    "sum": lambda: Sum([grey("same"), grey("valid", m=1, taps=(4, 4), seed=6)]),
    "masked sum": lambda: Masked(Sum([grey(), grey(seed=8, taps=(1, 1))]), draw(9, 6, 5) > 0),
}
EVERY = pytest.mark.parametrize("name", OPERATORS)


def value(spaces, seed):
    return jax.tree.map(lambda leaf: draw(seed, *leaf.shape), spaces)


def inner(a, b):
    return sum(float(jnp.vdot(p, q)) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@EVERY
def test_analyse_is_the_adjoint_of_synthesise(name):
    D = OPERATORS[name]()
    z, x = value(D.code_space, 10), value(D.signal_space, 11)
    made, back = D.synthesise(z), D.analyse(x)
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(lambda leaf: leaf.shape, D.signal_space)
    assert jax.tree.map(jnp.shape, back) == jax.tree.map(lambda leaf: leaf.shape, D.code_space)
    assert abs(inner(made, x)) > 1e-3
    np.testing.assert_allclose(inner(made, x), inner(z, back), rtol=1e-4, atol=1e-4)


@EVERY
def test_the_matrix_of_an_operator_is_the_operator(name):
    D = OPERATORS[name]()
    A = np.asarray(to_matrix(D), np.float32)
    z, x = value(D.code_space, 12), value(D.signal_space, 13)
    np.testing.assert_allclose(D.flat_code(z) @ A, D.flat_signal(D.synthesise(z)), atol=1e-4)
    np.testing.assert_allclose(A @ D.flat_signal(x), D.flat_code(D.analyse(x)), atol=1e-4)


@EVERY
def test_lipschitz_is_the_largest_singular_value_squared(name):
    D = OPERATORS[name]()
    wanted = np.linalg.norm(np.asarray(to_matrix(D), float), 2) ** 2
    for found in (float(D.lipschitz()), float(largest_eigenvalue(D))):
        assert wanted * (1 - 1e-5) <= found <= wanted * (1 + 1.5e-3)


def by_hand(filters, z, shape, border):
    """x[i] = Σ f[a] z[i − a + o], written out."""
    taps = filters.shape[1:3]
    o = [{"valid": 0, "full": a - 1}.get(border, (a - 1) // 2) for a in taps]
    x = np.zeros((shape[0], shape[1], filters.shape[3]))
    for m, f in enumerate(filters):
        for i, j in np.ndindex(*z.shape[:2]):
            for a, b in np.ndindex(*taps):
                p, q = i + a - o[0], j + b - o[1]
                if border == "circular":
                    p, q = p % shape[0], q % shape[1]
                if 0 <= p < shape[0] and 0 <= q < shape[1]:
                    x[p, q] += f[a, b] * z[i, j, m]
    return x


@pytest.mark.parametrize("border", BORDERS)
def test_a_convolution_is_the_sum_written_out(border):
    D = colour(border, taps=(4, 3))
    z = value(D.code_space, 14)
    wanted = by_hand(np.asarray(D.filters), np.asarray(z), D.shape, border)
    np.testing.assert_allclose(D.synthesise(z), wanted, atol=1e-4)
    one = Convolution(D.filters[..., 0], shape=D.shape[:2], border=border)
    np.testing.assert_allclose(one.synthesise(z), wanted[..., 0], atol=1e-4)


def test_borders_agree_where_they_do_not_matter():
    wide = draw(15, 12, 12, 3)
    inside = jnp.zeros_like(wide).at[4:8, 4:8].set(wide[4:8, 4:8])
    np.testing.assert_allclose(
        grey("circular", shape=(12, 12)).synthesise(inside),
        grey("same", shape=(12, 12)).synthesise(inside),
        atol=1e-5,
    )


def test_layers_apply_from_the_deepest_to_the_signal():
    first, second = Matrix(draw(0, 3, 5)), Matrix(draw(1, 4, 3))
    D = Composed([first, second])
    np.testing.assert_allclose(to_matrix(D), second.atoms @ first.atoms, atol=1e-5)
    alone = Composed([Convolution(draw(2, 2, 2, 2), shape=(4, 4), border="valid")])
    np.testing.assert_array_equal(to_matrix(alone), to_matrix(alone.layers[0]))


def test_a_mask_leaves_the_rows_that_are_there():
    D = grey("same")
    mask = np.asarray(draw(3, 6, 5) > 0)
    seen = Masked(D, mask.astype(np.float32))
    assert seen.mask.dtype == bool
    np.testing.assert_allclose(
        np.asarray(to_matrix(seen))[:, mask.ravel()], to_matrix(D)[:, mask.ravel()], atol=1e-6
    )
    assert not np.asarray(to_matrix(seen))[:, ~mask.ravel()].any()
    x = np.where(mask, np.asarray(draw(4, 6, 5)), np.nan)
    np.testing.assert_allclose(seen.analyse(x), D.analyse(jnp.where(mask, x, 0.0)), atol=1e-6)
    assert np.isfinite(np.asarray(seen.keep(x))).all()


def test_pooling_keeps_the_largest_value_of_a_window_and_where_it_was():
    x = np.asarray(draw(5, 4, 6, 4))
    pooled, D = Unpooling.of_largest(x, (2, 3, 2))
    blocks = x.reshape(2, 2, 2, 3, 2, 2).transpose(0, 2, 4, 1, 3, 5).reshape(2, 2, 2, 12)
    wanted = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)[..., 0]
    np.testing.assert_array_equal(pooled, wanted)
    np.testing.assert_array_equal(D.analyse(x), pooled)
    spread = np.asarray(D.synthesise(pooled))
    np.testing.assert_array_equal(spread[spread != 0], x[spread != 0])
    assert (spread != 0).sum() == pooled.size
    np.testing.assert_array_equal(D.analyse(D.synthesise(pooled)), pooled)


def test_switches_and_masks_may_differ_between_examples():
    """An operator is a pytree: vmap takes one for each example."""
    x = draw(6, 3, 4, 4, 1)
    pooled, D = jax.vmap(lambda each: Unpooling.of_largest(each, (2, 2, 1)))(x)
    found = jax.vmap(lambda D, z: D.synthesise(z))(D, pooled)
    for i in range(3):
        own, each = Unpooling.of_largest(x[i], (2, 2, 1))
        np.testing.assert_array_equal(found[i], each.synthesise(own))


def test_flat_and_back():
    D = Sum([grey("same"), grey("full", m=1)])
    z = jax.tree.map(lambda leaf: draw(16, 2, *leaf.shape), D.code_space)
    flat = D.flat_code(z)
    assert flat.shape == (2, D.n_code)
    jax.tree.map(np.testing.assert_array_equal, D.unflat_code(flat), z)
    numpy = jax.tree.map(np.asarray, z)
    assert isinstance(D.flat_code(numpy), np.ndarray)
    per_map = D.per_code((jnp.array([1.0, 2.0, 3.0]), 5.0))
    assert set(np.asarray(per_map[: 30 * 3]).reshape(-1, 3)[7]) == {1.0, 2.0, 3.0}
    assert (np.asarray(per_map[90:]) == 5).all()


def test_parameters_are_the_filters_alone():
    D = Masked(composed(), jnp.ones((3, 5, 3), bool))
    learned = jax.tree.leaves(eqx.filter(D, trainable(D)))
    assert [leaf.shape for leaf in learned] == [(2, 2, 3, 3), (4, 2, 1, 2)]


@pytest.mark.parametrize("name", ["grey circular", "colour same", "composed", "masked"])
def test_gradients_by_parameters_go_through_both_directions(name):
    """∂⟨Dz, x⟩ = ∂⟨z, Dᵀx⟩, and both are the slope found by differences."""
    D = OPERATORS[name]()
    z, x = value(D.code_space, 17), value(D.signal_space, 18)
    a = eqx.filter_grad(lambda D: jnp.vdot(D.synthesise(z), x))(D)
    b = eqx.filter_grad(lambda D: jnp.vdot(z, D.analyse(x)))(D)
    leaves = lambda tree: jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))  # noqa: E731
    for p, q in zip(leaves(a), leaves(b), strict=True):
        np.testing.assert_allclose(p, q, atol=1e-3)
    moved = eqx.apply_updates(D, jax.tree.map(lambda leaf: 1e-2 * leaf, a))
    gained = float(jnp.vdot(moved.synthesise(z) - D.synthesise(z), x))
    slope = 1e-2 * sum(float(jnp.sum(leaf**2)) for leaf in leaves(a))
    assert gained == pytest.approx(slope, rel=1e-3 if name != "composed" else 0.2)


def test_double_precision_stays():
    with jax.enable_x64(True):
        for D in (grey("same"), colour("circular"), Composed([grey("full", m=1, shape=(3, 3))])):
            D = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), D)
            z = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, jnp.float64), D.code_space)
            assert D.synthesise(z).dtype == jnp.float64
            assert D.lipschitz().dtype == jnp.float64
            wanted = np.linalg.norm(np.asarray(to_matrix(D)), 2) ** 2
            assert float(D.lipschitz()) == pytest.approx(wanted, rel=1.5e-3)


def test_the_largest_eigenvalue_of_nothing_is_nothing():
    assert float(Matrix(jnp.zeros((3, 2))).lipschitz()) == 0
    assert float(largest_eigenvalue(Matrix(jnp.zeros((3, 2))))) == 0
    assert float(largest_eigenvalue(Masked(grey(), jnp.zeros((6, 5), bool)))) == 0


def test_objective_and_gap_over_an_operator_with_several_codes():
    D = Sum([grey("same"), grey("full", m=1)])
    x, z = value(D.signal_space, 19), value(D.code_space, 20)
    penalty = L1(0.3, weights=D.per_code((1.0, 2.0)))
    A = np.asarray(to_matrix(D), float)
    flat, signal = np.asarray(D.flat_code(z)), np.asarray(D.flat_signal(x))
    paid = 0.3 * np.abs(flat[:90]).sum() + 0.6 * np.abs(flat[90:]).sum()
    wanted = 0.5 * np.sum((signal - flat @ A) ** 2) + paid
    assert float(objective(D, penalty, x, z)) == pytest.approx(wanted, rel=1e-5)
    assert float(objective(D, None, x, z)) == pytest.approx(wanted - paid, rel=1e-5)
    r = signal - flat @ A
    found = float(duality_gap(D, penalty, x, z))
    assert found == pytest.approx(
        float(penalty.gap(flat, r.astype(np.float32), (A @ r).astype(np.float32))), rel=1e-4
    )
    # The formula: θ = r · min(1, 1/‖Dᵀr/λ‖∞) bounds the minimum from below; the best multiple bounds it no worse.
    prices = np.asarray(penalty.alpha * penalty.weights)
    theta = r * min(1, 1 / np.max(np.abs(A @ r) / prices))
    plain = wanted - (0.5 * signal @ signal - 0.5 * np.sum((signal - theta) ** 2))
    assert 0 <= found <= plain * (1 + 1e-5)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UnknownNameError, match="border"):
        Convolution(draw(0, 2, 3, 3), shape=(6, 6), border="around")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"do not fit signals of shape \(6, 6, 3\)"):
        Convolution(draw(0, 2, 3, 3), shape=(6, 6, 3), channels=True)
    with pytest.raises(ParameterError, match="larger than the signal"):
        Convolution(draw(0, 2, 3, 7), shape=(6, 6))
    with pytest.raises(ParameterError, match="layer 0.* is not the signal of layer 1"):
        Composed([Matrix(draw(0, 3, 5)), Matrix(draw(1, 4, 2))])
    with pytest.raises(ParameterError, match="signals of one shape"):
        Sum([Matrix(draw(0, 3, 5)), Matrix(draw(1, 4, 2))])
    with pytest.raises(ParameterError, match="mask must have"):
        Masked(grey(), jnp.ones((5, 6), bool))
    with pytest.raises(ParameterError, match="does not divide"):
        Unpooling.of_largest(draw(0, 5, 4), (2, 2))
    for empty in (Composed, Sum):
        with pytest.raises(ParameterError, match="at least one"):
            empty([])


def test_a_matrix_is_wrapped_and_an_operator_kept():
    D = grey()
    assert as_operator(D) is D
    atoms = np.ones((2, 3), np.float32)
    assert isinstance(as_operator(atoms), Matrix)
    assert as_operator(atoms).atoms is atoms
    assert issubclass(Matrix, LinearOperator)
    assert space.leaves(D.signal_space)[0].shape == (6, 5)
