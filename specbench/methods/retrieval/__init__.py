"""Continuations from a corpus, as a draft."""
