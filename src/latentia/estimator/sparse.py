"""Estimators with sparse codes: now in :mod:`latentia.abilities.sparse_codes`."""

from latentia.core.moved import moved

__getattr__ = moved(__name__, {"*": "latentia.abilities.sparse_codes"})
