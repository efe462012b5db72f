"""Encoders that imitate an estimator's exact sparse codes, kept beside its dictionary and saved with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from latentia.core.errors import CapabilityError, ParameterError
from latentia.core.model import ProxSplit
from latentia.estimator import checks
from latentia.estimator.base import LatentEstimator
from latentia.learning.batches import read_rows

Kind = Literal["psd", "lista"]


class Imitation(eqx.Module):
    """An encoder as a part of an estimator's file: it can say in plain values how it is built."""

    encoder: Any

    @property
    def blueprint(self) -> dict[str, Any]:
        """What :meth:`build` needs."""
        from latentia.inference.sparse.unrolled import LISTA

        n_atoms, n_features = self.encoder.shape
        own: dict[str, Any] = (
            {"n_layers": len(self.encoder.layers)}
            if isinstance(self.encoder, LISTA)
            else {"activation": self.encoder.activation}
        )
        facts = {"n_atoms": n_atoms, "n_features": n_features, "nonnegative": bool(self.encoder.nonnegative)}
        return facts | own

    @classmethod
    def build(cls, blueprint: Mapping[str, Any]) -> Imitation:
        """The structure, with zeros in it."""
        from latentia.inference.sparse.unrolled import LISTA, PSDEncoder, UnrolledLayer

        k, d, positive = blueprint["n_atoms"], blueprint["n_features"], blueprint["nonnegative"]
        each, weights = jnp.zeros(k), jnp.zeros((k, d))
        if "n_layers" not in blueprint:
            return cls(PSDEncoder(weights, each, each, each, blueprint["activation"], positive))
        sideways = jnp.zeros((k, k))
        n_layers = blueprint["n_layers"]
        return cls(
            LISTA(tuple(UnrolledLayer(weights, sideways if i else None, each) for i in range(n_layers)), positive)
        )


class Imitated(LatentEstimator):
    """For estimators with exact ℓ1 codes: encoders that guess these codes in a fixed number of operations."""

    #: Fitted encoders, by the name of their attribute.
    parts: ClassVar[Mapping[str, Any]] = {"psd_": Imitation, "lista_": Imitation}

    psd_: Imitation
    lista_: Imitation
    codes: Any

    def fit_encoder(self, kind: Kind, X: Any, *, n_layers: int = 3, random_state: int = 0, **options: Any) -> Self:
        """Learn an encoder for the dictionary as it is; ``encode(X, using=kind)`` then takes it.

        Args:
            kind: "psd" (one layer, learned with codes that are kept near it) or "lista" (unrolled steps, taught by
                the exact codes).
            X: signals to learn from, ``(n, n_features)``.
            n_layers: layers of "lista".
            random_state: order of the signals.
            options: further ones of :func:`latentia.learning.encoders.learn_psd` or ``learn_lista``: ``n_epochs``,
                ``batch_size``, ``learning_rate``; for "psd" also ``update_dictionary``, which lets the dictionary
                learn along.
        """
        from latentia.learning.encoders import learn_lista, learn_psd

        checks.one_of("psd", "lista")("kind", kind)
        checks.integer(1)("n_layers", n_layers)
        model = self._needs(ProxSplit, "fit_encoder")
        penalty = model.penalty
        if penalty is None or penalty.name != "l1":
            raise CapabilityError("Encoders imitate the codes of an ℓ1 penalty; this dictionary has another rule.")
        rows = self._validate(X, reset=False)
        signals = model.signal(read_rows(rows, np.arange(rows.shape[0])))
        atoms = np.asarray(model.dictionary)
        strength = penalty.alpha if penalty.weights is None else penalty.alpha * np.asarray(penalty.weights)
        shared = {"nonnegative": penalty.nonnegative, "random_state": random_state, **options}
        if kind == "lista":
            taught = self.codes(X, output="dense").values
            self.lista_ = Imitation(learn_lista(signals, taught, atoms, strength, n_layers, **shared))
            return self
        if penalty.weights is not None:
            raise CapabilityError("PSD knows one strength for all atoms, not weights. Use kind='lista'.")
        encoder, atoms = learn_psd(signals, atoms, penalty.alpha, **shared)
        if options.get("update_dictionary"):
            self._forget_encoders()
            self.model_ = model.with_dictionary(atoms)
        self.psd_ = Imitation(encoder)
        return self

    def encode(self, X: Any, *, using: str = "exact") -> np.ndarray:
        """Codes of the rows, ``(n, n_components)``: exact ones, or those that a fitted encoder guesses.

        Args:
            X: data, ``(n, n_features)``.
            using: "exact", or "psd" or "lista" after :meth:`fit_encoder`.
        """
        from latentia.inference.sparse.unrolled import encode_with

        checks.one_of("exact", "psd", "lista")("using", using)
        if using == "exact":
            return self.transform(X)
        found = vars(self).get(f"{using}_")
        if found is None:
            raise ParameterError(f"There is no {using!r} encoder yet. Call fit_encoder({using!r}, X) first.")
        rows = self._validate(X, reset=False)
        return encode_with(found.encoder, self.model_.signal(read_rows(rows, np.arange(rows.shape[0]))))

    def _forget_encoders(self) -> None:
        for name in self.parts:
            if name in vars(self):
                delattr(self, name)

    def _keep(self, result: Any) -> None:
        self._forget_encoders()  # those of another dictionary
        super()._keep(result)

    def adopt(self, model: Any, blueprint: dict[str, Any], feature_names: list[str] | None = None) -> Self:
        """Become a fitted estimator around a given model."""
        self._forget_encoders()
        return super().adopt(model, blueprint, feature_names)
