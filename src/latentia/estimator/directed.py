"""The base class of estimators of directed models with a learned posterior: bounds, pictures of the code, gaps.

A family implements ``build`` and declares its own parameters; the model has the capability
:class:`~latentia.core.capabilities.Amortised`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.utils import check_random_state

from latentia import likelihood
from latentia.core import space
from latentia.core.algorithms import AbstractObjective
from latentia.core.capabilities import Amortised
from latentia.core.errors import DataError, ParameterError
from latentia.core.parameters import trainable
from latentia.estimator import checks
from latentia.estimator.declared import changed, param
from latentia.estimator.fits import Watched
from latentia.estimator.gradient import GradientEstimator, monitored
from latentia.estimator.groups import Objective
from latentia.estimator.scoring import average
from latentia.estimator.training import Plan
from latentia.inference import code_space
from latentia.learning import objective
from latentia.learning.discrete_gradients import GRADIENTS, MOST_STATES
from latentia.ops import random
from latentia.ops.compiling import jitted
from latentia.ops.examples import Examples

#: Draws for every row in what is followed while training.
_FEW = 8


class DirectedEstimator(Objective, GradientEstimator):
    """Learns by evidence bounds."""

    n_draws: int = param(
        default=1,
        check=checks.integer(1),
        doc='samples of the latents for each example; the bound "iwae" rises with their number.',
        formerly="k",
    )
    gradient: str = param(
        default="auto",
        check=checks.one_of("auto", *GRADIENTS),
        doc='"auto", "reparametrised", "doubly_reparametrised" (for "iwae"), "score_function", "rloo", and for '
        'binary latents "gumbel" and "straight_through", which are biased; "exact" for a linear Gaussian decoder '
        'or a few binary latents. "auto" goes through the draws of real latents and takes "rloo" for binary ones.',
    )
    beta: float = param(default=1.0, check=checks.number(0), doc="weight of the divergence.")
    warmup: float = param(default=0.0, check=checks.number(0), doc="epochs over which that weight rises from 0.")
    free_bits: float = param(
        default=0.0,
        check=checks.number(0),
        doc="divergence of each latent, in nats, that is not penalised.",
    )
    temperature: float = param(
        default=0.5, check=checks.number(0, open_low=True), doc='temperature of the relaxed samples ("gumbel").'
    )

    objective = changed(default="elbo", doc='"elbo", "iwae", or an objective object.')
    learning_rate = 0.001
    early_stopping = changed(doc="stop when the bound of held-out rows no longer rises.")
    monitor = changed(
        doc='whether to record the bound of a few training rows after every epoch: "auto" and "always" do, None '
        "does not."
    )

    # -- learning ----------------------------------------------------------------------------------------------

    def _objective_numbers(self) -> dict[str, Any]:
        names = ("gradient", "beta", "free_bits", "temperature")
        return {"k": self.n_draws, **{name: getattr(self, name) for name in names}}

    def _bound(self, **changes: Any) -> Any:
        """The objective, with some of its numbers changed."""
        if self.objective == "iwae" and self.free_bits:
            raise ParameterError(
                "free_bits is for objective='elbo': the importance-weighted bound has no divergence."
            )
        return objective(self.objective, **{**self._objective_numbers(), **changes})

    def _surrogate(self, plan: Plan) -> AbstractObjective:
        per_epoch = plan.n_steps if plan.constant_rate else plan.n_steps / self.n_epochs
        return self._bound(warmup=float(self.warmup * per_epoch))

    def watch(self, model: Any, rows: Any, weights: Any = None) -> Watched:
        """The importance-weighted bound of a few fixed rows."""
        del model
        return Watched({"bound": self.validation_scorer(monitored(rows, weights))} if self.monitor else {}, {})

    def validation_scorer(self, rows: Any, weights: Any = None) -> Callable[[Any], float]:
        """The mean importance-weighted bound of held-out rows, with the same random numbers every time."""
        portions = self._scored(rows)
        return lambda model: average(portions.apply(_few_draws, model), weights)

    def gradient_variance(
        self, X: Any, *, gradients: Any = None, n_repeats: int = 64, show: bool = True, random_state: Any = 0
    ) -> dict[str, dict[str, Any]]:
        """Bias and variance of the estimators of the recognition network's gradient, at the current model.

        Args:
            X: rows; their mean gradient is estimated again and again with fresh draws.
            gradients: names; by default all that fit the latents and the objective.
            n_repeats: how often.
            show: print a table.
            random_state: seed.

        Returns:
            For each name the total variance over all parameters ("variance"), the same over the squared length of
            the mean gradient ("relative"), whether it is unbiased ("unbiased"), and, where the exact gradient is
            known, the length of the bias over that of the exact gradient ("bias"), with the noise of the repeats
            taken off.
        """
        checks.integer(2)("n_repeats", n_repeats)
        model = self._needs(Amortised, "gradient_variance")
        x = jax.tree.map(jnp.asarray, self._visibles(X, purpose="scoring"))
        key = random.key(int(check_random_state(random_state).randint(2**31 - 1)))
        exact = self._exact_gradient(model, x, key)
        found = {}
        for name in self._fitting_gradients(model) if gradients is None else gradients:
            if name == "exact" and exact is None:
                continue
            n_draws = max(self.n_draws, 2) if name == "rloo" else self.n_draws
            bound = self._bound(gradient=name, k=n_draws, warmup=0.0)
            mean, variance = map(np.asarray, _moments(bound, model, x, jax.random.split(key, n_repeats)))
            found[name] = _noise(name, mean, variance, n_repeats, exact)
        if show:
            print(_table(found))
        return found

    def _fitting_gradients(self, model: Any) -> list[str]:
        domains = {leaf.domain for leaf in space.leaves(model.z_space)}
        only = "exact" if self.objective == "iwae" else "doubly_reparametrised"
        few = ("rloo",) if self.objective == "iwae" and self.n_draws < 2 else ()
        return [n for n, g in GRADIENTS.items() if domains <= set(g.latents) and n != only and n not in few]

    def _exact_gradient(self, model: Any, x: Any, key: Any) -> np.ndarray | None:
        if self.objective == "iwae":
            return None
        bound = self._bound(gradient="exact", warmup=0.0)
        try:
            bound.init(model, x, key=key)
        except ParameterError:
            return None
        return np.asarray(_moments(bound, model, x, jax.random.split(key, 1))[0])

    # -- likelihood --------------------------------------------------------------------------------------------

    def score_samples(self, X: Any, *, n_samples: int = 100) -> np.ndarray:
        """log p(x) of every row: exact for a few binary latents, else the importance-weighted lower bound.

        Args:
            X: rows.
            n_samples: draws of the latents for every row.
        """
        visibles = self._visibles(X, purpose="scoring")
        model = self._needs(Amortised, "score_samples")
        options = {"key": random.key(0), "limit": MOST_STATES, "n_samples": n_samples}
        return likelihood.log_probabilities(model, visibles, **options)

    # -- the code ----------------------------------------------------------------------------------------------

    def _switches(self) -> tuple[np.ndarray, np.ndarray]:
        """(codes with one latent high, codes with it low): ±2 standard deviations of the prior, or on and off."""
        if space.leaves(code_space(self._needs(Amortised, "latent_switches")))[0].domain != "real":
            return super()._switches()
        ends = 2 * np.eye(self._n_features_out, dtype=np.float32)
        return ends, -ends

    def interpolate(self, X: Any, Y: Any, n_steps: int = 9) -> np.ndarray:
        """Mean visibles along the straight lines between the codes of two sets of rows.

        Args:
            X: where the lines begin.
            Y: where they end, as many rows.
            n_steps: points on each line, its ends among them.

        Returns:
            ``(rows, n_steps, n_features)``.
        """
        checks.integer(2)("n_steps", n_steps)
        first, last = self.transform(X), self.transform(Y)
        if first.shape != last.shape:
            raise DataError(f"X and Y must have as many rows, got {len(first)} and {len(last)}.")
        share = np.linspace(0, 1, n_steps, dtype=np.float32)[None, :, None]
        codes = (1 - share) * first[:, None] + share * last[:, None]
        means = self.inverse_transform(codes.reshape(-1, codes.shape[-1]))
        return means.reshape(len(first), n_steps, -1)

    def impute(
        self, X: Any, *, mean: bool = True, n_draws: int = 20, n_steps: int = 200, random_state: Any = None
    ) -> np.ndarray:
        """The rows with their gaps (NaN) filled in.

        Metropolis within Gibbs draws from p(missing | known): latents are proposed by q and accepted or refused.

        Args:
            X: rows; NaN marks what is missing.
            mean: fill in the conditional mean, averaged over the draws (the likeliest state of categorical sites);
                False fills in one draw.
            n_draws: chains for every row.
            n_steps: steps of each chain.
            random_state: seed; the estimator's own by default.
        """
        model = self._needs(Amortised, "impute")
        rows = np.asarray(X, np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise DataError(f"X must be a matrix with {self.n_features_in_} columns, got shape {rows.shape}.")
        missing = np.isnan(rows)
        filled = Examples(np.where(missing, 0, rows).astype(np.float32))
        self._check_domain(filled, model.x_space)
        rows = np.where(missing, np.nan, self._scored(filled).parts)
        if not missing.any():
            return rows
        if missing.all():
            raise DataError("Nothing is known: every entry of X is missing. Call sample() for unconditional draws.")
        repeats = n_draws if mean else 1
        drawn = self.sample(repeats, given=rows, n_steps=n_steps, mean=mean, random_state=random_state)
        drawn = drawn.reshape(len(rows), repeats, -1).mean(axis=1)
        if mean and model.x_space.domain == "categorical":
            drawn = drawn.reshape(len(rows), *model.x_space.shape).argmax(-1)
        return np.where(missing, drawn, rows).astype(np.float32)


def _few_draws(model: Any, x: Any) -> Any:
    """An importance-weighted bound on log p(x) whose random numbers follow from x."""
    flat = x.reshape(-1)
    mixed = jnp.sum(flat * jnp.cos(jnp.arange(flat.size, dtype=flat.dtype)))
    code = jax.lax.bitcast_convert_type(mixed.astype(jnp.float32), jnp.uint32)
    keys = jax.random.split(jax.random.fold_in(random.key(0), code), _FEW)
    q = model.recognise(x)

    def log_weight(key: Any) -> Any:
        z = q.sample(key=key)
        return -model.energy(x, z) - q.log_prob(z)

    return jax.nn.logsumexp(jax.vmap(log_weight)(keys)) - float(np.log(_FEW))


@jitted
def _moments(bound: Any, model: Any, x: Any, keys: Any) -> tuple[Any, Any]:
    """(mean, variance) over keys of the gradient in the parameters that q depends on."""
    params, rest = eqx.partition(model, trainable(model))
    touched = eqx.filter_grad(lambda p: _touch(eqx.combine(p, rest), x))(params)

    def one(key: Any) -> Any:
        state = bound.prepare(model, x, bound.init(model, x, key=key), key=key)
        grads = eqx.filter_grad(lambda p: bound.loss(eqx.combine(p, rest), x, None, state)[0])(params)
        masked = jax.tree.map(lambda g, t: jnp.where(t != 0, g, jnp.zeros_like(g)), grads, touched)
        return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(masked)])

    first = one(keys[0])

    def body(carry: Any, key: Any) -> tuple[Any, None]:  # deviations from the first: no cancellation
        total, squares = carry
        gap = one(key) - first
        return (total + gap, squares + gap**2), None

    zero = jnp.zeros_like(first)
    (total, squares), _ = jax.lax.scan(body, (zero, zero), keys)
    n = keys.shape[0]
    return first + total / n, (squares - total**2 / n) / max(n - 1, 1)


def _touch(model: Any, x: Any) -> Any:
    """Something that depends on all parameters of q, and on no other one."""
    return jnp.sum(jax.vmap(lambda x: _squares(model.recognise(x)))(x))


def _squares(q: Any) -> Any:
    numbers = jax.tree.leaves(eqx.filter(q, eqx.is_inexact_array))
    return sum(jnp.sum((leaf + 1.0) ** 2) for leaf in numbers)


def _noise(name: str, mean: np.ndarray, variance: np.ndarray, n: int, exact: Any) -> dict[str, Any]:
    total = float(variance.sum())
    length = float(np.sum((mean if exact is None else exact) ** 2))
    facts = {"variance": total, "relative": total / max(length, 1e-30), "unbiased": GRADIENTS[name].unbiased}
    if exact is not None:
        squared = float(np.sum((mean - exact) ** 2)) - total / n
        facts["bias"] = float(np.sqrt(max(squared, 0.0) / max(length, 1e-30)))
    return facts


def _table(found: dict[str, dict[str, Any]]) -> str:
    lines = [f"{'gradient':<24}{'variance':>12}{'relative':>12}  bias"]
    for name, facts in found.items():
        bias = f"{facts['bias']:.2g}" if "bias" in facts else "none" if facts["unbiased"] else "biased"
        lines.append(f"{name:<24}{facts['variance']:>12.4g}{facts['relative']:>12.4g}  {bias}")
    return "\n".join(lines)
