"""Abilities that several families share: labels, fine-tuning, encoders, sparse codes."""
