"""The interface of a draft.

Shapes: G drafted tokens, L positions, V tokens of the vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specbench.models import Prompt
from specbench.sampling import Sampling


class Proposal(NamedTuple):
    """Drafted tokens [G] and the standardised distributions [G, V] they were drawn from.

    A draft may return fewer tokens than it was asked for, none included.
    """

    tokens: list[int]
    q_GV: Tensor


class DraftSession(Protocol):
    """A draft at work on one sequence."""

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        """Up to `gamma` tokens that may follow `tokens` (prefix and all generated so far)."""
        ...

    def rollback(self, length: int) -> None:
        """Only the first `length` tokens of what was read still stand."""
        ...

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        """q [L, V] for each of the L tokens behind the prefix, by teacher forcing. For a fresh session, or
        one that has scored the prefix already: a long text is scored in parts."""
        ...


class Draft(Protocol):
    """Something that proposes, ready to start on prompts."""

    operations: float  # arithmetic operations per token, for c_hat (Def 3.10)

    def start(self, prompt: Prompt, sampling: Sampling) -> DraftSession:
        """A session that has read the prompt."""
        ...
