"""What objectives carry from step to step, whose dice they throw, and what the weights of a batch mean to them."""

from __future__ import annotations

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plumbing_tools import bits, keys_used, moved

from latentia import VAE, units
from latentia.energies import vae_model
from latentia.energies.autoencoding import AutoencoderModel
from latentia.energies.belief_net import DBNModel
from latentia.energies.rbm import RBMModel
from latentia.energies.vae_parts import Bits
from latentia.estimator.training import Encode, Plan
from latentia.learning import contrastive
from latentia.learning import fit as loop
from latentia.learning.elbo import ELBO, IWAE, BoundState
from latentia.learning.feed_forward import FeedForward
from latentia.learning.gradient import GradientLearner
from latentia.learning.noise_contrast import NoiseState, advanced
from latentia.learning.optimizer import Optimizer
from latentia.learning.reconstruction import Reconstruction
from latentia.learning.supervised import CrossEntropy
from latentia.learning.up_down import up_down
from latentia.ops.corruption import Corruption

D = 4
ROWS = (np.random.default_rng(0).random((3, D)) < 0.5).astype(np.float32)
ROWS[:, 0] = [0, 1, 1]
TIMES = np.array([1, 3, 2])


def vae(sizes=(2, 3), latents="gaussian", ladder=False, hidden=3):
    each = ((hidden,),) * len(sizes)
    model = vae_model.build(
        Bits(D),
        sizes=sizes,
        hidden=each,
        decoder_hidden=each,
        latents=latents,
        posterior="diagonal",
        ladder=ladder,
        activation="tanh",
        key=jax.random.key(0),
    )
    return moved(model, 1)


def rbm():
    return moved(RBMModel.make(units.make("bernoulli", D), units.make("bernoulli", 3), key=jax.random.key(0)), 1)


def belief_net():
    layers = [units.make("bernoulli", n) for n in (D, 3, 3, 2)]
    return moved(DBNModel.make(layers, key=jax.random.key(0)), 1)


def autoencoder(**options):
    model = AutoencoderModel.dense(
        (D, 3), key=jax.random.key(0), code_activation="sigmoid", loss="cross_entropy", output="sigmoid", **options
    )
    return moved(model, 1)


# -- dice ------------------------------------------------------------------------------------------------------

#: (objective, model, how often a step with three examples throws dice).
THROWING = {
    "layers of real latents": (lambda: ELBO(k=2), vae, 3 * 2 * 2),
    "a ladder": (lambda: ELBO(k=2), lambda: vae(ladder=True), 3 * 2 * 2),
    "layers of coins": (lambda: ELBO(k=2), lambda: vae(latents="bernoulli"), 3 * 2 * 2),
    "relaxed coins": (lambda: ELBO(k=2, gradient="gumbel"), lambda: vae(latents="bernoulli"), 3 * 2 * 2),
    "coins with a slope": (lambda: ELBO(gradient="straight_through"), lambda: vae(latents="bernoulli"), 3 * 2),
    "importance weights": (lambda: IWAE(k=3), vae, 3 * 3 * 2),
    "noise and directions": (
        lambda: Reconstruction(Corruption("masking", 0.3), contraction=0.1, n_directions=2),
        autoencoder,
        2,  # for the whole batch at once
    ),
    "chains from the data": (lambda: contrastive.cd(2), rbm, None),
    "chains that persist": (lambda: contrastive.pcd(2), rbm, None),
    "climbs and dreams": (lambda: up_down(1), belief_net, None),
}


@pytest.mark.parametrize("which", THROWING)
def test_no_two_draws_of_a_step_or_of_the_next_share_a_key(which, monkeypatch):
    make, model, count = THROWING[which]
    objective, model = make(), model()

    def two_steps(x, key):
        def step(state, key):
            state = objective.prepare(model, x, state, key=key)
            return state, objective.loss(model, x, None, state)[0]

        state = objective.init(model, x, key=jax.random.fold_in(key, 9))
        return jax.lax.scan(step, state, jax.random.split(key))[1]

    with keys_used(monkeypatch) as used:
        jax.block_until_ready(jax.jit(two_steps)(jnp.asarray(ROWS), jax.random.key(3)))
    assert len(set(used)) == len(used)
    if count is not None:
        seeds = 3 if isinstance(objective, ELBO | IWAE) else 0  # every state holds one: of the start and two steps
        assert len(used) == 2 * count + seeds
    assert len(used) >= 4


def test_every_layer_of_a_sample_has_a_key_of_its_own(monkeypatch):
    for model in (vae((2, 2, 2)), vae(latents="bernoulli")):
        with keys_used(monkeypatch) as used:
            sample = jax.jit(lambda key, model=model: model.sample(key=key))
            jax.block_until_ready(sample(jax.random.key(1))[0])
        assert len(set(used)) == len(used) == len(model.sizes) + 1


# -- the rise of the divergence's weight -----------------------------------------------------------------------


class Watched(ELBO):
    """Writes down the weight of the divergence at every step."""

    seen = []  # noqa: RUF012

    def weight(self, state, dtype):
        beta = super().weight(state, dtype)
        jax.debug.callback(lambda beta: Watched.seen.append(float(beta)), beta)
        return beta


class WatchedIWAE(IWAE):
    def weight(self, state, dtype):
        beta = super().weight(state, dtype)
        # Mapped over the examples: one of them is enough.
        jax.debug.callback(lambda beta, step: Watched.seen.append((float(step), float(beta))), beta, state.step)
        return beta


def run(objective, folder=None, *, chunk, resume=False, stop_after=None, n_steps=12):
    model = vae((2,), hidden=5)
    learner = GradientLearner(objective, Optimizer.make("sgd", learning_rate=0.01, n_steps=n_steps))

    def stop(event):
        if event.step == stop_after:
            raise KeyboardInterrupt

    settings = loop.Settings(
        n_steps=n_steps, batch_size=2, chunk=chunk, folder=folder, resume=resume, callbacks=[stop]
    )
    return loop.fit(model, ROWS, learner, Encode(model.x_space), settings, key=jax.random.key(0))


def test_the_weight_of_the_divergence_rises_with_every_step_and_goes_on_after_an_interruption(tmp_path):
    wanted = 1.5 * np.minimum(1, np.arange(1, 13) / 8)
    Watched.seen.clear()
    whole = run(Watched(beta=1.5, warmup=8.0), chunk=3)
    jax.effects_barrier()
    np.testing.assert_allclose(Watched.seen, wanted, rtol=1e-6)
    assert float(whole.state.objective.step) == 12
    Watched.seen.clear()
    with pytest.raises(KeyboardInterrupt):
        run(Watched(beta=1.5, warmup=8.0), tmp_path, chunk=3, stop_after=6)
    resumed = run(Watched(beta=1.5, warmup=8.0), tmp_path, chunk=3, resume=True)
    jax.effects_barrier()
    np.testing.assert_allclose(Watched.seen, wanted, rtol=1e-6)
    assert bits((resumed.model, resumed.state)) == bits((whole.model, whole.state))


def test_light_steps_count_for_the_rise_too():
    """In a chunk of 20 only one step is a full one."""
    Watched.seen.clear()
    result = run(WatchedIWAE(k=2, beta=2.0, warmup=10.0), chunk=20, n_steps=20)
    jax.effects_barrier()
    rises = dict(Watched.seen)
    assert rises == pytest.approx({step: 2.0 * min(1, step / 10) for step in range(1, 21)})
    assert float(result.state.objective.step) == 20


def test_epochs_of_a_rise_are_steps_of_the_run():
    estimator = VAE(2, warmup=3, n_epochs=10, batch_size=10)
    plan = estimator._plan(47)
    assert estimator._learner(plan).objective.warmup == pytest.approx(3 * plan.n_steps / 10)
    passing = Plan(n_steps=5, batch_size=10, chunk=5, constant_rate=True)  # one pass over 47 rows
    assert estimator._learner(passing).objective.warmup == 15


def test_the_estimate_of_log_z_moves_by_ever_smaller_parts_of_a_newton_step():
    """Half of the first step, a third of the second, and so on down to a twentieth, which stays."""
    rng, ratio = np.random.default_rng(4), 2
    state, c = NoiseState(jnp.zeros(3), jnp.asarray(0.7), jnp.zeros(())), 0.7
    for t in range(30):
        data, noise = rng.normal(size=5).astype(np.float32), rng.normal(size=10).astype(np.float32)
        weights = (np.arange(5) / 2).astype(np.float32) if t % 2 else None
        state = advanced(state, state.samples, jnp.asarray(data), jnp.asarray(noise), ratio, weights)
        of_data, of_noise = (1 / (1 + np.exp(c - values.astype(float))) for values in (data, noise))
        slope = np.average(1 - of_data, weights=weights) - ratio * of_noise.mean()
        bend = np.average(of_data * (1 - of_data), weights=weights) + ratio * (of_noise * (1 - of_noise)).mean()
        c -= max(1 / (2 + t), 0.05) * slope / bend
        assert float(state.log_z) == pytest.approx(c, abs=1e-5)
    assert float(state.n_steps) == 30


def test_a_state_survives_as_arrays():
    """A checkpoint holds arrays: what a step has to know must be among the leaves."""
    state = ELBO().init(vae(), jnp.asarray(ROWS), key=jax.random.key(0))
    leaves, structure = jax.tree.flatten(state)
    later = ELBO().prepare(vae(), jnp.asarray(ROWS), state, key=jax.random.key(1))
    assert jax.tree.structure(later) == structure
    assert [np.asarray(leaf).shape for leaf in leaves] == [(), ()]
    assert float(later.step) == float(state.step) + 1
    assert bits(later)[0] != bits(state)[0]


# -- weights ---------------------------------------------------------------------------------------------------


def _classifier():
    layers = [(np.random.default_rng(2).normal(size=(D, 3)), np.zeros(3))]
    return FeedForward.from_layers(layers, 2, key=jax.random.key(0))


LABELS = np.eye(2, dtype=np.float32)[[0, 1, 1]][:, None, :]
LEVEL = 0.02

#: (objective, model, whether an example may bring its label).
WEIGHED = {
    "cross-entropy": (CrossEntropy(smoothing=0.1, adversarial=0.2), _classifier, True),
    "cross-entropy of normalised fields": (
        CrossEntropy(adversarial=0.2),
        lambda: _classifier().normalised(jnp.asarray(ROWS), jnp.asarray(TIMES, jnp.float32)),
        True,
    ),
    "reconstruction": (Reconstruction(sparsity="l1", sparsity_weight=0.3), autoencoder, False),
    "mean activities": (Reconstruction(sparsity="kl", sparsity_weight=2.0, rate=0.2), autoencoder, False),
    "contraction": (Reconstruction(contraction=0.5, jacobian="exact"), autoencoder, False),
    "evidence": (ELBO(gradient="exact"), lambda: vae((2,), "bernoulli"), False),
    "free bits": (ELBO(gradient="exact", free_bits=LEVEL), lambda: vae((3,), "bernoulli"), False),
    "chains from the data": (contrastive.cd(1), rbm, False),
    "climbs and dreams": (up_down(1), belief_net, False),
}


def _examples(array):
    return jnp.asarray(np.repeat(np.asarray(array), TIMES, axis=0))


@pytest.mark.parametrize("which", WEIGHED)
def test_a_weighted_batch_is_one_of_repeated_rows(which):
    """Whatever its weights average to: so many times the loss and the gradient of rows as often as they say."""
    objective, model, labelled = WEIGHED[which]
    model = model()
    x = jnp.asarray(ROWS) if not labelled else (jnp.asarray(ROWS), jnp.asarray(LABELS))
    weights = jnp.asarray(TIMES * 0.8, jnp.float32)
    state = objective.prepare(model, x, objective.init(model, x, key=jax.random.key(1)), key=jax.random.key(2))
    own = len(ROWS)
    per_example = lambda leaf: eqx.is_array(leaf) and leaf.ndim > 0 and leaf.shape[0] == own  # noqa: E731
    drawn = which in ("chains from the data", "climbs and dreams")
    again = jax.tree.map(lambda a: _examples(a) if drawn and per_example(a) else a, state)

    @jax.jit
    def both(model):
        def loss(model, x, weights, state):
            return objective.loss(model, x, weights, state)[0]

        grad, repeated = eqx.filter_value_and_grad(loss), jax.tree.map(_examples, x)
        return grad(model, x, weights, state), grad(model, repeated, None, again)

    (loss, grads), (wanted, slopes) = both(model)
    share = float(jnp.mean(weights))
    if which != "free bits":  # of a bound with free bits the gradient alone is meant
        assert float(loss) == pytest.approx(share * float(wanted), abs=1e-5)
    for found, slope in zip(jax.tree.leaves(grads), jax.tree.leaves(slopes), strict=True):
        np.testing.assert_allclose(found, share * np.asarray(slope), atol=2e-5)


def test_free_bits_are_free_below_their_level_whatever_the_weights_average_to():
    model, x = vae((3,), "bernoulli"), jnp.asarray(ROWS)
    rates = jnp.stack([model.divergences(model.recognise(row), jnp.zeros(3)) for row in x])
    mean = np.asarray(rates).mean(0)
    level = float(np.sort(mean)[:2].mean())  # one latent is below it
    for share in (0.5, 1.0, 3.0):
        state = BoundState(jnp.uint32(0), jnp.array(1.0))
        objective = ELBO(gradient="exact", free_bits=level)
        loss = objective.loss(model, x, jnp.full(3, share), state)[0]
        metrics = objective.loss(model, x, None, state)[1]
        paid = float(metrics["kl"]) - mean.min()
        assert float(loss) == pytest.approx(share * (paid - float(metrics["log_given"])), abs=1e-4)


def test_mean_activities_are_rates_whatever_the_weights_average_to():
    """Three times a mean of 0.5 would be a rate of 1.5, which no coin has."""
    model, x = autoencoder(), jnp.asarray(ROWS)
    objective = Reconstruction(sparsity="kl", sparsity_weight=1.0, rate=0.3)
    state = objective.init(model, x, key=jax.random.key(0))
    codes = np.asarray(jax.vmap(model.encode)(x), float)
    mean = codes.mean(0)
    price = np.sum(0.3 * np.log(0.3 / mean) + 0.7 * np.log(0.7 / (1 - mean)))
    for share in (1.0, 3.0):
        metrics = objective.loss(model, x, jnp.full(3, share), state)[1]
        assert float(metrics["sparsity"]) == pytest.approx(share * price, rel=1e-4)
    assert math.isfinite(float(objective.loss(model, x, jnp.zeros(3), state)[0]))


# -- chains ----------------------------------------------------------------------------------------------------


def copying() -> RBMModel:
    """A machine whose hidden units copy the visible ones, and back: a chain stays where it is."""
    layers = units.make("bernoulli", D), units.make("bernoulli", D)
    model = RBMModel.make(*layers, key=jax.random.key(0))
    where = lambda m: (m.weights, m.visible.bias, m.hidden.bias)  # noqa: E731
    return eqx.tree_at(where, model, (60 * jnp.eye(D), jnp.full(D, -30.0), jnp.full(D, -30.0)))


def test_chains_that_persist_go_on_and_others_begin_at_the_batch():
    model, first, second = copying(), jnp.asarray(ROWS), jnp.asarray(1 - ROWS)
    for objective, persists in ((contrastive.pcd(1), True), (contrastive.cd(1), False)):

        @jax.jit
        def chains(objective=objective):
            state = objective.init(model, first, key=jax.random.key(0))
            return state.chains.x, objective.prepare(model, second, state, key=jax.random.key(1)).chains.x

        before, after = map(np.asarray, chains())
        np.testing.assert_array_equal(after, before if persists else second)


def test_weights_have_no_say_in_chains_that_persist():
    model, x = rbm(), jnp.asarray(ROWS)
    objective = contrastive.pcd(1, n_chains=3)
    state = objective.init(model, x, key=jax.random.key(0))
    even = objective.loss(model, x, jnp.ones(3), state)[0]
    data = jax.vmap(model.free_energy)(x)
    weights = jnp.asarray([0.5, 1.0, 1.5])
    found = objective.loss(model, x, weights, state)[0]
    assert float(found - even) == pytest.approx(float(jnp.mean((weights - 1) * data)), abs=1e-5)


def test_what_is_a_field_of_an_objective_is_static_or_an_array():
    """A number that is neither would be lost between two steps of a compiled loop, or compiled anew."""
    for objective in (ELBO(), IWAE(), Reconstruction(), CrossEntropy()):
        for field in dataclasses.fields(objective):
            assert field.metadata.get("static") or field.name == "corruption"
