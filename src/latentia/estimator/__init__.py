"""The scikit-learn face: validation, fit, transform, sample, score, save."""
