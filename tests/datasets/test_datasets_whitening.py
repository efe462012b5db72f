"""Whitening against its definition: identity covariance, exact inverses, determinants, optimality."""

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

from latentia.core.errors import DataError, ParameterError
from latentia.datasets import PCAWhitening, ZCAWhitening

BOTH = [PCAWhitening, ZCAWhitening]


@pytest.fixture
def X():
    rng = np.random.default_rng(3)
    return rng.normal(size=(40, 5)) @ rng.normal(size=(5, 5)) + rng.normal(size=5) * 10


def _cases():
    """(estimator, check), but for those of other kinds of arrays, which whitening does not say that it takes."""
    for estimator in (PCAWhitening(), ZCAWhitening(), PCAWhitening(n_components=1)):
        for made, check in estimator_checks.estimator_checks_generator(estimator):
            name = getattr(check, "func", check).__name__
            if name != "check_array_api_input":
                yield pytest.param(made, check, id=f"{estimator}-{name}")


@pytest.mark.parametrize(("estimator", "check"), list(_cases()))
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("cls", BOTH)
def test_whitened_covariance_is_identity(cls, X):
    Z = cls(epsilon=0.0).fit_transform(X)
    # np.cov divides by N − 1; forty rows make N visible.
    np.testing.assert_allclose(np.cov(Z.T), np.eye(5), atol=1e-10)
    np.testing.assert_allclose(Z.mean(axis=0), 0, atol=1e-10)


@pytest.mark.parametrize("cls", BOTH)
def test_regularised_spectrum(cls, X):
    """Whitened variances along the principal axes are λ/(λ + ε), with numpy's covariance as witness."""
    Z = cls(epsilon=0.7).fit_transform(X)
    values = np.linalg.eigvalsh(np.cov(X.T))
    np.testing.assert_allclose(np.linalg.eigvalsh(np.cov(Z.T)), values / (values + 0.7), rtol=1e-8)


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("epsilon", [0.0, 1e-5, 0.5])
def test_inverse_is_exact(cls, X, epsilon):
    white = cls(epsilon=epsilon).fit(X)
    np.testing.assert_allclose(white.inverse_transform(white.transform(X)), X, atol=1e-9)
    new = X * 3 - 100  # rows that were not in the fit
    np.testing.assert_allclose(white.inverse_transform(white.transform(new)), new, atol=1e-9)


@pytest.mark.parametrize("cls", BOTH)
def test_log_det_is_that_of_the_map(cls, X):
    white = cls(epsilon=0.3).fit(X)
    # The map's matrix, read off by pushing the unit vectors through it.
    matrix = white.transform(white.mean_ + np.eye(5))
    np.testing.assert_allclose(white.log_det(), np.linalg.slogdet(matrix)[1], rtol=1e-10)


def test_log_det_carries_likelihoods_across(X):
    """The Gaussian fitted to X, scored directly and as a standard normal in whitened space."""
    from scipy.stats import multivariate_normal

    white = PCAWhitening(epsilon=0.0).fit(X)
    direct = multivariate_normal(X.mean(axis=0), np.cov(X.T)).logpdf(X)
    via_white = multivariate_normal(np.zeros(5), np.eye(5)).logpdf(white.transform(X)) + white.log_det()
    np.testing.assert_allclose(via_white, direct, rtol=1e-9)


def test_pca_agrees_with_scikit_learn(X):
    ours = PCAWhitening(n_components=3, epsilon=0.0).fit(X)
    theirs = PCA(n_components=3, whiten=True).fit(X)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(np.abs(ours.transform(X)), np.abs(theirs.transform(X)), rtol=1e-6, atol=1e-9)
    # The least-squares inverse is the projection onto the kept axes.
    np.testing.assert_allclose(
        ours.inverse_transform(ours.transform(X)), theirs.inverse_transform(theirs.transform(X)), atol=1e-8
    )


def test_zca_is_symmetric_and_closest(X):
    zca = ZCAWhitening(epsilon=0.0).fit(X)
    np.testing.assert_allclose(zca.whitening_, zca.whitening_.T, atol=1e-12)
    centred = X - X.mean(axis=0)
    distance = np.linalg.norm(zca.transform(X) - centred)
    rng = np.random.default_rng(0)
    for _ in range(50):  # every other whitening is a rotation of this one
        rotation, _ = np.linalg.qr(rng.normal(size=(5, 5)))
        assert np.linalg.norm(zca.transform(X) @ rotation - centred) > distance


def test_signs_are_fixed(X):
    axes = PCAWhitening().fit(X).components_
    assert (axes[np.arange(5), np.abs(axes).argmax(axis=1)] > 0).all()


@pytest.mark.parametrize("cls", BOTH)
def test_chunked_fit_equals_whole(cls, X, monkeypatch):
    whole = cls().fit(X)
    monkeypatch.setattr("latentia.datasets.base._CHUNK_VALUES", 15)
    np.testing.assert_allclose(cls().fit(X).transform(X), whole.transform(X), atol=1e-10)


def test_large_offset_keeps_accuracy(X):
    shifted = X + 1e7  # E[xx] − E[x]E[x] would lose every digit here
    np.testing.assert_allclose(np.cov(ZCAWhitening(epsilon=0).fit_transform(shifted).T), np.eye(5), atol=1e-5)


def test_float32_and_more_features_than_rows():
    X = np.random.default_rng(0).normal(size=(6, 20)).astype(np.float32)
    for cls in BOTH:
        white = cls(epsilon=0.1).fit(X)
        assert white.transform(X).dtype == np.float32
        np.testing.assert_allclose(white.inverse_transform(white.transform(X)), X, atol=1e-5)


def test_names_and_pipeline(X):
    assert list(PCAWhitening(2).fit(X).get_feature_names_out()) == ["pcawhitening0", "pcawhitening1"]
    assert list(ZCAWhitening().fit(X).get_feature_names_out(list("abcde"))) == list("abcde")
    assert make_pipeline(ZCAWhitening(), PCAWhitening(2)).fit_transform(X).shape == (40, 2)


@pytest.mark.parametrize("epsilon", [-1.0, np.nan, np.inf, "small", None, True])
@pytest.mark.parametrize("cls", BOTH)
def test_bad_epsilon(cls, X, epsilon):
    with pytest.raises(ParameterError, match="epsilon"):
        cls(epsilon=epsilon).fit(X)


@pytest.mark.parametrize("count", [0, -1, 6, 2.5, "all"])
def test_bad_n_components(X, count):
    with pytest.raises(ParameterError, match="n_components"):
        PCAWhitening(n_components=count).fit(X)


@pytest.mark.parametrize("cls", BOTH)
def test_singular_without_epsilon(cls, X):
    X[:, 2] = 4.0
    with pytest.raises(DataError, match=r"only 4 of 5 .*n_components=4"):
        cls(epsilon=0).fit(X)
    assert PCAWhitening(4, epsilon=0).fit_transform(X).shape == (40, 4)


def test_no_determinant_when_reduced(X):
    with pytest.raises(ParameterError, match="no determinant"):
        PCAWhitening(2).fit(X).log_det()


@pytest.mark.parametrize("cls", BOTH)
def test_wrong_width_of_codes(cls, X):
    with pytest.raises(DataError, match="4 columns"):
        cls().fit(X).inverse_transform(np.zeros((2, 4)))
