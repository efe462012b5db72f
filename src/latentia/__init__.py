"""Latentia: one energy, many ways to learn it."""

__version__ = "0.1.0"
