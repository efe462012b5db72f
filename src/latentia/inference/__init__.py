"""Inference: how to find z given x."""

from latentia.inference.exact import Exact

__all__ = ["Exact"]
