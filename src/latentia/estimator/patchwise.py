"""Images restored patch by patch: now in :mod:`latentia.imaging.patchwise`."""

from latentia.core.moved import moved

__getattr__ = moved(__name__, {"*": "latentia.imaging.patchwise"})
