"""Costs: c, v and the time of passes."""
