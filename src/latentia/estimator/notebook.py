"""The notebook display of a fitted estimator, below scikit-learn's diagram: a summary and a picture.

It only reads attributes: nothing is computed by the model, so that displaying an estimator compiles
nothing and takes no noticeable time. Colours are those of the page, so that it is readable in light and dark mode.
"""

from __future__ import annotations

import base64
import inspect
import io
import math
import re
import sys
from html import escape
from typing import Any

import numpy as np

from latentia.estimator.weights import input_weights, picture_shape
from latentia.likelihood.result import LogLikelihood

#: At most this many filters in the small picture, and about how wide it is shown, in CSS pixels.
_MOST, _ROOM = 36, 132
#: The ends of the colours of signed values: blue is negative, red is positive, as in all pictures here.
_NEGATIVE, _POSITIVE = np.array([5, 48, 97.0]), np.array([103, 0, 31.0])
_NOT_METRICS = ("step", "epoch", "seconds")
_STYLE = (
    "<style>.latentia-card{display:flex;flex-wrap:wrap;gap:1em;align-items:flex-start;margin-top:.5em;"
    "padding:.7em 1em;border:1px solid rgba(128,128,128,.45);border-radius:.4em;max-width:54em;font-size:13px;"
    "line-height:1.5;color:inherit;background:transparent}.latentia-card dl{display:grid;flex:1 1 24em;"
    "grid-template-columns:auto 1fr;gap:0 1em;margin:0}.latentia-card dt{opacity:.7;font-weight:normal}"
    ".latentia-card dd{margin:0}.latentia-card img{image-rendering:pixelated;display:block}"
    ".latentia-card figure{margin:0}.latentia-card figcaption{opacity:.7;font-size:11px}</style>"
)


def with_card(estimator: Any, diagram: str) -> str:
    """scikit-learn's diagram, and under it the card if the estimator is fitted. Never raises."""
    try:
        return diagram + card(estimator) if "model_" in vars(estimator) else diagram
    except Exception:  # a picture in a notebook must not stop anybody's work
        return diagram


def card(estimator: Any) -> str:
    """The card of a fitted estimator, as HTML that needs nothing else."""
    facts = {
        "model": escape((inspect.getdoc(type(estimator)) or type(estimator).__name__).split("\n")[0].rstrip(".")),
        "formula": _typeset(formula(estimator)),
        "data": escape(_data(estimator)),
        "training": escape(_training(estimator)),
        "at the end": escape(_metrics(estimator)),
        "likelihood": _likelihood(estimator),
    }
    rows = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in facts.items() if text)
    return f'{_STYLE}<div class="latentia-card"><dl>{rows}</dl>{_picture(estimator)}</div>'


def formula(estimator: Any) -> str:
    """The energy, from the first formula line of the docstrings of the estimator, the model and their modules."""
    kinds = (type(estimator), type(estimator.model_))
    for item in (sys.modules[kinds[0].__module__], *kinds, sys.modules[kinds[1].__module__]):
        for line in (inspect.getdoc(item) or "").splitlines():
            if re.match(r"\s*(E\([^)]*\)|F\(x\)|(-|−)?log p\(x\)) = ", line):
                return re.split(r"\s{3,}", line.strip())[0].rstrip(".,;")
    return ""


def _typeset(line: str) -> str:
    return re.sub(r"_([A-Za-z0-9]+)", r"<sub>\1</sub>", escape(line))


def _data(estimator: Any) -> str:
    n_rows = vars(estimator).get("_n_rows")
    size = f"{n_rows:,} rows × {estimator.n_features_in_:,}" if n_rows else f"{estimator.n_features_in_:,}"
    return f"{size} features → {estimator._n_features_out:,} latents"


def _training(estimator: Any) -> str:
    if "fit_seconds_" not in vars(estimator):
        return ""
    compiling = f", and {estimator.compile_seconds_:.1f} s of compiling" if estimator.compile_seconds_ else ""
    return f"{estimator.n_steps_:,} steps in {estimator.fit_seconds_:.1f} s{compiling}"


def _metrics(estimator: Any) -> str:
    last = estimator.history_[-1] if estimator.history_ else {}
    shown = [(name, value) for name, value in last.items() if name not in _NOT_METRICS and name != "gradient_norm"]
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in shown[:4]).replace("-", "−")


def _likelihood(estimator: Any) -> str:
    result = estimator._remembered("_log_likelihood")
    return result._repr_html_() if isinstance(result, LogLikelihood) else ""


def _picture(estimator: Any) -> str:
    weights = input_weights(estimator)
    if weights is None:
        return ""
    shape = weights.shape[1:] if weights.ndim > 2 else picture_shape(estimator, weights.shape[1])
    if shape is None or len(shape) not in (2, 3) or shape[2:] not in ((), (3,)):
        return ""
    strongest = np.argsort(-np.linalg.norm(weights.reshape(len(weights), -1), axis=1), kind="stable")[:_MOST]
    tiles = np.nan_to_num(weights[strongest]).reshape(-1, *shape)
    png, size = _mosaic(tiles)
    zoom = max(1, round(_ROOM / size[0]))
    many = (
        f"{len(tiles)} strongest of {len(weights):,} filters" if len(weights) > _MOST else f"{len(weights)} filters"
    )
    return (
        f'<figure><img alt="{many}" width="{zoom * size[0]}" height="{zoom * size[1]}" '
        f'src="data:image/png;base64,{png}"><figcaption>{many}</figcaption></figure>'
    )


def _mosaic(tiles: np.ndarray) -> tuple[str, tuple[int, int]]:
    """Filters as small as they are, with transparent gaps: (PNG in base 64, (width, height))."""
    from PIL import Image

    n, height, width = tiles.shape[:3]
    columns = math.ceil(math.sqrt(n))
    canvas = np.zeros((math.ceil(n / columns) * (height + 1) - 1, columns * (width + 1) - 1, 4), np.uint8)
    for place, tile in enumerate(tiles):
        top, left = place // columns * (height + 1), place % columns * (width + 1)
        canvas[top : top + height, left : left + width, :3] = _coloured(tile / (np.abs(tile).max() or 1.0))
        canvas[top : top + height, left : left + width, 3] = 255
    buffer = io.BytesIO()
    Image.fromarray(canvas).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode(), (canvas.shape[1], canvas.shape[0])


def _coloured(values: np.ndarray) -> np.ndarray:
    """Values from −1 to 1 as colours: from blue by white to red; colour images by their own channels."""
    if values.ndim == 3:
        return 127.5 * (values + 1)
    size = np.abs(values)[..., None] ** 0.7
    return 255 * (1 - size) + size * np.where(values[..., None] < 0, _NEGATIVE, _POSITIVE)
