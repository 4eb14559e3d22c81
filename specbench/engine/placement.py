"""A `transformers` network that takes positions and masks from a `Layout` instead of counting cached tokens itself.

Position ids are passed. A mask is the model's own rule (causal, or within a window), evaluated at the layout's
positions and narrowed to what is visible there. The relative bias of T5's family has no such argument: its row for the
last slot holds a value for each distance, and is gathered by query position minus key position.

Shapes: B rows, L new tokens per row, C slots of the cache, H heads.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from specbench.engine.layout import Layout

NAME = "specbench"  # of the attention function, in transformers' registry
MASKED_ATTENTION = ("sdpa", "eager", NAME)  # implementations that take a mask of any form


class Placement:
    """Gives a layout's positions and masks to `network` in the way that its architecture takes them."""

    def __init__(self, network: Any) -> None:
        self._network = network
        name = "decoder_position_ids" if network.config.is_encoder_decoder else "position_ids"
        self._argument = name if name in inspect.signature(network.forward).parameters else None
        self._biases = [
            module
            for module in network.get_decoder().modules()
            if getattr(module, "has_relative_attention_bias", False) and hasattr(module, "compute_bias")
        ]
        self._followed = False
        self.masked = False  # whether the network has asked for an attention mask while it followed a layout

    @property
    def counts_itself(self) -> bool:
        """Whether positions are the network's own count of the tokens read, whatever a layout says."""
        return self._argument is None and not self._biases

    @property
    def no_trees(self) -> str | None:
        """Why the network cannot follow the layout of a tree; certain once it has followed one layout."""
        if self.counts_itself:
            return "takes no position ids and has no relative position bias"
        if (attention := self._attention) not in MASKED_ATTENTION:
            return f"takes no mask with attn_implementation={attention}"
        if self._followed and not self.masked:
            return "makes its attention mask itself"
        return None

    @property
    def _attention(self) -> str:
        name: str = self._network.get_decoder().config._attn_implementation
        return name

    def in_a_row(self, first: int, count: int) -> dict[str, Tensor]:
        """The keyword argument that says where `count` tokens stand: networks differ in what they assume without."""
        positions_1L = torch.arange(first, first + count, device=self._network.device).unsqueeze(0)
        return {self._argument: positions_1L} if self._argument else {}

    def has_followed(self, masked: bool) -> None:
        """A capture of the network followed a layout, and did or did not ask for a mask."""
        self._followed, self.masked = True, masked

    @contextmanager
    def applying(self, layout: Layout) -> Iterator[dict[str, Any]]:
        """A context in which the decoder takes positions and masks from `layout`.

        Yields:
            keyword arguments for the decoder's call: its position ids, if it takes any.
        """
        masks, name = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS, self._attention
        masks[name] = partial(self._mask, layout, masks[name])  # on this one instance, whose own entries come first
        for module in self._biases:
            module.compute_bias = partial(_bias_by_distance, module.compute_bias, layout)
        try:
            yield {self._argument: layout.new_positions_BL} if self._argument else {}
            self._followed = True
        finally:
            del masks[name]
            for module in self._biases:
                del module.compute_bias

    def _mask(
        self, layout: Layout, library: Callable[..., Any], *, mask_function: Callable[..., Tensor], **options: Any
    ) -> Any:
        """A mask interface of `transformers`: the mask [B, 1, L, C] for the attention."""
        if mask_function is masking_utils.bidirectional_mask_function:
            return library(mask_function=mask_function, **options)  # the source's
        if options.get("use_vmap"):
            raise NotImplementedError("a mask rule of its own that is more than a function of positions")
        self.masked = True
        mask_B1LC = layout.visible_BLC.unsqueeze(1)
        if mask_function is not masking_utils.causal_mask_function:  # nothing later is visible in any layout
            query_B1L1 = layout.new_positions_BL[:, None, :, None]
            rows = torch.arange(query_B1L1.shape[0], device=query_B1L1.device).view(-1, 1, 1, 1)
            heads = torch.zeros_like(rows[:1])
            mask_B1LC = mask_B1LC & mask_function(rows, heads, query_B1L1, layout.positions_BC[:, None, None, :])
        if self._attention != "eager":
            return mask_B1LC
        dtype = options["dtype"]  # the plain attention adds its mask
        return torch.zeros((), dtype=dtype, device=mask_B1LC.device).where(mask_B1LC, torch.finfo(dtype).min)


def _bias_by_distance(
    compute_bias: Callable[..., Tensor], layout: Layout, query_length: int, key_length: int, **options: Any
) -> Tensor:
    """T5's relative position bias [B, H, L, C] at the layout's positions."""
    last = key_length - 1
    of_last_HC = compute_bias(1, key_length, **(options | {"past_seen_tokens": last}))[0, :, 0]  # distances C - 1 ... 0
    # What follows a token is not visible to it: any finite bias will do.
    table = torch.cat([of_last_HC, of_last_HC[:, -1:].expand(-1, last)], -1)
    ahead_BLC = layout.positions_BC.unsqueeze(1) - layout.new_positions_BL.unsqueeze(-1)
    return table[:, ahead_BLC + last].transpose(0, 1)
