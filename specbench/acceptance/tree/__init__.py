"""Rules for trees of drafted tokens, as functions on tables: lossless each, for children drawn in the way it names."""

from specbench.acceptance.tree.base import Chance, Tree, TreeRule, Uniforms
from specbench.acceptance.tree.expected import Ranked, distinct, fixed, of_k_sequential, replaced
from specbench.acceptance.tree.rounds import (
    accept_fixed,
    accept_k_sequential,
    accept_with_replacement,
    accept_without_replacement,
)
from specbench.acceptance.tree.transport import optimal_acceptance
from specbench.acceptance.tree.traversal import accept_traversal

__all__ = [
    "Chance",
    "Ranked",
    "Tree",
    "TreeRule",
    "Uniforms",
    "accept_fixed",
    "accept_k_sequential",
    "accept_traversal",
    "accept_with_replacement",
    "accept_without_replacement",
    "distinct",
    "fixed",
    "of_k_sequential",
    "optimal_acceptance",
    "replaced",
]
