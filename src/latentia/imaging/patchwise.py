"""Images restored patch by patch with a dictionary: denoising and inpainting.

Every patch of the image is coded with as few atoms as its error allows; patches overlap,
and every pixel becomes the mean of the patches that contain it (:mod:`latentia.ops.patches`). With white noise of
standard deviation σ a patch of d values has enough atoms when

    ‖p − zD‖² ≤ C²σ²d,

where C is the number below which pure noise stays with probability 0.96: 1.15 for 64 values, as in the paper. The
mean of a patch (of each of its channels) is subtracted before and added after, and atoms are centred.

Colour: a dictionary of RGB patches codes the three channels jointly, so that edges have one place in all of them;
because each channel keeps its own mean, the pursuit cannot wash colours out. With a dictionary of grey patches the
image is turned into brightness and two differences of colour (a rotation, under which white noise stays as it is),
and those are restored one by one.

References:
    Elad and Aharon (2006), *Image denoising via sparse and redundant representations over learned dictionaries*;
    Mairal, Elad and Sapiro (2008), *Sparse representation for color image restoration*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from latentia.core.errors import DataError, ParameterError
from latentia.estimator import checks
from latentia.imaging import coloured
from latentia.imaging.rate_distortion import rate_distortion, references
from latentia.imaging.restoring import Plan, Shown, without_means
from latentia.learning.dictionary.ksvd import ksvd, start_dictionary
from latentia.ops.patches import Grid


class PatchDictionary:
    """For estimators with patches as ``components_``: restoration of whole images, and rate–distortion.

    They provide ``components_``, the model's ``signal`` (a signal without the model's mean) and
    checked rows in blocks, ``_signals``.
    """

    components_: np.ndarray
    model_: Any
    _signals: Any

    def denoise(
        self,
        images: Any,
        sigma: float,
        *,
        patch_shape: Any = None,
        gain: float | None = None,
        weight: float = 1.0,
        stride: int = 1,
        clip: tuple[float, float] | None = None,
        n_threads: int | None = None,
        verbose: int = 0,
    ) -> Any:
        """Images without noise: overlapping patches by orthogonal matching pursuit, averaged.

        Args:
            images: noisy images of any size, grey (h, w) or colour (h, w, 3): one, a stack, or a list. Their units
                need not be those of the training patches.
            sigma: standard deviation of the noise, in the images' units.
            patch_shape: (height, width) of the patches that the dictionary was learned from; square if None.
            gain: C, see :mod:`latentia.imaging.patchwise`; by default 1.15 for 64 values.
            weight: of the noisy image in the mean, where every patch counts 1.
            stride: pixels from one patch to the next; 1 is best, more is quicker.
            clip: least and greatest value of the result, such as (0, 255); by default it is not clipped.
            n_threads: threads; all cores by default.
            verbose: 0 is silent, 1 shows progress, 2 also prints every row of metrics.

        Returns:
            As ``images``: an array, or a list of arrays.
        """
        checks.number(0, open_low=True)("sigma", sigma)
        shape = coloured.patch_shape_of(self.components_.shape[1], patch_shape)
        given = coloured.many(images, shape[:2])
        plan = Plan(shape[:2], sigma=sigma, gain=gain, weight=weight, stride=stride, clip=clip, n_threads=n_threads)
        for index, picture in enumerate(given):
            plan.check_noise(index, picture)
        with Shown(verbose, "denoising", sum(plan.steps(p, shape[2]) for p in given)) as show:
            found = [plan.denoised(picture, self.components_, show) for picture in given]
        return coloured.like(images, found)

    def inpaint(
        self,
        images: Any,
        mask: Any = None,
        *,
        sigma: float | None = None,
        n_nonzero: int | None = None,
        patch_shape: Any = None,
        stride: int = 1,
        clip: tuple[float, float] | None = None,
        n_threads: int | None = None,
        verbose: int = 0,
    ) -> Any:
        """Images whose unknown pixels are filled in; known ones are kept, bit for bit.

        Every patch is coded by what is known of it (:mod:`latentia.inference.sparse.masked`). Holes larger than a
        patch are filled from their borders inwards.

        Args:
            images: images of any size, as in :meth:`denoise`; what unknown pixels hold does not matter.
            mask: True where a pixel is known: one for all images (h, w), or one for each; also with the channels.
                By default wherever an image is not NaN.
            sigma: how far patches may stay from the known pixels, root mean square; by default a twentieth of the
                known pixels' standard deviation. Where they carry noise, its standard deviation.
            n_nonzero: most atoms of a patch; an eighth of its number of values by default.
            patch_shape: (height, width) of the patches that the dictionary was learned from; square if None.
            stride: pixels from one patch to the next.
            clip: least and greatest value of what is filled in; by default it is not clipped.
            n_threads: threads; all cores by default.
            verbose: 0 is silent, 1 shows progress, 2 also prints every row of metrics.

        Returns:
            As ``images``: an array, or a list of arrays.
        """
        shape = coloured.patch_shape_of(self.components_.shape[1], patch_shape)
        given = coloured.many(images, shape[:2], gaps=True)
        known = coloured.masks(given, mask)
        plan = Plan(shape[:2], sigma=sigma, n_nonzero=n_nonzero, stride=stride, clip=clip, n_threads=n_threads)
        with Shown(verbose, "filling in", sum(plan.steps(p, shape[2]) for p in given)) as show:
            pairs = zip(given, known, strict=True)
            found = [plan.completed(picture, mask, self.components_, show) for picture, mask in pairs]
        return coloured.like(images, found)

    def rate_distortion(
        self,
        X: Any,
        *,
        n_nonzero: Sequence[int] | None = None,
        steps: Sequence[float] | None = None,
        peak: float | None = None,
        patch_shape: Any = None,
        compare: bool = True,
        n_threads: int | None = None,
    ) -> list[dict[str, Any]]:
        """The number of bits of the rows against the error, with rounded coefficients.

        See :mod:`latentia.imaging.rate_distortion`.

        Args:
            X: data, ``(n, n_features)``, not seen in training where the answer should hold for others.
            n_nonzero: atoms in a code at most; 1, 2, 4 … 32 by default.
            steps: coefficients are rounded to multiples of these; by default 2 to ⅛ of the root mean square of X.
            peak: of the peak signal-to-noise ratio; the range of X by default.
            patch_shape: (height, width) of the patches, for the cosine transform; square if None.
            compare: whether the cosine transform and principal components of X are coded too.
            n_threads: threads; all cores by default.

        Returns:
            One row for every dictionary, number of atoms and step, as
            :func:`latentia.imaging.rate_distortion.rate_distortion` describes them; the dictionaries are
            "learned", "cosine transform" and "principal components".
        """
        blocks = [block.toarray() if sp.issparse(block) else np.asarray(block) for block in self._signals(X)]
        rows = np.asarray(self.model_.signal(np.concatenate(blocks)))
        dictionaries = {"learned": self.components_}
        if compare:
            try:
                shape = coloured.patch_shape_of(rows.shape[1], patch_shape)
            except ParameterError:
                if patch_shape is not None:
                    raise
                shape = None  # no patches: plain signals
            dictionaries |= references(rows, shape)
        options: Any = {"n_nonzero": n_nonzero, "steps": steps, "peak": peak, "n_threads": n_threads}
        return rate_distortion(rows, dictionaries, **options)


def denoise_image(
    image: Any,
    sigma: float,
    *,
    n_components: int = 256,
    patch_shape: Any = (8, 8),
    n_iterations: int = 15,
    n_patches: int | None = 100_000,
    gain: float | None = None,
    weight: float = 1.0,
    stride: int = 1,
    clip: tuple[float, float] | None = None,
    n_threads: int | None = None,
    random_state: int = 0,
    verbose: int = 0,
    return_dictionary: bool = False,
) -> Any:
    """An image without noise, by a dictionary learned on its own noisy patches (K-SVD).

    The patches of one image repeat themselves, the noise does not: atoms that many noisy patches share carry hardly
    any of it. Colour images are coded jointly, in patches of three channels.

    Args:
        image: noisy image, (h, w) or (h, w, 3).
        sigma: standard deviation of the noise, in the image's units.
        n_components: atoms.
        patch_shape: height and width of the patches, or one number for both.
        n_iterations: rounds of K-SVD.
        n_patches: patches to learn from, drawn without replacement; None takes all.
        gain: C, see :mod:`latentia.imaging.patchwise`; by default 1.15 for 64 values.
        weight: of the noisy image in the mean, where every patch counts 1.
        stride: pixels from one patch to the next, in the final restoration.
        clip: least and greatest value of the result; by default it is not clipped.
        n_threads: threads; all cores by default.
        random_state: seed of the draw of patches and of the atoms to start with.
        verbose: 0 is silent, 1 shows progress, 2 also prints every row of metrics.
        return_dictionary: return (image, atoms).

    Example:
        >>> import numpy as np
        >>> from latentia.imaging.patchwise import denoise_image
        >>> clean = np.tile(np.repeat([0.0, 1.0], 8), (32, 2))
        >>> noisy = clean + 0.1 * np.random.default_rng(0).normal(size=clean.shape)
        >>> found = denoise_image(noisy, 0.1, n_components=16, patch_shape=4, n_iterations=3)
        >>> bool(np.mean((found - clean) ** 2) < 0.3 * np.mean((noisy - clean) ** 2))
        True

    References:
        Elad and Aharon (2006), *Image denoising via sparse and redundant representations over learned
        dictionaries*.
    """
    checks.number(0, open_low=True)("sigma", sigma)
    checks.integer(1)("n_components", n_components)
    checks.integer(1)("n_iterations", n_iterations)
    checks.integer(1, optional=True)("n_patches", n_patches)
    both = tuple(patch_shape) if isinstance(patch_shape, tuple | list) else (patch_shape, patch_shape)
    for side in both:
        checks.integer(1)("patch_shape", side)
    if not coloured.is_one(np.asarray(image)):
        raise DataError(f"image has shape {np.shape(image)}; expected one image, (h, w) or (h, w, 3).")
    (picture,) = coloured.many(image, (int(both[0]), int(both[1])))
    channels = 1 if picture.ndim == 2 else 3
    shape = (int(both[0]), int(both[1]))
    plan = Plan(shape, sigma=sigma, gain=gain, weight=weight, stride=stride, clip=clip, n_threads=n_threads)
    plan.check_noise(0, picture)
    with Shown(verbose, "denoising", n_iterations + plan.steps(picture, channels)) as show:
        grid, rng = Grid(picture.shape, shape), np.random.default_rng(random_state)
        n = len(grid) if n_patches is None else min(n_patches, len(grid))
        patches = grid.pick(picture.astype(np.float32), rng.choice(len(grid), n, replace=False))
        patches = without_means(patches, channels)[0]
        atoms = ksvd(
            patches,
            start_dictionary(patches, n_components, rng=rng),
            n_iterations=n_iterations,
            n_nonzero=plan.most(patches.shape[1], n_components),
            error=plan.enough(patches.shape[1]),
            n_threads=n_threads,
            watch=lambda done, error: show.advance(error=error),
        )
        found = plan.denoised(picture, atoms, show)
    return (found, atoms) if return_dictionary else found
