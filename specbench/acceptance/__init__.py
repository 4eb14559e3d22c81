"""Which drafted tokens stay, and what comes next: Algorithm 1's rule and others beside it, one a file.

A rule is a function of (p, q, drafted, generator) that returns how many drafted tokens are accepted and the token
that follows them. It knows nothing of models, caches or text.
"""

from specbench.acceptance.base import RESIDUAL_EPSILON, AcceptanceRule, TokenRule, Verdict, residual
from specbench.acceptance.block import accept_block
from specbench.acceptance.chance import accept_by_chance
from specbench.acceptance.exact import accept_certain, accept_exact
from specbench.acceptance.lenient import lenient
from specbench.acceptance.typical import Typical

LOSSLESS: tuple[AcceptanceRule, ...] = (accept_exact, accept_block)  # at T = 0 each comes to `accept_certain`

__all__ = [
    "LOSSLESS",
    "RESIDUAL_EPSILON",
    "AcceptanceRule",
    "TokenRule",
    "Typical",
    "Verdict",
    "accept_block",
    "accept_by_chance",
    "accept_certain",
    "accept_exact",
    "lenient",
    "residual",
]
