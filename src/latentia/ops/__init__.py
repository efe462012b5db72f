"""Pure numerics: no models, no state."""
