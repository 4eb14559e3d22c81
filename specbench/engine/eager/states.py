"""The states of a network at several depths and the input of its head, returned with its logits."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specbench.engine.eager.parts import decoder_layers, layer_list
from specbench.errors import UserError

# States of a network at several depths, collected while it runs.


class Taps:
    """The states after so many decoder layers, 0 being the embeddings, of the latest run. `close` stops it."""

    def __init__(self, network: Any, depths: Sequence[int]) -> None:
        """Raises ValueError where the network has fewer layers."""
        layers = layer_list(network)
        if depths and not 0 <= min(depths) <= max(depths) <= decoder_layers(network):
            raise ValueError(f"taps {list(depths)}: the target has {decoder_layers(network)} decoder layers")
        self._states: dict[int, Tensor] = {}
        self.depths = tuple(depths)
        self._hooks = []
        for depth in self.depths:
            states = self._states

            def before(_: Any, read: tuple[Any, ...], depth: int = depth, states: dict[int, Tensor] = states) -> None:
                states[depth] = read[0]

            def after(_: Any, read: Any, out: Any, depth: int = depth, states: dict[int, Tensor] = states) -> None:
                states[depth] = out[0] if isinstance(out, tuple) else out

            hook = (
                layers[0].register_forward_pre_hook(before)
                if depth == 0
                else layers[depth - 1].register_forward_hook(after)
            )
            self._hooks.append(hook)

    def taken(self) -> list[Tensor]:
        """[B, L, D] each, in the order of the depths; they are handed out once."""
        taken = [self._states[depth] for depth in self.depths]
        self._states.clear()
        return taken

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


# Some networks change their logits after the head, which would change the states, too.
AFTER_THE_HEAD = ("final_logit_softcapping", "logit_scale", "logits_scaling")


class HeadAndInput(nn.Module):
    """An output projection [D] -> [V] that returns [V + D]: its logits, then its input.

    With taps the states after these layers follow, D for each.
    """

    def __init__(self, head: Any, taps: Taps | None = None) -> None:
        super().__init__()
        self.head = head
        self.taps = taps

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.head.weight
        return weight

    def forward(self, states: Tensor) -> Tensor:
        tapped = [] if self.taps is None else self.taps.taken()
        return torch.cat([self.head(states), states, *tapped], -1)


def changed_after_head(network: Any) -> str | None:
    """How `network` changes its logits after its head; None if it does not."""
    for name in AFTER_THE_HEAD:
        if getattr(network.config, name, None) not in (None, 1.0):
            return f"{type(network).__name__} changes its logits after its head ({name})"
    return None


def return_states(network: Any, key: str, depths: Sequence[int] = ()) -> int:
    """Make `network` return, after its logits, the input of its head and its states after so many decoder layers.

    Returns:
        D.

    Raises:
        UserError: the network changes its logits after the head, or has fewer layers.
    """
    if (reason := changed_after_head(network)) is not None:
        raise UserError(f"{key}: {reason}; use another target")
    head = network.get_output_embeddings()
    try:
        taps = Taps(network, depths) if depths else None
    except ValueError as error:
        raise UserError(f"{key}: {error}; use a draft that was made for this target") from error
    network.set_output_embeddings(HeadAndInput(head, taps))
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
        """Hold the states of tree nodes `first`, `first` + 1, ... in the last `width` columns of `logits_LV`."""
        if width:
            earlier = [] if self._nodes_ND is None else [self._nodes_ND[:first]]
            self._nodes_ND = torch.cat([*earlier, logits_LV[:, -width:]])

    def select(self, path: list[int], end: int) -> None:
        """Nodes of `path` become the last tokens read; the last of them is token number `end` - 1."""
        if self._nodes_ND is not None and path:
            self._rows_LD, self._end = self._nodes_ND[path], end
        self._nodes_ND = None

    def states(self, start: int, stop: int, tap_width: int = 0) -> Tensor | None:
        """[stop - start, D] of tokens `start` to `stop` - 1, or None if they were not all in the last read.

        The last `tap_width` columns are left out.
        """
        rows = self._rows(start, stop)
        return rows if rows is None or not tap_width else rows[:, :-tap_width]

    def tapped(self, start: int, stop: int, tap_width: int) -> Tensor | None:
        """The last `tap_width` columns of the states at tokens `start` to `stop` - 1; None if those are not held."""
        rows = self._rows(start, stop)
        return None if rows is None else rows[:, rows.shape[1] - tap_width :]

    def _rows(self, start: int, stop: int) -> Tensor | None:
        if self._rows_LD is None:
            return None
        first = self._end - len(self._rows_LD)
        return self._rows_LD[start - first : stop - first] if first <= start < stop <= self._end else None
