"""The target over a window of its own cache, as a draft."""
