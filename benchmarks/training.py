"""Our own training step, timed as a user's fit runs it: whole chunks of the compiled loop."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from latentia.core.sharding import data_mesh
from latentia.energies.rbm import RBMModel
from latentia.estimator.training import Encode
from latentia.learning import objective
from latentia.learning.batches import Batches
from latentia.learning.compiled import Carry, Inputs, run_chunk
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import Optimizer
from latentia.ops import random
from latentia.units import make


class Training:
    """A PCD run that can be advanced chunk by chunk."""

    def __init__(
        self,
        n_visible: int,
        n_hidden: int,
        batch: int,
        k: int,
        n_chains: int | None,
        chunk: int,
        centring: float = 0.01,
    ):
        model = RBMModel.make(make("bernoulli", n_visible), make("bernoulli", n_hidden), key=random.key(0))
        self._begin(model, objective("pcd", k=k, n_chains=n_chains), n_visible, batch, chunk, centring)

    @classmethod
    def of(cls, model: Any, surrogate: Any, n_visible: int, batch: int, chunk: int) -> Training:
        """A run of any model with binary visibles."""
        run = cls.__new__(cls)
        run._begin(model, surrogate, n_visible, batch, chunk, 0.01)
        return run

    def _begin(self, model: Any, surrogate: Any, n_visible: int, batch: int, chunk: int, centring: float) -> None:
        rng = np.random.default_rng(0)
        X = (rng.random((10_000, n_visible)) < 0.2).astype(np.float32)
        key = random.key(0)
        model = model.initialise(jax.numpy.asarray(X), key=key)
        optimizer = Optimizer.make(learning_rate=0.01, n_steps=1_000_000)
        self.learner = GradientLearner(surrogate, optimizer, centring=centring)
        self.mesh = data_mesh(jax.devices()[:1], batch)
        self.prepare = Encode(model.x_space)
        self.batches = Batches(X, None, batch, 0, self.mesh)
        self.chunk, self.step, self.key = chunk, 0, key
        self.carry: Any = Carry(model, self.learner.init(model, jax.numpy.asarray(X[:batch]), key=key))
        self.compile_seconds = 0.0

    def advance(self) -> None:
        """One chunk, to its end."""
        data, weights, rows = self.batches.chunk(self.step, self.chunk)
        inputs = Inputs(
            self.learner,
            self.prepare,
            data,
            weights,
            rows,
            jax.random.fold_in(self.key, self.step),
            self.learner.period,
            long=True,
        )
        self.carry, _, seconds = run_chunk(inputs, self.carry)
        jax.block_until_ready(self.carry)
        self.compile_seconds += seconds
        self.step += self.chunk
