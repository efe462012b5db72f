"""How much each way of learning makes of its data: squared parameter error against sample size.

    python benchmarks/statistical_efficiency.py --out docs/assets/efficiency.png

Three models whose likelihood is known: a Gaussian, a complete ICA and a small RBM. For each sample size and several
replications, data are drawn from the true model and every objective is minimised, from the truth, over that one
sample (with its noise, drawn once) by Newton's method; contrastive divergence, which is no function to minimise,
runs as stochastic approximation with averaging. A consistent estimator's error falls as constant / n: slopes are
near −1, and the constants, printed as n × mean squared error, say how many more examples a method needs than
maximum likelihood for the same error. Contrastive divergence is biased, so its curve may level off.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

from common import report

SIZES = (250, 500, 1000, 2000)
METHODS = {
    "maximum likelihood": "ml",
    "score matching": "sm",
    "noise contrast, ν = 1": ("nce", 1),
    "noise contrast, ν = 10": ("nce", 10),
    "noise contrast, ν = 100": ("nce", 100),
    "conditional noise contrast": ("cnce", 10),
    "contrastive divergence": "cd",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=None, help="picture to write")
    parser.add_argument("--replications", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="few replications and small samples")
    arguments = parser.parse_args()
    sizes = SIZES[:3] if arguments.quick else SIZES
    replications = 6 if arguments.quick else arguments.replications
    import jax

    jax.config.update("jax_enable_x64", True)
    results: dict[str, Any] = {}
    for name, make in {"Gaussian": gaussian, "ICA": ica, "RBM": rbm}.items():
        problem = make()
        for method, kind in METHODS.items():
            if kind == "sm" and name == "RBM":
                continue  # its data are binary
            begin = time.perf_counter()
            errors = [error(problem, kind, n, replications) for n in sizes]
            results.setdefault(name, {})[method] = errors
            slope, constant = line(sizes, errors)
            seconds = time.perf_counter() - begin
            print(
                f"{name:9} {method:28} slope {slope:6.2f}  n × error {constant:9.3g}  {seconds:6.1f} s", flush=True
            )
    figures: dict[str, Any] = {"sizes": str(sizes), "replications": replications}
    for name, curves in results.items():
        best = line(sizes, curves["maximum likelihood"])[1]
        for method, errors in curves.items():
            slope, constant = line(sizes, errors)
            each = ", ".join(f"{e:.3g}" for e in errors)
            figures[f"{name}: {method}"] = f"slope {slope:.2f}, {constant / best:.2f} × the error of ML ({each})"
    report("Statistical efficiency", figures)
    if arguments.out is not None:
        draw(arguments.out, sizes, results)
        print(f"picture: {arguments.out}")


def line(sizes: Any, errors: Any) -> tuple[float, float]:
    """(slope of log error over log n, n × error at the two largest sizes)."""
    import numpy as np

    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    return float(slope), float(np.mean(np.array(sizes[-2:]) * np.array(errors[-2:])))


class Problem:
    """A true model, its likelihood, and how to draw from it."""

    def __init__(self, model: Any, log_z: Any, draw: Any, sampler: str, rate: float):
        import equinox as eqx
        from jax.flatten_util import ravel_pytree

        from latentia.core.parameters import trainable

        params, rest = eqx.partition(model, trainable(model))
        self.truth, unravel = ravel_pytree(params)
        self.model = lambda theta: eqx.combine(unravel(theta), rest)
        self.log_z, self.draw, self.sampler, self.rate = log_z, draw, sampler, rate


def gaussian() -> Problem:
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np

    from latentia.core.capabilities import FreeEnergy
    from latentia.core.space import Space

    d = 4
    rows, columns = np.triu_indices(d)

    class Gaussian(FreeEnergy):
        location: jax.Array
        entries: jax.Array  # of the precision matrix: each pair of variables once, so that all are identified
        x_space: Space = eqx.field(static=True, default=Space("real", (d,)))
        z_space: tuple = eqx.field(static=True, default=())

        def precision(self):
            upper = jnp.zeros((d, d)).at[rows, columns].set(self.entries)
            return upper + upper.T - jnp.diag(jnp.diagonal(upper))

        def energy(self, x, z):
            return self.free_energy(x)

        def free_energy(self, x):
            r = x - self.location
            return 0.5 * r @ self.precision() @ r

    rng = np.random.default_rng(0)
    a = rng.normal(size=(d, d))
    precision = a @ a.T / d + 0.5 * np.eye(d)
    truth = Gaussian(jnp.asarray(rng.normal(size=d)), jnp.asarray(precision[rows, columns]))
    log_z = lambda m: 0.5 * d * jnp.log(2 * jnp.pi) - 0.5 * jnp.linalg.slogdet(m.precision())[1]  # noqa: E731
    root = np.linalg.cholesky(np.linalg.inv(precision))
    draw = lambda key, n: truth.location[None] + jax.random.normal(key, (n, d)) @ root.T  # noqa: E731
    return Problem(truth, log_z, draw, "mala", 0.3)


def ica() -> Problem:
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np

    from latentia import ICA

    d = 3
    estimator = ICA(density="logistic")
    model = estimator.build(estimator._blueprint(np.zeros((2 * d, d))))
    truth = jax.tree.map(lambda a: a.astype(jnp.float64) if eqx.is_inexact_array(a) else a, model)
    mixing = np.eye(d) + 0.5 * np.random.default_rng(1).normal(size=(d, d))
    truth = eqx.tree_at(lambda m: m.weights, truth, jnp.asarray(np.linalg.inv(mixing)))
    draw = lambda key, n: jax.vmap(lambda k: truth.sample(key=k)[0])(jax.random.split(key, n))  # noqa: E731
    return Problem(truth, lambda m: 0.0, draw, "mala", 0.3)


def rbm() -> Problem:
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np

    from latentia import units
    from latentia.energies.rbm import RBMModel

    d, k = 6, 1
    rng = np.random.default_rng(6)
    model = RBMModel.make(units.make("bernoulli", d), units.make("bernoulli", k), key=jax.random.key(0))
    weights = 2.0 * rng.normal(size=(d, k))
    weights = np.sign(weights) * (1.0 + 0.5 * np.abs(weights))  # none of them near zero: all are identified well
    centred = (-weights.sum(1) / 2, -weights.sum(0) / 2 + 0.3 * rng.normal(size=k))
    truth = eqx.tree_at(
        lambda m: (m.weights, m.visible.bias, m.hidden.bias), model, tuple(map(jnp.asarray, (weights, *centred)))
    )
    truth = jax.tree.map(lambda a: a.astype(jnp.float64) if eqx.is_inexact_array(a) else a, truth)
    states = jnp.asarray(np.array(list(itertools.product((0.0, 1.0), repeat=d))))
    log_z = lambda m: jax.nn.logsumexp(-jax.vmap(m.free_energy)(states))  # noqa: E731
    logits = -jax.vmap(truth.free_energy)(states)
    draw = lambda key, n: states[jax.random.categorical(key, logits, shape=(n,))]  # noqa: E731
    return Problem(truth, log_z, draw, "gibbs", 2.0)


def error(problem: Problem, kind: Any, n: int, replications: int) -> float:
    """The mean over replications of ‖θ̂ − θ‖²."""
    import jax
    import jax.numpy as jnp

    def one(key: Any) -> Any:
        data_key, key = jax.random.split(key)
        x = problem.draw(data_key, n)
        found = contrastive(problem, x, key) if kind == "cd" else newton(*loss(problem, kind, x, key))
        return jnp.sum((found[: problem.truth.size] - problem.truth) ** 2)

    keys = jax.random.split(jax.random.key(n), replications)
    return float(jnp.mean(jax.jit(lambda keys: jax.lax.map(one, keys))(keys)))


def loss(problem: Problem, kind: Any, x: Any, key: Any) -> tuple[Any, Any]:
    """(the objective over this one sample, where to start: at the truth)."""
    import jax
    import jax.numpy as jnp

    from latentia.learning import noise
    from latentia.learning.noise_contrast import NCE, ConditionalNCE, NoiseState
    from latentia.learning.score_matching import ScoreMatching

    truth, model = problem.truth, problem.model
    if kind == "ml":
        return lambda t: jnp.mean(jax.vmap(model(t).free_energy)(x)) + problem.log_z(model(t)), truth
    if kind == "sm":
        return lambda t: ScoreMatching().loss(model(t), x, None, None)[0], truth
    name, ratio = kind
    space = model(truth).x_space
    if name == "cnce":
        objective = ConditionalNCE(ratio, noise.Disturbance().fitted(space, x))
        copies = objective.init(None, x, key=key)
        return lambda t: objective.loss(model(t), x, None, copies)[0], truth
    contrast = NCE(ratio, fitted_noise(space, x))
    samples = noise.draw_many(contrast.noise, ratio * len(x), key=key)
    start = jnp.append(truth, problem.log_z(model(truth)))
    state = lambda c: NoiseState(samples, c, jnp.zeros(()))  # noqa: E731
    return lambda t: contrast.loss(model(t[:-1]), x, None, state(t[-1]))[0], start


def fitted_noise(space: Any, x: Any) -> Any:
    """A Gaussian of the sample's own moments for real data, independent coins for binary ones."""
    import jax.numpy as jnp

    from latentia.learning import noise
    from latentia.ops import gaussian

    if space.domain != "real":
        return noise.Marginals().fitted(space, x)
    factor = gaussian.precision_factor(jnp.cov(x.T))
    return noise.GaussianNoise(1.0, jnp.mean(x, axis=0), factor)


def newton(f: Any, start: Any, n_steps: int = 7) -> Any:
    """Newton's method with the best of a few step lengths."""
    import jax
    import jax.numpy as jnp

    lengths = jnp.array([1.0, 0.5, 0.2, 0.05, 0.0])

    def step(theta: Any, _: None) -> Any:
        bend = jax.hessian(f)(theta)
        values, vectors = jnp.linalg.eigh(bend)
        values = jnp.maximum(jnp.abs(values), 1e-8)
        move = vectors @ ((vectors.T @ jax.grad(f)(theta)) / values)
        trials = theta[None, :] - lengths[:, None] * move[None, :]
        scores = jax.lax.map(f, trials)
        return trials[jnp.nanargmin(scores)], None

    return jax.lax.scan(step, start, None, length=n_steps)[0]


def contrastive(problem: Problem, x: Any, key: Any, n_steps: int = 3000) -> Any:
    """Contrastive divergence of one step on the whole sample, with a falling rate; the mean of the last half."""
    import jax
    import jax.numpy as jnp

    from latentia.learning import contrastive as objectives

    objective = objectives.cd(1)
    if problem.sampler != "gibbs":
        objective = objectives.hybrid(1, None, problem.sampler, persistent=False)
    state = objective.init(problem.model(problem.truth), x, key=key)

    def step(carry: Any, each: Any) -> Any:
        theta, state = carry
        key, rate = each
        state = objective.prepare(problem.model(theta), x, state, key=key)
        slope = jax.grad(lambda t: objective.loss(problem.model(t), x, None, state)[0])(theta)
        theta = theta - rate * slope
        return (theta, state), theta

    rates = problem.rate / (1 + jnp.arange(n_steps) / 500) ** 0.6
    _, path = jax.lax.scan(step, (problem.truth, state), (jax.random.split(key, n_steps), rates))
    return jnp.mean(path[n_steps // 2 :], axis=0)


def draw(path: Path, sizes: Any, results: dict[str, Any]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained", dpi=110)
    for axes, (name, curves) in zip(figure.subplots(1, len(results)), results.items(), strict=True):
        for method, errors in curves.items():
            place = list(METHODS).index(method)  # one colour and marker for a method in every panel
            style = {"color": f"C{place}", "marker": "osv^D*P"[place], "markersize": 4, "linewidth": 1.2}
            axes.loglog(sizes, errors, label=method, **style)
        axes.set(title=name, xlabel="examples", ylabel="mean squared error of the parameters")
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()
