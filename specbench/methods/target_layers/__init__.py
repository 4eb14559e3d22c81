"""The target without some of its layers or sublayers, as a draft."""
