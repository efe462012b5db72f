"""The restoration of one image by its patches: denoising and inpainting.

See :mod:`latentia.imaging.patchwise` for the method.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import chdtrc, chdtri

from latentia.core.errors import DataError, ParameterError
from latentia.estimator import checks
from latentia.imaging import coloured
from latentia.inference.sparse import sparse_encode
from latentia.inference.sparse.masked import complete_signals
from latentia.learning.progress import Display, Silent, display
from latentia.ops.patches import Grid

#: Patches that are coded at a time.
BLOCK = 1 << 16
#: The chance that pure noise on 64 values exceeds 1.15 of its expected length: what the paper's C amounts to.
EXCESS = float(chdtrc(64, 1.15**2 * 64))
#: By default a filled-in patch is as exact as this share of the image's standard deviation.
LOOSE = 0.05
#: Pixels are filled in first if their patches have this share of the known pixels that the best tenth of patches
#: has.
SURE = 0.5


class Shown:
    """A progress bar around a block that calls :meth:`advance` so many times."""

    def __init__(self, verbose: int, title: str, n_steps: int):
        self._display: Display = display(verbose, title) if verbose else Silent()
        self._n_steps, self._done = n_steps, 0

    def __enter__(self) -> Shown:
        self._display.start(self._n_steps, 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._display.stop()

    def advance(self, **metrics: float) -> None:
        """One step is done."""
        self._done += 1
        self._display.update(self._done, metrics)


class Plan:
    """How images are restored: sizes, tolerances, and the two ways through the patches."""

    def __init__(
        self,
        patch_shape: tuple[int, int],
        *,
        sigma: float | None,
        gain: float | None = None,
        weight: float = 0.0,
        n_nonzero: int | None = None,
        stride: int = 1,
        clip: tuple[float, float] | None = None,
        n_threads: int | None = None,
    ):
        positive = checks.number(0, open_low=True)
        if sigma is not None:
            positive("sigma", sigma)
        if gain is not None:
            positive("gain", gain)
        checks.number(0)("weight", weight)
        checks.integer(1, optional=True)("n_nonzero", n_nonzero)
        checks.integer(1)("stride", stride)
        if stride > min(patch_shape):
            raise ParameterError(f"stride={stride} is wider than a patch: pixels between two would be in none.")
        if clip is not None and not (np.shape(clip) == (2,) and clip[0] < clip[1]):
            raise ParameterError(f"clip must be (least, greatest), got {clip!r}.")
        self.patch_shape, self.sigma, self.gain, self.weight = patch_shape, sigma, gain, weight
        self.n_nonzero, self.stride, self.clip, self.n_threads = n_nonzero, int(stride), clip, n_threads

    def steps(self, picture: np.ndarray, channels: int) -> int:
        """Blocks of patches that an image takes."""
        one = len(list(Grid(picture.shape, self.patch_shape, self.stride).bands(BLOCK)))
        return one * (3 if picture.ndim == 3 and channels == 1 else 1)

    def enough(self, d: int) -> float:
        """C²σ²d."""
        assert self.sigma is not None
        return float((chdtri(d, EXCESS) if self.gain is None else self.gain**2 * d) * self.sigma**2)

    def most(self, d: int, n_atoms: int) -> int:
        """Atoms of a patch at most: half of its values; more would code noise."""
        return max(1, min(d // 2, n_atoms))

    def check_noise(self, index: int, picture: np.ndarray) -> None:
        """Refuse noise that is larger than all that varies in the image: its units are others."""
        assert self.sigma is not None
        spread = float(picture.std())
        if self.sigma > 1.2 * spread:
            raise DataError(
                f"sigma={self.sigma:g} is more than image {index} varies altogether (standard deviation "
                f"{spread:.3g}). Give sigma in the image's units: 25 on a scale of 0 to 255 is 25/255 on a scale "
                "of 0 to 1."
            )

    def denoised(self, picture: np.ndarray, D: np.ndarray, show: Shown) -> np.ndarray:
        """One image without its noise."""
        channels = D.shape[1] // (self.patch_shape[0] * self.patch_shape[1])
        if channels == 3 and picture.ndim == 2:
            raise DataError("The dictionary is of colour patches, but the image is grey.")
        if channels == 1 and picture.ndim == 3:
            turned = picture @ coloured.OPPONENT.T.astype(picture.dtype)
            parts = [self._means_of_patches(turned[..., c], D, 1, show) for c in range(3)]
            found = np.stack(parts, axis=-1) @ coloured.OPPONENT
        else:
            found = self._means_of_patches(picture, D, channels, show)
        return self._finished(found, picture)

    def _finished(self, found: np.ndarray, picture: np.ndarray) -> np.ndarray:
        return (found if self.clip is None else np.clip(found, *self.clip)).astype(picture.dtype)

    def _means_of_patches(self, noisy: np.ndarray, D: np.ndarray, channels: int, show: Shown) -> np.ndarray:
        grid, atoms = Grid(noisy.shape, self.patch_shape, self.stride), _centred(D, channels)
        total = self.weight * noisy.astype(np.float64)
        options: Any = {"method": "omp", "error": self.enough(D.shape[1]), "n_threads": self.n_threads}
        for rows in grid.bands(BLOCK):
            patches, means = without_means(grid.cut(noisy.astype(np.float32), rows), channels)
            codes = sparse_encode(patches, atoms, n_nonzero=self.most(*atoms.shape[::-1]), **options)
            grid.add(total, _joined(codes.values @ atoms, means), rows)
            show.advance()
        counts = grid.coverage() + self.weight
        return total / (counts if channels == 1 else counts[..., None])

    def completed(self, picture: np.ndarray, known: np.ndarray, D: np.ndarray, show: Shown) -> np.ndarray:
        """One image with its unknown pixels filled in."""
        channels = D.shape[1] // (self.patch_shape[0] * self.patch_shape[1])
        if channels == 3 and picture.ndim == 2:
            raise DataError("The dictionary is of colour patches, but the image is grey.")
        if channels == 1 and picture.ndim == 3:
            parts = [self._filled(picture[..., c], known[..., c], D, 1, show) for c in range(3)]
            found = np.stack(parts, axis=-1)
        else:
            found = self._filled(picture, known, D, channels, show)
        return np.where(known, picture, self._finished(found, picture)).astype(picture.dtype)

    def _filled(
        self, picture: np.ndarray, known: np.ndarray, D: np.ndarray, channels: int, show: Shown
    ) -> np.ndarray:
        if not known.any():
            raise DataError(
                "All pixels of a channel are unknown, so it cannot be filled in. Use a colour dictionary."
            )
        loose = LOOSE * float(picture[known].std()) if self.sigma is None else self.sigma
        image, seen = np.where(known, picture, 0).astype(np.float32), known.copy()
        grid, atoms = Grid(image.shape, self.patch_shape, self.stride), _centred(D, channels)
        first = True
        while not seen.all():
            total, votes = np.zeros(image.shape), np.zeros(image.shape)
            for rows in grid.bands(BLOCK):
                whole, shares = self._guesses(grid.cut(image, rows), grid.cut(seen, rows), atoms, channels, loose)
                grid.add(total, whole * shares, rows)
                grid.add(votes, shares, rows)
                if first:
                    show.advance()
            first = False
            if not votes.any():
                grid = self._finer(grid)
                continue
            cover = grid.coverage() if channels == 1 else grid.coverage()[..., None]
            sure = np.where(seen, 0.0, votes / cover)
            new = sure >= SURE * np.quantile(sure[sure > 0], 0.9)
            image[new] = (total[new] / votes[new]).astype(np.float32)
            seen |= new
        return image

    def _guesses(
        self, patches: np.ndarray, seen: np.ndarray, atoms: np.ndarray, channels: int, loose: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """(whole patches, what each counts): the more a patch knows the more, and nothing if it knows all or "
        "none."""
        known, d = seen.sum(axis=1), seen.shape[1]
        use = (known > 0) & (known < d)
        whole, shares = np.zeros(seen.shape, np.float32), np.zeros(seen.shape, np.float32)
        if use.any():
            most = max(1, d // 8) if self.n_nonzero is None else self.n_nonzero
            options: Any = {"n_nonzero": most, "error": loose**2, "channels": channels, "n_threads": self.n_threads}
            whole[use], _ = complete_signals(patches[use], seen[use], atoms, **options)
            shares[use] = (known[use] / d)[:, None]
        return whole, shares

    def _finer(self, grid: Grid) -> Grid:
        """All patches instead of some, where none of these holds both known and unknown pixels."""
        every = Grid(grid.shape, self.patch_shape, 1)
        if len(every) == len(grid):
            raise DataError(
                "No patch contains both known and unknown pixels, so the unknown ones cannot be filled in."
            )
        return every


def without_means(patches: np.ndarray, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """(patches without the means of their channels, those means)."""
    parts = patches.reshape(len(patches), -1, channels)
    means = parts.mean(axis=1, keepdims=True)
    return (parts - means).reshape(patches.shape), means


def _joined(patches: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Patches with the means of their channels."""
    return (patches.reshape(len(patches), -1, means.shape[2]) + means).reshape(patches.shape)


def _centred(D: np.ndarray, channels: int) -> np.ndarray:
    """Atoms without the means of their channels, of length one; those that were nothing else are left out."""
    atoms = without_means(np.asarray(D, np.float32), channels)[0]
    sizes, before = np.linalg.norm(atoms, axis=1), np.linalg.norm(D, axis=1)
    kept = sizes > 1e-3 * before
    if not kept.any():
        raise DataError("All atoms of the dictionary are constant: they cannot represent structure in a patch.")
    return np.ascontiguousarray(atoms[kept] / sizes[kept, None])
