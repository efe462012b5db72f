"""Energies that several families share."""
