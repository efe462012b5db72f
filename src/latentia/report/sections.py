"""The pictures of one run. Each section works from capabilities and arrays, never from a family's name."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from latentia.core import space
from latentia.core.errors import CapabilityError
from latentia.core.model import Decodes, Encodes, ExactSampler
from latentia.core.space import Space
from latentia.report import plots, theme
from latentia.report.runs import Run

MOST_FILTERS, N_SAMPLES, N_SWEEPS, N_PAIRS = 100, 64, 1000, 12
_TINY = 1e-7


class Missing(Exception):
    """Why a section cannot be made, in one line."""


@dataclasses.dataclass
class Picture:
    """A figure as HTML, and what it shows."""

    html: Markup
    caption: str = ""
    wide: bool = False


@dataclasses.dataclass
class Section:
    """A part of the page: text and pictures, or the reason why there are none."""

    key: str
    title: str
    text: list[str] = dataclasses.field(default_factory=list)
    pictures: list[Picture] = dataclasses.field(default_factory=list)
    note: str = ""
    half: bool = False


class Gallery:
    """The sections of one run; ``prefix`` keeps the ids of its drawings apart from other runs'."""

    def __init__(self, run: Run, prefix: str):
        self.run, self.prefix = run, prefix
        self.codes: np.ndarray | None = None
        self._count = 0

    def sections(self) -> list[Section]:
        """All sections, in the order of the page."""
        made: tuple[tuple[str, str, Callable[[Section], None]], ...] = (
            ("likelihood", "Likelihood", self._likelihood),
            ("training", "Training", self._training),
            ("activations", "Activations", self._activations),
            ("filters", "Filters", self._filters),
            ("samples", "Samples", self._samples),
            ("reconstructions", "Reconstructions", self._reconstructions),
        )
        sections = [self._made(*each) for each in made]
        return sections + ([self._made("pictures", "Pictures", self._pictures)] if self._left() else [])

    def _left(self) -> list[Path]:
        """Pictures that the run itself left in its folder."""
        return sorted(self.run.folder.glob("*.png"))

    def _made(self, key: str, title: str, make: Callable[[Section], None]) -> Section:
        section = Section(key, title, half=key in ("filters", "samples") and self.run.image_shape is not None)
        try:
            make(section)
        except (Missing, CapabilityError) as why:
            section.pictures, section.note = [], str(why)
        except Exception as error:  # one broken section must not cost the others
            section.pictures, section.note = [], f"Could not be made: {type(error).__name__}: {error}"
        return section

    # -- helpers -------------------------------------------------------------------------------------------

    def _svg(self, figure: Any, alt: str, caption: str = "", wide: bool = False) -> Picture:
        self._count += 1
        return Picture(Markup(theme.svg(figure, alt, f"{self.prefix}-{self._count}")), caption, wide)

    def _png(self, figure: Any, alt: str, caption: str = "") -> Picture:
        return Picture(Markup(theme.png(figure, alt)), caption, wide=True)

    def _estimator(self) -> Any:
        if self.run.estimator is None:
            raise Missing(self.run.problems.get("model", "There is no model."))
        return self.run.estimator

    def _rows(self) -> np.ndarray:
        if self.run.rows is None:
            raise Missing(self.run.problems.get("data", "There are no data."))
        return self.run.rows

    def _features(self) -> list[str]:
        return [str(name) for name in getattr(self.run.estimator, "feature_names_in_", [])]

    # -- sections ------------------------------------------------------------------------------------------

    def _likelihood(self, section: Section) -> None:
        result = self.run.likelihood
        if result is None:
            raise Missing(self.run.problems.get("evaluation", "evaluation.json holds no log_likelihood."))
        lower, _, upper = plots.interval_ends(result)
        if lower == upper:
            section.text.append(
                f"{number(lower)} nats per example. The value is exact: the normaliser is known in closed "
                "form, or every state was counted."
            )
        else:
            section.text.append(
                f"The true value should lie {between(lower, upper)} (error bars of two standard errors "
                "included, chains in equilibrium assumed). The normaliser Z of the model is not computed "
                "but bracketed: the lower end is what the data score if Z is as large as it may be, "
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
        for name in names:
            last = next((row[name] for row in reversed(self.run.history) if row.get(name) is not None), None)
            alt = f"{plots.readable(name)} during training, {last:.4g} at the end"
            section.pictures.append(self._svg(plots.curves(self.run.history, [name]), alt))

    def _activations(self, section: Section) -> None:
        estimator, rows = self._estimator(), self._rows()
        self.codes = codes = estimator.transform(rows)
        use = codes.mean(axis=0)
        section.text.append(f"Posterior means of the latents for {len(rows):,} {self.run.rows_are}.")
        figure = plots.histogram(codes, title="All activations")
        section.pictures.append(self._svg(figure, "Histogram of all activations"))
        figure = plots.histogram(
            use, title="Use of each latent", label="mean activation", count="share of the latents"
        )
        section.pictures.append(self._svg(figure, "Histogram of the mean activation of each latent"))

    def _filters(self, section: Section) -> None:
        estimator = self._estimator()
        picks = picks_one(estimator.model_.z_space)
        filters, meaning = latent_pictures(estimator)
        strength = np.linalg.norm(filters, axis=1)
        by_use = picks and self.codes is not None
        order = np.argsort(
            -(self.codes.mean(axis=0) if by_use and self.codes is not None else strength), kind="stable"
        )
        shown = filters[order][:MOST_FILTERS]
        section.title = "Means" if picks else "Filters"
        many = f" The {MOST_FILTERS} {'most used' if by_use else 'strongest'} of {len(filters):,} are shown." * (
            len(filters) > MOST_FILTERS
        )
        section.text.append(f"{meaning} Sorted by {'use' if by_use else 'strength'}.{many}")
        alt = f"{len(shown)} {section.title.lower()} of the model"
        if self.run.image_shape is not None:
            grid = plots.image_grid(shown, self.run.image_shape, n=MOST_FILTERS, signed=not picks)
            section.pictures.append(self._png(grid, alt))
        else:
            figure = plots.matrix(shown, columns=self._features(), signed=not picks, y="latent, by rank")
            section.pictures.append(self._svg(figure, alt, wide=True))

    def _samples(self, section: Section) -> None:
        estimator = self._estimator()
        model = estimator.model_
        smooth = isinstance(model, Decodes) and not picks_one(model.z_space)
        samples = estimator.sample(N_SAMPLES, n_steps=N_SWEEPS, mean=smooth, random_state=0)
        samples = as_columns(estimator, samples)
        how = (
            "Independent draws"
            if isinstance(model, ExactSampler)
            else f"Draws after {N_SWEEPS:,} Gibbs sweeps, each from its own start"
        )
        shown = (
            "; each shows the mean of the visibles given the drawn latents, which is smoother." if smooth else "."
        )
        section.text.append(how + shown)
        alt = f"{N_SAMPLES} samples from the model"
        if self.run.image_shape is not None:
            section.pictures.append(self._png(plots.image_grid(samples, self.run.image_shape), alt))
        elif samples.shape[1] == 2:
            drawn = estimator.sample(500, n_steps=N_SWEEPS, random_state=0)
            groups = {"samples": drawn} if self.run.rows is None else {"data": self.run.rows, "samples": drawn}
            section.text = ["Draws from the model, in the plane of the two features."]
            section.pictures.append(self._svg(plots.scatter(groups, columns=self._features()), alt, wide=True))
        else:
            figure = plots.matrix(samples, columns=self._features(), y="sample")
            section.pictures.append(self._svg(figure, alt, wide=True))

    def _reconstructions(self, section: Section) -> None:
        estimator, rows = self._estimator(), self._rows()
        again = as_columns(estimator, estimator.reconstruct(rows))
        error, spread = float(np.mean((rows - again) ** 2)), float(np.mean((rows - rows.mean(axis=0)) ** 2))
        share = f", {100 * error / spread:.0f} % of the data's variance" if spread > 0 else ""
        section.text.append(
            f"Encoded and decoded again: mean squared error {error:.3g}{share} ({self.run.rows_are})."
        )
        linear = linear_reconstructions(estimator, self.run.training, rows)
        if linear is not None:
            error = float(np.mean((rows - linear) ** 2))
            section.text.append(f"By as many principal components of the training rows: {error:.3g}.")
        if self.run.image_shape is None:
            return
        some = np.linspace(0, len(rows) - 1, min(N_PAIRS, len(rows))).astype(int)
        others = [] if linear is None else [linear[some]]
        figure = plots.reconstructions(rows[some], again[some], self.run.image_shape, *others, n=N_PAIRS)
        last = " Last: by as many principal components." if others else ""
        section.pictures.append(
            self._png(
                figure,
                f"{len(some)} examples and their reconstructions",
                f"Above: originals. Below: reconstructions.{last}",
            )
        )

    def _pictures(self, section: Section) -> None:
        for path in self._left():
            data = base64.b64encode(path.read_bytes()).decode()
            name = plots.readable(path.stem)
            html = Markup('<img src="data:image/png;base64,{}" alt="{}">').format(data, name)
            section.pictures.append(Picture(html, name, wide=True))


def linear_reconstructions(estimator: Any, training: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    """The rows by as many principal components of training rows as a real-valued code has numbers.

    None where codes are not real, are as wide as the data, or where there are too few rows to learn from.
    """
    model = estimator.model_
    codes = space.leaves(model.code_space if isinstance(model, Encodes) else model.z_space)
    if training is None or training.ndim != 2 or not all(leaf.domain == "real" for leaf in codes):
        return None
    n = space.width(codes)
    if not 0 < n < training.shape[1] or 2 * n > len(training):
        return None
    mean = training.mean(axis=0)
    axes = np.linalg.svd(training - mean, full_matrices=False)[2][:n]
    return mean + (rows - mean) @ axes.T @ axes


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
    """An interval in words, with enough decimals to tell its ends apart."""
    width = upper - lower
    decimals = int(np.clip(-np.floor(np.log10(width)), 2, 5)) if 0 < width < np.inf else 2
    return f"between {number(lower, decimals)} and {number(upper, decimals)}"


def picks_one(z_space: Any) -> bool:
    """Whether the latents name one of several states, as in a mixture."""
    return isinstance(z_space, Space) and z_space.domain == "categorical" and z_space.shape[0] == 1


def latent_pictures(estimator: Any) -> tuple[np.ndarray, str]:
    """(one row per latent, what the rows mean).

    What switching a latent on does to the visibles: the change of their mean, or of their log-odds where they
    are binary, which is not squeezed where they are nearly always on or off. A latent that names a state has
    a mean of its own instead.
    """
    model = estimator.model_
    if not isinstance(model, Decodes):
        raise Missing("The model cannot map latents to visibles (it lacks Decodes), so it has no filters to show.")
    on, off = estimator.latent_switches()
    means = as_columns(estimator, estimator.inverse_transform(on))
    if picks_one(model.z_space):
        return means, "The mean of the visibles for each component."
    nothing = as_columns(estimator, estimator.inverse_transform(off))
    domain = common_domain(estimator)
    if domain not in ("binary", "spin"):
        return (
            means - nothing,
            "How switching a latent on changes the mean of the visibles: red raises it, blue lowers it.",
        )
    change = _log_odds(means, domain) - _log_odds(nothing, domain)
    return (
        change,
        "How switching a latent on changes the log-odds of each visible: red raises them, blue lowers them.",
    )


def _log_odds(means: np.ndarray, domain: str) -> np.ndarray:
    p = np.clip(means if domain == "binary" else (1 + means) / 2, 1e-30, 1 - _TINY)
    return np.log(p) - np.log1p(-p)


def data_spaces(estimator: Any) -> list[Space]:
    """The spaces of the data's columns: without labels."""
    return space.seen(estimator.model_.x_space, estimator.n_features_in_)


def common_domain(estimator: Any) -> str:
    """The domain of the data's columns; "mixed" if they have several."""
    domains = {leaf.domain for leaf in data_spaces(estimator)}
    return domains.pop() if len(domains) == 1 else "mixed"


def as_columns(estimator: Any, rows: np.ndarray) -> np.ndarray:
    """Flat means as one column per feature: a categorical site becomes its expected state."""
    rows, spaces = np.asarray(rows, np.float64), data_spaces(estimator)
    if rows.shape[1] != space.width(spaces):
        return rows
    parts = [
        part @ np.arange(leaf.shape[1]) if leaf.domain == "categorical" else part.reshape(len(rows), -1)
        for leaf, part in zip(spaces, space.unflatten(spaces, rows), strict=True)
    ]
    return np.concatenate(parts, axis=1)
