"""Acceptance rules for trees of drafted tokens, as functions on tables."""
