"""Encoders that predict an estimator's exact sparse codes, stored with its dictionary and saved with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, get_args

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from latentia.core.capabilities import ProxSplit
from latentia.core.errors import CapabilityError, DivergenceError, ParameterError
from latentia.core.run_folder import RunFolder
from latentia.estimator import checks, saving, training
from latentia.estimator.base import LatentEstimator
from latentia.estimator.callbacks import told
from latentia.estimator.declared import attribute, changed, param, takes
from latentia.estimator.digests import digests
from latentia.estimator.groups import BatchSize, Callbacks, Epochs, LearningRate, RunDir, Seed
from latentia.inference.sparse.unrolled import LISTA, Activation, PSDEncoder, UnrolledLayer, encode_with
from latentia.learning.batches import read_rows
from latentia.learning.checkpoint import BEFORE
from latentia.learning.encoders import Journal, learn_lista, learn_psd
from latentia.learning.progress import display

Kind = Literal["psd", "lista"]

#: Parameters of an estimator that have no part in what an encoder learns.
UNRELATED = ("run_dir", "resume", "verbose", "n_threads", "callbacks")


class Imitation(eqx.Module):
    """An encoder as a part of an estimator's file: it can say in plain values how it is built."""

    encoder: Any

    @property
    def blueprint(self) -> dict[str, Any]:
        """What :meth:`build` needs."""
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
        k, d, positive = blueprint["n_atoms"], blueprint["n_features"], blueprint["nonnegative"]
        each, weights = jnp.zeros(k), jnp.zeros((k, d))
        if "n_layers" not in blueprint:
            return cls(PSDEncoder(weights, each, each, each, blueprint["activation"], positive))
        sideways = jnp.zeros((k, k))
        n_layers = blueprint["n_layers"]
        return cls(
            LISTA(tuple(UnrolledLayer(weights, sideways if i else None, each) for i in range(n_layers)), positive)
        )


class Recipe(Epochs, BatchSize, LearningRate, RunDir, Callbacks, Seed):
    """The choices of one training; see :meth:`Imitated.fit_encoder`."""

    #: Which encoder learns.
    kind: Kind = attribute()

    n_layers: int = param(default=3, check=checks.integer(1), doc='"lista": number of layers.')
    beta: float = param(
        default=1.0,
        check=checks.number(0, open_low=True),
        doc='"psd": weight of the agreement between codes and encoder.',
    )
    activation: Activation = param(
        default="soft",
        check=checks.one_of(*get_args(Activation)),
        doc='"psd": "soft" (a soft threshold) or "tanh" (with a gain).',
    )
    update_dictionary: bool = param(
        default=False,
        check=checks.flag,
        doc='"psd": whether the dictionary is learned too.',
    )
    n_code_steps: int = param(
        default=30,
        check=checks.integer(1),
        doc='"psd": proximal steps for the codes of a batch.',
    )
    dictionary_rate: float = param(
        default=0.1,
        check=checks.number(0, open_low=True),
        doc='"psd": gradient step of the dictionary, if it is learned too.',
    )

    n_epochs = changed(default=30, doc='passes over the signals; for "lista" per layer.')
    batch_size = changed(default=256, doc="signals per update.")
    learning_rate = changed(default=1e-3, doc="step size of Adam at the start; it falls to zero.")
    random_state = changed(default=0, check=checks.integer(0), doc="order of the signals.")
    run_dir = changed(
        doc="folder for the metrics, checkpoints and the estimator with its encoder; None writes nothing.",
    )
    resume = changed(
        doc="continue from the folder's checkpoints, with the dictionary at the start of the training."
    )
    callbacks = changed(
        doc="functions called with a ``latentia.learning.fit.Event`` after every epoch. True ends the stage: for "
        '"lista" one layer, alone or with those before it; for "psd" the whole training.',
    )

    @property
    def plain(self) -> dict[str, Any]:
        """The numbers and names of the kind, without what has no part in the result."""
        values = {k: v.item() if isinstance(v, np.generic) else v for k, v in vars(self).items()}
        others = (*(PSD_ONLY if self.kind == "lista" else LISTA_ONLY), "resume", "run_dir", "callbacks")
        return {name: value for name, value in values.items() if name not in others}


#: What belongs to one kind alone.
LISTA_ONLY = ("n_layers",)
PSD_ONLY = ("beta", "activation", "update_dictionary", "n_code_steps", "dictionary_rate")


class Imitated(LatentEstimator):
    """For estimators with exact ℓ1 codes: encoders that guess these codes in a fixed number of operations."""

    #: Fitted encoders, by the name of their attribute.
    parts: ClassVar[Mapping[str, Any]] = {"psd_": Imitation, "lista_": Imitation}

    psd_: Imitation = attribute()
    lista_: Imitation = attribute()
    #: Metrics of the last encoder's training.
    encoder_history_: list[dict[str, float]] = attribute()
    codes: Any = attribute()

    @takes(Recipe)
    def fit_encoder(self, kind: Kind, X: Any, recipe: Recipe) -> Self:
        """Learn an encoder for the dictionary as it is; ``encode(X, using=kind)`` then takes it.

        ``encoder_history_`` holds the metrics. If training diverges, the last good encoder is kept: of "lista" it
        has as many layers as there were.

        Args:
            kind: "psd" (one layer, learned with codes that are kept near it) or "lista" (unrolled steps, taught by
                the exact codes).
            X: signals to learn from, ``(n, n_features)``.
        """
        recipe.kind = kind
        model = self._checked_recipe(recipe)
        signals = np.asarray(model.signal(self._accept(X, reset=False).read_all()))
        plan = training.Plan(0, recipe.batch_size, 0, run_dir=recipe.run_dir, resume=recipe.resume)
        with training.run_folder(self, plan, signals.shape[0]) as folder:
            journal = Journal(
                folder=folder,
                resume=bool(recipe.resume),
                fingerprint="" if folder is None else _described(self, folder, signals, recipe),
                callbacks=tuple(recipe.callbacks or ()),
                display=lambda stage: display(self.verbose, f"{type(self).__name__} {kind}: {stage}"),
            )
            with told(self, journal.callbacks) as begin:
                begin()
                try:
                    found = self._learn_encoder(recipe, X, signals, journal)
                except DivergenceError as error:
                    if error.result is not None:
                        self._keep_encoder(recipe, error.result.model, journal)
                    raise
                self._keep_encoder(recipe, found, journal)
            saving.save_run(self, folder)
        return self

    def _checked_recipe(self, recipe: Recipe) -> Any:
        """The model, if the recipe fits it."""
        checks.one_of(*get_args(Kind))("kind", recipe.kind)
        checks.check_parameters(recipe)
        others, other = (PSD_ONLY, "psd") if recipe.kind == "lista" else (LISTA_ONLY, "lista")
        for name in others:
            if getattr(recipe, name) != recipe.declared[name].default:
                raise ParameterError(f"{name} belongs to kind={other!r}; {recipe.kind!r} has no use for it.")
        model = self._needs(ProxSplit, "fit_encoder")
        penalty = model.penalty
        if penalty is None or penalty.name != "l1":
            raise CapabilityError("Encoders imitate the codes of an ℓ1 penalty; this dictionary has another rule.")
        if recipe.kind == "psd" and penalty.weights is not None:
            raise CapabilityError("PSD supports one strength for all atoms, not weights. Use kind='lista'.")
        return model

    def _learn_encoder(self, recipe: Recipe, X: Any, signals: np.ndarray, journal: Journal) -> Any:
        """What is learned: of "lista" the encoder, of "psd" a pair of encoder and dictionary."""
        penalty, atoms = self.model_.penalty, np.asarray(self.model_.dictionary)
        options = {name: value for name, value in recipe.plain.items() if name != "kind"}
        options |= {"nonnegative": penalty.nonnegative, "journal": journal}
        if recipe.kind == "psd":
            return learn_psd(signals, atoms, penalty.alpha, **options)
        strength = penalty.alpha if penalty.weights is None else penalty.alpha * np.asarray(penalty.weights)
        return learn_lista(signals, self.codes(X, output="csr").values, atoms, strength, **options)

    def _keep_encoder(self, recipe: Recipe, found: Any, journal: Journal) -> None:
        if recipe.kind == "lista":
            self.lista_ = Imitation(found)
        else:
            encoder, atoms = found
            if recipe.update_dictionary:
                self._forget_encoders()
                self.model_ = self.model_.with_dictionary(atoms)
            self.psd_ = Imitation(encoder)
        self.encoder_history_ = journal.history

    def encode(self, X: Any, *, using: str = "exact") -> np.ndarray:
        """Codes of the rows, ``(n, n_components)``: exact ones, or those that a fitted encoder guesses.

        Args:
            X: data, ``(n, n_features)``.
            using: "exact", or "psd" or "lista" after :meth:`fit_encoder`.
        """
        checks.one_of("exact", "psd", "lista")("using", using)
        if using == "exact":
            return self.transform(X)
        found = vars(self).get(f"{using}_")
        if found is None:
            raise ParameterError(f"There is no {using!r} encoder yet. Call fit_encoder({using!r}, X) first.")
        return encode_with(found.encoder, self.model_.signal(self._accept(X, reset=False).read_all()))

    def _forget_encoders(self) -> None:
        for name in (*self.parts, "encoder_history_"):
            vars(self).pop(name, None)

    def _kept(self, result: Any) -> None:
        del result
        self._forget_encoders()  # those of another dictionary


def _described(estimator: Any, folder: RunFolder, signals: np.ndarray, recipe: Recipe) -> dict[str, str]:
    """Write the settings of a new run into its folder; what a run must share with the run it resumes."""
    if not folder.is_begun:  # a run of which there is one keeps its own description
        folder.write_encoder(recipe.plain)
    params = {k: v for k, v in estimator.get_params(deep=False).items() if k not in UNRELATED}
    facts = {
        **{f"{type(estimator).__name__}'s {name}": value for name, value in params.items()},
        "the signals": signals,
        "the dictionary": np.asarray(estimator.model_.dictionary),
        "the blueprint": estimator.blueprint_,
    }
    return {**digests(**recipe.plain, **facts), BEFORE: _earlier(estimator, signals, recipe)}


def _earlier(estimator: Any, signals: np.ndarray, recipe: Recipe) -> str:
    """What earlier releases wrote into a checkpoint instead."""
    params = saving.plain_parameters(estimator)
    for name in UNRELATED:
        params.pop(name, None)
    facts = [recipe.plain, params, list(signals.shape), estimator.blueprint_]
    found = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    few = read_rows(signals, np.linspace(0, signals.shape[0] - 1, 64).astype(int))
    for array in (few, estimator.model_.dictionary):
        found.update(np.asarray(array, order="C").tobytes())
    return found.hexdigest()
