"""The states that a network's head reads, returned with its logits: for drafts that predict from the target's states.

The head's input is appended to its logits as further columns, so that every engine returns it unchanged, and a model
that is not asked for it does no extra work.

Shapes: L tokens, V logits, D the network's width.
"""

from typing import Any

import torch
from torch import Tensor, nn

from specbench.errors import UserError

# Some networks change their logits after the head, which would change the states, too.
AFTER_THE_HEAD = ("final_logit_softcapping", "logit_scale", "logits_scaling")


class HeadAndInput(nn.Module):
    """An output projection [D] -> [V] that returns [V + D]: its logits, then what it read."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head = head

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.head.weight
        return weight

    def forward(self, states: Tensor) -> Tensor:
        return torch.cat([self.head(states), states], -1)


def hand_over(network: Any, key: str) -> int:
    """Make `network` return what its head reads after its logits; returns D.

    Raises UserError if the network changes its logits after the head.
    """
    for name in AFTER_THE_HEAD:
        if getattr(network.config, name, None) not in (None, 1.0):
            raise UserError(
                f"{key}: {type(network).__name__} changes its logits after its head ({name}); use another target"
            )
    head = network.get_output_embeddings()
    network.set_output_embeddings(HeadAndInput(head))
    width: int = head.weight.shape[1]
    return width


class LastRead:
    """The states of the tokens that a session read last, or of the nodes of its tree."""

    def __init__(self) -> None:
        self._rows_LD: Tensor | None = None
        self._nodes_ND: Tensor | None = None
        self._end = 0

    def put(self, logits_LV: Tensor, width: int, end: int) -> None:
        """Hold the states in the last `width` columns; the last row is of token number `end` - 1."""
        if width:
            self._rows_LD, self._nodes_ND, self._end = logits_LV[:, -width:], None, end

    def put_nodes(self, logits_LV: Tensor, width: int, first: int) -> None:
        """Hold those of nodes, of which row 0 is node number `first`."""
        if width:
            earlier = [] if self._nodes_ND is None else [self._nodes_ND[:first]]
            self._nodes_ND = torch.cat([*earlier, logits_LV[:, -width:]])

    def select(self, path: list[int], end: int) -> None:
        """Nodes of `path` become the last tokens read; the last of them is token number `end` - 1."""
        if self._nodes_ND is not None and path:
            self._rows_LD, self._end = self._nodes_ND[path], end
        self._nodes_ND = None

    def states(self, start: int, stop: int) -> Tensor | None:
        """[stop - start, D] of tokens `start` to `stop` - 1, or None where they were not all read last."""
        if self._rows_LD is None:
            return None
        first = self._end - len(self._rows_LD)
        return self._rows_LD[start - first : stop - first] if first <= start < stop <= self._end else None
