"""An acceptance rule: Algorithm 1 on the first drafted token alone. Lossless, and slower than it has to be."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Verdict
from specbench.algorithm.acceptance.rules.exact import accept_exact


def accept_cautiously(p_GV: Tensor, q_GV: Tensor, drafted_G: Sequence[int], generator: torch.Generator) -> Verdict:
    """The verdict of Algorithm 1 as if no more than one token had been drafted."""
    few = min(1, len(drafted_G))
    return accept_exact(p_GV[: few + 1], q_GV[:few], drafted_G[:few], generator)
