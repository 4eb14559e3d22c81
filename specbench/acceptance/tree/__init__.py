"""Acceptance rules for trees of drafted tokens, as functions on tables.

Each is lossless for children drawn in the way that it names, except `accept_plausible`, which is lossy.
"""

from specbench.acceptance.tree.base import Chance, Rows, Tree, TreeRule, Uniforms
from specbench.acceptance.tree.expected import (
    DRAWS,
    Ranked,
    distinct,
    fixed,
    k_sequential,
    of_k_sequential,
    replaced,
)
from specbench.acceptance.tree.plausible import accept_plausible
from specbench.acceptance.tree.rounds import (
    ROUNDS,
    KSequential,
    accept_fixed,
    accept_k_sequential,
    accept_with_replacement,
    accept_without_replacement,
    walk,
)
from specbench.acceptance.tree.transport import optimal_acceptance
from specbench.acceptance.tree.traversal import accept_traversal

__all__ = [
    "DRAWS",
    "ROUNDS",
    "Chance",
    "KSequential",
    "Ranked",
    "Rows",
    "Tree",
    "TreeRule",
    "Uniforms",
    "accept_fixed",
    "accept_k_sequential",
    "accept_plausible",
    "accept_traversal",
    "accept_with_replacement",
    "accept_without_replacement",
    "distinct",
    "fixed",
    "k_sequential",
    "of_k_sequential",
    "optimal_acceptance",
    "replaced",
    "walk",
]
