"""The target without some sublayers, as a draft."""
