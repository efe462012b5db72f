"""Families of models: one file each, the energy on top and the estimator below."""
