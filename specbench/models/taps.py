"""States of a network at several depths, collected while it runs."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from specbench.models.exits import decoder_layers, layer_list


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
