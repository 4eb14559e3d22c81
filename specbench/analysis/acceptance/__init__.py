"""Acceptance: alpha, by position, by rank, and in parts of a run."""
