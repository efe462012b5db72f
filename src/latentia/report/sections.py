"""The pictures of one run. Each section works from capabilities and arrays, never from a family's name.

A section holds pictures that need no script and, where there is more to see, data for a *widget*: the page's script
then replaces the still pictures by interactive ones.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from latentia.core.capabilities import ProxSplit
from latentia.core.errors import CapabilityError
from latentia.core.run_folder import EVALUATION, RunFolder
from latentia.report import curves, moving, plane, plots, theme
from latentia.report.explorer import Explorer, explore
from latentia.report.latents import (
    Missing,
    as_columns,
    common_domain,
    data_spaces,
    groups,
    latent_pictures,
    linear_reconstructions,
    picks_one,
)
from latentia.report.runs import Run

MOST_FILTERS, N_PAIRS = 100, 12
#: With fewer latents a histogram of their use says less than the explorer.
FEWEST_USES = 12


@dataclasses.dataclass
class Picture:
    """A figure as HTML, and what it shows."""

    html: Markup
    caption: str = ""
    wide: bool = False


@dataclasses.dataclass
class Section:
    """A part of the page: text and pictures, or the reason why there are none.

    ``still`` pictures are for readers without a script; ``widget`` and ``data`` are what replaces them.
    """

    key: str
    title: str
    text: list[str] = dataclasses.field(default_factory=list)
    pictures: list[Picture] = dataclasses.field(default_factory=list)
    still: list[Picture] = dataclasses.field(default_factory=list)
    widget: str = ""
    data: Any = None
    note: str = ""


class Gallery:
    """The sections of one run.

    Args:
        run: what its folder holds.
        prefix: keeps the ids of its drawings apart from other runs'.
        share: of the page's room, 1 for a run that has it for itself.
    """

    def __init__(self, run: Run, prefix: str, share: float = 1.0):
        self.run, self.prefix, self.share = run, prefix, share
        self.codes: np.ndarray | None = None
        self.explorer: Explorer | None = None
        self.error: float | None = None
        self.r_hat: float = float("nan")
        self._count = 0

    def sections(self) -> list[Section]:
        """All sections, in the order of the page."""
        made: list[tuple[str, str, Callable[[Section], None]]] = [
            ("likelihood", "Likelihood", self._likelihood),
            ("training", "Training", self._training),
            ("filters", "Filters", self._filters),
            ("activations", "Activations", self._activations),
            ("samples", "Samples", self._samples),
            ("reconstructions", "Reconstructions", self._reconstructions),
        ]
        if curves.sampler_metrics(self.run.history):
            made.insert(2, ("sampler", "Sampler", self._sampler))
        sections = [self._made(*each) for each in made]
        for key, title, make, applies in (
            ("map", "Map of the codes", self._map, plane.has_map(self.run, self.codes)),
            ("traversals", "Traversals", self._traversals, moving.has_traversals(self.run)),
            ("pictures", "Pictures", self._pictures, bool(self._left())),
        ):
            sections += [self._made(key, title, make)] if applies else []
        return sections

    def _left(self) -> list[Path]:
        """Pictures that the run itself left in its folder."""
        return RunFolder(self.run.folder).pictures

    def _made(self, key: str, title: str, make: Callable[[Section], None]) -> Section:
        section = Section(key, title)
        try:
            make(section)
        except (Missing, CapabilityError) as why:
            return Section(key, section.title, note=str(why))
        except Exception as error:  # one broken section must not cost the others
            return Section(key, section.title, note=f"Could not be made: {type(error).__name__}: {error}")
        return section

    # -- helpers -------------------------------------------------------------------------------------------

    def _svg(self, figure: Any, alt: str, caption: str = "", wide: bool = False) -> Picture:
        self._count += 1
        return Picture(Markup(theme.svg(figure, alt, f"{self.prefix}-{self._count}")), caption, wide)

    def _png(self, figure: Any, alt: str, caption: str = "", wide: bool = True) -> Picture:
        return Picture(Markup(theme.png(figure, alt)), caption, wide)

    def _estimator(self) -> Any:
        if self.run.estimator is None:
            raise Missing(self.run.problems.get("model", "There is no model."))
        return self.run.estimator

    def _rows(self) -> np.ndarray:
        if self.run.rows is None:
            raise Missing(self.run.problems.get("data", "There are no data."))
        return self.run.rows

    def _looked_at(self) -> tuple[np.ndarray, str]:
        """The rows that are encoded, training rows where there are any, and what they are."""
        if self.run.training is not None:
            return self.run.training, "training rows"
        return self._rows(), self.run.rows_are

    def _encoded(self) -> np.ndarray:
        """The codes of those rows, found once."""
        if self.codes is None:
            self.codes = np.asarray(self._estimator().transform(self._looked_at()[0]))
        return self.codes

    def _features(self) -> list[str]:
        return [str(name) for name in getattr(self.run.estimator, "feature_names_in_", [])]

    # -- sections ------------------------------------------------------------------------------------------

    def _likelihood(self, section: Section) -> None:
        result = self.run.likelihood
        if result is None:
            said = _evaluated(self.run.evaluation, {}) if self.run.evaluation else ""
            if said.strip(". "):
                section.title = "Evaluation"
                section.text.append(f"{said} It has no log-likelihood: its normaliser is not known.")
                return
            raise Missing(self.run.problems.get("evaluation", f"{EVALUATION} holds no log_likelihood."))
        lower, _, upper = plots.interval_ends(result)
        if plots.is_bound(result):
            where = f"lies {between(lower, upper)}" if lower < upper else f"is {number(lower)}"
            section.text.append(
                f"A lower bound on the log-likelihood {where} nats per example. The likelihood itself may be "
                "higher: the latents are drawn from the recognition model, not summed out."
            )
        elif lower == upper:
            section.text.append(
                f"{number(lower)} nats per example. The value is exact: the normaliser is known in closed "
                "form, or every state was counted."
            )
        else:
            section.text.append(
                f"The true value should lie {between(lower, upper)} (error bars of two standard errors "
                "included, chains in equilibrium assumed). The normaliser Z of the model is not computed "
                "but bounded from both sides: the lower end is what the data score if Z is as large as it may be, "
                "the upper end if it is as small as it may be. The dot is the best single number."
            )
        section.text.append(_evaluated(self.run.evaluation, result))
        if lower < upper:
            figure = plots.likelihood(result)
            section.pictures.append(self._svg(figure, f"The interval lies {between(lower, upper)}", wide=True))

    def _training(self, section: Section) -> None:
        names = plots.metric_names(self.run.history)
        if not names:
            raise Missing(self.run.problems.get("metrics", "The metrics hold no numbers."))
        planned, epochs = self.run.params.get("n_epochs"), self.run.history[-1].get("epoch")
        early = isinstance(planned, int) and isinstance(epochs, int | float) and epochs < planned - 1
        if early and "model" not in self.run.problems:
            section.text.append(f"Learning ended by itself after {epochs:.3g} of at most {planned:,} epochs.")
        apart = set(curves.sampler_metrics(self.run.history))
        self._curves(section, [name for name in names if name not in apart] or names)

    def _sampler(self, section: Section) -> None:
        names = curves.sampler_metrics(self.run.history)
        section.text.append("How the chains that learning drew from moved.")
        self._curves(section, names)

    def _curves(self, section: Section, names: list[str]) -> None:
        for name in names:
            last = next((row[name] for row in reversed(self.run.history) if row.get(name) is not None), None)
            alt = f"{plots.readable(name)} during training, {last:.4g} at the end"
            section.still.append(self._svg(plots.curves(self.run.history, [name]), alt))
        section.widget, section.data = "curves", curves.charts({"": self.run.history}, names)

    def _filters(self, section: Section) -> None:
        estimator = self._estimator()
        picks = picks_one(estimator.model_.z_space)
        section.title = "Means" if picks else "Atoms" if isinstance(estimator.model_, ProxSplit) else "Filters"
        try:
            rows, rows_are = self._looked_at()
        except Missing:
            self._bare_filters(section)
            return
        self.explorer = found = explore(self.run, rows, self._encoded(), rows_are, self.share)
        section.text.append(f"{found.meaning} Sorted by use. {found.note}".strip())
        section.still.append(self._filter_picture(found.rows, found.shape, found.signed, section.title))
        section.widget, section.data = "explorer", found.data

    def _bare_filters(self, section: Section) -> None:
        """Without data nothing is known about use: pictures alone, the strongest first."""
        filters, meaning = latent_pictures(self._estimator())
        order = np.argsort(-np.linalg.norm(filters, axis=1), kind="stable")
        many = f" The {MOST_FILTERS} strongest of {len(filters):,} are shown." * (len(filters) > MOST_FILTERS)
        section.text.append(f"{meaning} Sorted by strength.{many}")
        signed = not picks_one(self._estimator().model_.z_space)
        section.pictures.append(
            self._filter_picture(filters[order][:MOST_FILTERS], self.run.image_shape, signed, section.title)
        )

    def _filter_picture(self, rows: np.ndarray, shape: Any, signed: bool, what: str) -> Picture:
        alt = f"{len(rows[:MOST_FILTERS])} {what.lower()} of the model"
        if shape is not None:
            return self._png(plots.image_grid(rows, shape, n=MOST_FILTERS, signed=signed), alt)
        figure = plots.matrix(rows, columns=self._features(), signed=signed, y="latent, by rank")
        return self._svg(figure, alt, wide=True)

    def _activations(self, section: Section) -> None:
        codes = self._encoded()
        rows, rows_are = self._looked_at()
        section.text.append(f"Activations of the latents on {len(rows):,} {rows_are}.")
        figure = plots.histogram(codes, title="All activations")
        section.pictures.append(self._svg(figure, "Histogram of all activations"))
        uses, counts = [], []
        for group in groups(self._estimator(), codes.shape[1]):
            activations, _ = group.responses(codes)
            uses.append(group.use(activations))
            on = group.active(activations)
            counts.append(None if on is None else on.sum(axis=1))
        label, count = "mean size of activation", "share of latents"
        if len(use := np.concatenate(uses)) >= FEWEST_USES:
            figure = plots.histogram(use, title="Use of each latent", label=label, count=count)
            section.pictures.append(self._svg(figure, "Histogram of how much each latent is used"))
        known = [count for count in counts if count is not None]
        if known and not picks_one(self._estimator().model_.z_space):
            at_once = np.sum(known, axis=0)
            section.text.append(f"On average {at_once.mean():.1f} of {codes.shape[1]:,} latents are on at once.")
            figure = plots.histogram(
                at_once, title="Latents on at once", label="latents", count="share of examples", whole=True
            )
            section.pictures.append(self._svg(figure, "Histogram of the number of latents that are on at once"))

    def _samples(self, section: Section) -> None:
        estimator = self._estimator()
        drawn = moving.samples(self.run, self.share)
        self.r_hat = drawn.r_hat
        section.text += drawn.text
        alt = f"{len(drawn.last)} samples from the model"
        if self.run.image_shape is not None:
            section.still.append(self._png(plots.image_grid(drawn.last, self.run.image_shape), alt))
            section.widget, section.data = "frames", drawn.widget(self.run.image_shape)
        elif drawn.last.shape[1] == 2:
            points = estimator.sample(500, n_steps=moving.MOST_SWEEPS, random_state=0)
            groups = {"samples": points} if self.run.rows is None else {"data": self.run.rows, "samples": points}
            section.text = ["Draws from the model, in the plane of the two features."]
            section.pictures.append(self._svg(plots.scatter(groups, columns=self._features()), alt, wide=True))
        else:
            figure = plots.matrix(drawn.last, columns=self._features(), y="sample")
            section.pictures.append(self._svg(figure, alt, wide=True))

    def _reconstructions(self, section: Section) -> None:
        estimator, rows = self._estimator(), self._rows()
        again = as_columns(estimator, estimator.reconstruct(rows))
        self.error = error = float(np.mean((rows - again) ** 2))
        spread = float(np.mean((rows - rows.mean(axis=0)) ** 2))
        share = f", {100 * error / spread:.0f} % of the data's variance" if spread > 0 else ""
        section.text.append(
            f"Encoded and decoded again: mean squared error {error:.3g}{share} ({self.run.rows_are})."
        )
        linear = linear_reconstructions(estimator, self.run.training, rows)
        if linear is not None:
            error = float(np.mean((rows - linear) ** 2))
            section.text.append(f"By as many principal components of the training rows: {error:.3g}.")
        some = np.linspace(0, len(rows) - 1, min(N_PAIRS, len(rows))).astype(int)
        lines = [("Originals", rows), ("Reconstructions", again), ("As many principal components", linear)]
        shown = [(name, values[some]) for name, values in lines if values is not None]
        if self.run.image_shape is None:
            return
        for (name, _), figure in zip(shown, plots.strips([v for _, v in shown], self.run.image_shape), strict=True):
            section.pictures.append(self._png(figure, f"{len(some)} examples: {name.lower()}", name))

    def _map(self, section: Section) -> None:
        found = plane.latent_map(self.run, self._encoded())
        section.text += found.text
        section.pictures.append(self._svg(found.scatter, "The codes of examples in the plane", found.caption))
        if found.decoded is not None:
            alt, caption = "Decoded pictures over the plane", "Decoded points of the same plane."
            section.pictures.append(self._png(found.decoded, alt, caption, wide=False))

    def _traversals(self, section: Section) -> None:
        rows, labels = moving.traversals(self.run, self._encoded())
        section.text.append(
            f"The {len(labels)} most used latents, each moved from one end to the other while the others stay."
        )
        for name, figure in zip(labels, plots.strips(rows, self.run.image_shape or (), 420), strict=True):
            section.pictures.append(self._png(figure, f"{name} from one end to the other", name))

    def _pictures(self, section: Section) -> None:
        for path in self._left():
            data = base64.b64encode(path.read_bytes()).decode()
            name = plots.readable(path.stem)
            html = Markup('<img src="data:image/png;base64,{}" alt="{}">').format(data, name)
            section.pictures.append(Picture(html, name, wide=True))


def _evaluated(evaluation: dict[str, Any], result: dict[str, Any]) -> str:
    """How it was found and on what, and any other numbers that were measured."""
    n = evaluation.get("n_examples", (result.get("details") or {}).get("n_examples"))
    parts = [plots.readable(str(result.get("method") or ""))]
    if isinstance(n, int):
        parts.append(f"{n:,} {evaluation.get('split', '')} examples".replace("  ", " "))
    known = ("n_examples", "n_rows", "seconds")
    others = {
        key: value for key, value in evaluation.items() if isinstance(value, int | float) and key not in known
    }
    line = ", ".join(part for part in parts if part) + "."
    return " ".join([line, *(f"{plots.readable(key)}: {value:.4g}." for key, value in others.items())])


def number(value: float, decimals: int = 2) -> str:
    """With a true minus sign."""
    return f"{value:.{decimals}f}".replace("-", "−").replace("inf", "∞")


def between(lower: float, upper: float) -> str:
    """An interval in words, with enough decimals to distinguish its ends."""
    width = upper - lower
    decimals = int(np.clip(-np.floor(np.log10(width)), 2, 5)) if 0 < width < np.inf else 2
    return f"between {number(lower, decimals)} and {number(upper, decimals)}"


__all__ = [
    "Gallery",
    "Missing",
    "Picture",
    "Section",
    "as_columns",
    "between",
    "common_domain",
    "data_spaces",
    "latent_pictures",
    "linear_reconstructions",
    "number",
    "picks_one",
]
