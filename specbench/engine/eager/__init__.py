"""A `transformers` model run as it is, and parts of it."""
