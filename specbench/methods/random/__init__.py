"""Uniformly random tokens, as a draft."""
