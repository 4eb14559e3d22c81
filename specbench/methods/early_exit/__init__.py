"""The target's first layers, as a draft."""
