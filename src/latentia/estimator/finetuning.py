"""Fine-tuning: now in :mod:`latentia.abilities.finetuning`."""

from latentia.core.moved import moved

__getattr__ = moved(__name__, {"*": "latentia.abilities.finetuning"})
