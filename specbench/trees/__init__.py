"""Shapes of token trees as plain numbers: which nodes a tree has, and how many tokens a pass is expected to give."""

from specbench.trees.best import best_first, best_shape, best_size
from specbench.trees.plan import ByConfidence, FixedShape, Plan
from specbench.trees.shape import ROOT, Acceptance, Shape, by_level, expected_tokens, is_alike

__all__ = [
    "ROOT",
    "Acceptance",
    "ByConfidence",
    "FixedShape",
    "Plan",
    "Shape",
    "best_first",
    "best_shape",
    "best_size",
    "by_level",
    "expected_tokens",
    "is_alike",
]
