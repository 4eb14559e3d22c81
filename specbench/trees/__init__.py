"""Shapes of token trees as plain numbers: which nodes a tree has, and how many tokens a pass is expected to give."""

from specbench.trees.best import best_first, best_shape, best_size
from specbench.trees.plan import ByConfidence, FixedShape, Plan
from specbench.trees.shape import ROOT, Shape, expected_tokens

__all__ = [
    "ROOT",
    "ByConfidence",
    "FixedShape",
    "Plan",
    "Shape",
    "best_first",
    "best_shape",
    "best_size",
    "expected_tokens",
]
