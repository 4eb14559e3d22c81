"""A smaller model, as a draft."""
