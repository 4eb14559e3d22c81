"""Predicted tokens a pass and speedups."""
