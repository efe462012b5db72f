"""The scikit-learn interface: validation, fit, transform, sample, score, save."""
