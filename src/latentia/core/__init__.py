"""The vocabulary: spaces, model capabilities, posteriors, algorithm protocols, errors."""
