"""Whitening: linear maps after which the features are uncorrelated with equal variance.

With centred rows, C = XᵀX/(N−1) = U Λ Uᵀ. Both maps divide by the regularised scale
s = (Λ + ε)^½, so that directions of almost no variance are not blown up into noise:

    PCA whitening   z = s⁻¹ Uᵀ (x − μ)
    ZCA whitening   z = U s⁻¹ Uᵀ (x − μ)

Because the inverse uses the same regularised scale, it is exact for every ε.

References:
    A. J. Bell and T. J. Sejnowski, "The 'independent components' of natural scenes are edge
    filters", Vision Research 37 (1997).
    A. Kessy, A. Lewin and K. Strimmer, "Optimal whitening and decorrelation", The American
    Statistician 72 (2018): of all whitening maps, ZCA stays closest to the input.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    OneToOneFeatureMixin,
    TransformerMixin,
)
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from latentia.core.errors import DataError, ParameterError
from latentia.datasets.base import check_count, row_chunks

_FLOATS: Any = (np.float64, np.float32)


class PCAWhitening(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Rotate to the principal axes and scale each to unit variance: z = (Λ + ε)^-½ Uᵀ (x − μ).

    The variance of output i is λᵢ/(λᵢ + ε): one, up to the regularisation.

    Arguments:
        n_components: number of leading axes to keep; None keeps all of them.
        epsilon: added to every variance before the square root.

    Attributes:
        mean_: μ, shape (d,).
        components_: the kept rows of Uᵀ, shape (k, d), largest variance first.
        explained_variance_: the kept eigenvalues λ, shape (k,).
        scale_: (λ + ε)^½, shape (k,).
        n_components_: k.
        n_features_in_: d.

    Example:
        >>> import numpy as np
        >>> from latentia.datasets import PCAWhitening
        >>> X = np.random.default_rng(0).normal(size=(500, 2)) @ np.array([[2.0, 1.0], [0.0, 0.5]])
        >>> Z = PCAWhitening(epsilon=0.0).fit_transform(X)
        >>> bool(np.allclose(np.cov(Z.T), np.eye(2)))
        True
    """

    n_features_in_: int

    def __init__(self, n_components: int | None = None, epsilon: float = 1e-5):
        self.n_components = n_components
        self.epsilon = epsilon

    def fit(self, X: ArrayLike, y: object = None) -> PCAWhitening:
        """Estimate the mean and the principal axes from the rows of ``X``; ``y`` is ignored."""
        rows = _validated(self, X, fitting=True)
        width = rows.shape[1]
        if self.n_components is not None:
            check_count("n_components", self.n_components)
            if self.n_components > width:
                raise ParameterError(
                    f"n_components={self.n_components} exceeds the {width} features of the data. "
                    f"Use at most {width}, or None to keep them all."
                )
        kept = width if self.n_components is None else int(self.n_components)
        self.mean_, variances, axes = _principal_axes(rows)
        self.explained_variance_, self.components_ = variances[:kept], axes[:kept]
        self.scale_ = _regularised_scale(self.explained_variance_, variances[0], self.epsilon)
        self.n_components_ = kept
        return self

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Whiten the rows of ``X``; returns shape (n, k) in the dtype of ``X``."""
        check_is_fitted(self)
        rows = _validated(self, X, fitting=False)
        white = (rows - self.mean_) @ (self.components_ / self.scale_[:, None]).T
        return white.astype(rows.dtype, copy=False)

    def inverse_transform(self, Z: ArrayLike) -> np.ndarray:
        """Map whitened rows back: x = U (Λ + ε)^½ z + μ.

        Exact when all components were kept. Otherwise it is the least-squares inverse: of the
        points that whiten to ``z``, the one nearest to the mean, which is the projection of the
        original row onto the kept axes.
        """
        check_is_fitted(self)
        rows = _check_codes(Z, self.n_components_)
        return (rows @ (self.components_ * self.scale_[:, None]) + self.mean_).astype(rows.dtype, copy=False)

    def log_det(self) -> float:
        """Return log |det W| of the map W = (Λ + ε)^-½ Uᵀ, in nats.

        Densities follow log p(x) = log p(z) + log |det W|; add it to a log-likelihood in whitened
        space to compare with one in the original space.
        """
        check_is_fitted(self)
        if self.n_components_ < self.n_features_in_:
            raise ParameterError(
                f"PCAWhitening kept {self.n_components_} of {self.n_features_in_} components, so its map has "
                "no determinant and densities before and after it cannot be compared. Use n_components=None."
            )
        return float(-np.log(self.scale_).sum())

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def __sklearn_tags__(self) -> Tags:
        return _keeps_dtype(super().__sklearn_tags__())


class ZCAWhitening(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Whiten without rotating: z = U (Λ + ε)^-½ Uᵀ (x − μ).

    The map is symmetric and, of all whitening maps, changes the data least; whitened pictures still
    look like pictures.

    Arguments:
        epsilon: added to every variance before the square root.

    Attributes:
        mean_: μ, shape (d,).
        whitening_: U (Λ + ε)^-½ Uᵀ, shape (d, d).
        dewhitening_: its inverse U (Λ + ε)^½ Uᵀ, shape (d, d).
        explained_variance_: all eigenvalues λ, largest first, shape (d,).
        scale_: (λ + ε)^½, shape (d,).
        n_features_in_: d.

    Example:
        >>> import numpy as np
        >>> from latentia.datasets import ZCAWhitening
        >>> X = np.random.default_rng(0).normal(size=(500, 2)) @ np.array([[2.0, 1.0], [0.0, 0.5]])
        >>> zca = ZCAWhitening().fit(X)
        >>> bool(np.allclose(zca.inverse_transform(zca.transform(X)), X))
        True
    """

    n_features_in_: int

    def __init__(self, epsilon: float = 1e-5):
        self.epsilon = epsilon

    def fit(self, X: ArrayLike, y: object = None) -> ZCAWhitening:
        """Estimate the mean and the symmetric whitening map; ``y`` is ignored."""
        rows = _validated(self, X, fitting=True)
        self.mean_, self.explained_variance_, axes = _principal_axes(rows)
        self.scale_ = _regularised_scale(self.explained_variance_, self.explained_variance_[0], self.epsilon)
        self.whitening_ = (axes.T / self.scale_) @ axes
        self.dewhitening_ = (axes.T * self.scale_) @ axes
        return self

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Whiten the rows of ``X``; returns the same shape and dtype."""
        check_is_fitted(self)
        rows = _validated(self, X, fitting=False)
        return ((rows - self.mean_) @ self.whitening_).astype(rows.dtype, copy=False)

    def inverse_transform(self, Z: ArrayLike) -> np.ndarray:
        """Map whitened rows back, exactly: x = U (Λ + ε)^½ Uᵀ z + μ."""
        check_is_fitted(self)
        rows = _check_codes(Z, self.n_features_in_)
        return (rows @ self.dewhitening_ + self.mean_).astype(rows.dtype, copy=False)

    def log_det(self) -> float:
        """Return log |det W| of the map, in nats: log p(x) = log p(z) + log |det W|."""
        check_is_fitted(self)
        return float(-np.log(self.scale_).sum())

    def __sklearn_tags__(self) -> Tags:
        return _keeps_dtype(super().__sklearn_tags__())


def _validated(estimator: BaseEstimator, X: Any, *, fitting: bool) -> np.ndarray:
    checked: Any = validate_data(estimator, X, dtype=_FLOATS, reset=fitting, ensure_min_samples=2 if fitting else 1)
    return checked


def _keeps_dtype(tags: Tags) -> Tags:
    assert tags.transformer_tags is not None  # both classes are transformers
    tags.transformer_tags.preserves_dtype = ["float64", "float32"]
    return tags


def _principal_axes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, eigenvalues (largest first) and eigenvectors (in rows) of the covariance, in float64.

    Two passes over pieces of the rows: centring before multiplying keeps the accuracy that
    E[xx] − E[x]E[x] loses, and a memory-mapped matrix is never copied whole.
    """
    count, width = rows.shape
    mean = sum(rows[part].sum(axis=0, dtype=np.float64) for part in row_chunks(rows)) / count
    covariance = np.zeros((width, width))
    for part in row_chunks(rows):
        centred = rows[part] - mean
        covariance += centred.T @ centred
    values, vectors = np.linalg.eigh(covariance / (count - 1))
    axes = vectors.T[::-1]
    # An eigenvector's sign is arbitrary: fix it, so that every machine gives the same features.
    largest = axes[np.arange(width), np.abs(axes).argmax(axis=1)]
    axes = axes * np.where(largest < 0, -1.0, 1.0)[:, None]
    return mean, np.maximum(values[::-1], 0.0), axes


def _regularised_scale(variances: np.ndarray, largest: float, epsilon: float) -> np.ndarray:
    number = isinstance(epsilon, int | float | np.number) and not isinstance(epsilon, bool)
    if not number or not 0 <= epsilon < np.inf:
        raise ParameterError(f"epsilon must be a finite number of at least 0, got {epsilon!r}.")
    floor = len(variances) * np.finfo(np.float64).eps * largest
    if epsilon == 0 and variances[-1] <= floor:
        rank = int((variances > floor).sum())
        raise DataError(
            f"With epsilon=0 the data cannot be whitened: only {rank} of {len(variances)} directions "
            "vary (constant or dependent features, or fewer rows than features). Use epsilon > 0, or "
            f"PCAWhitening(n_components={max(rank, 1)})."
        )
    return np.sqrt(variances + epsilon)


def _check_codes(Z: ArrayLike, width: int) -> np.ndarray:
    rows = check_array(Z, dtype=_FLOATS)
    if rows.shape[1] != width:
        raise DataError(f"Z has {rows.shape[1]} columns but the whitened space has {width}.")
    return rows
