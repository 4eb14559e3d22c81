"""Logits of a target to learn from: a tensor, or its states and its head.

Shapes: D the target's width, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class FromStates:
    """Logits that follow from states [..., D]; computed only at the places that are chosen, as the head is large."""

    states: torch.Tensor
    head: Callable[[torch.Tensor], torch.Tensor]

    def __getitem__(self, chosen: Any) -> FromStates:
        return FromStates(self.states[chosen], self.head)

    @torch.no_grad()
    def computed(self) -> torch.Tensor:
        """The logits [..., V]."""
        return self.head(self.states)


Logits = torch.Tensor | FromStates


def computed(logits: Logits) -> torch.Tensor:
    """`logits` as a tensor."""
    return logits if isinstance(logits, torch.Tensor) else logits.computed()
