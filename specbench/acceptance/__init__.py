"""Acceptance rules: how many draft tokens are accepted, and which token follows. One rule per file.

A rule is a function of (p, q, drafted, generator) that returns a `Verdict`. It does not depend on models or caches.
"""

from specbench.acceptance.base import (
    RESIDUAL_EPSILON,
    AcceptanceRule,
    Beside,
    ChainRule,
    Children,
    PendingProposal,
    Proposal,
    TokenRule,
    Verdict,
    residual,
)
from specbench.acceptance.block import accept_block
from specbench.acceptance.chance import AcceptByChance
from specbench.acceptance.exact import accept_exact
from specbench.acceptance.lenient import lenient
from specbench.acceptance.match import accept_match, greedy_rows, match_probability
from specbench.acceptance.top_beta import TopBeta
from specbench.acceptance.typical import Typical
from specbench.acceptance.verify import LOSSLESS, Verification, settle, target_rows, verify

__all__ = [
    "LOSSLESS",
    "RESIDUAL_EPSILON",
    "AcceptByChance",
    "AcceptanceRule",
    "Beside",
    "ChainRule",
    "Children",
    "PendingProposal",
    "Proposal",
    "TokenRule",
    "TopBeta",
    "Typical",
    "Verdict",
    "Verification",
    "accept_block",
    "accept_exact",
    "accept_match",
    "greedy_rows",
    "lenient",
    "match_probability",
    "residual",
    "settle",
    "target_rows",
    "verify",
]
