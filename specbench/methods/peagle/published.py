"""Checkpoints in the layouts that others publish: EAGLE-3's, and what stands for tokens not known yet.

- speculators': `speculators_model_type` is peagle, and `mask_token_id` the token.
- EAGLE-3's own, for vLLM: `ptd_token_id` or `pard_token` is the token.

Both have the tensor `mask_hidden` [1, 1, F], and the decoder layers `layers.0`, `layers.1`, ... docs/checkpoints.md
has the fields.
"""

import re
from typing import Any

from specbench.methods.eagle.published import PublishedEagle, filled, published_state, their_name
from specbench.methods.peagle.network import PEagle, PEagleShape

LATER = re.compile(r"layers\.([1-9]\d*)\.(input_layernorm\.)?(.+)")
OUR_LATER = re.compile(r"later\.(\d+)\.(.+)")


def load_published_peagle(made: PublishedEagle, network: Any, taps: tuple[int, ...]) -> PEagle:
    """The checkpoint, bound to `network`; see `load_published_eagle`."""
    own, tensors, layer = published_state(made, network, taps)
    shape = PEagleShape(
        **{**vars(own), "norm_output": False, "layers": made.layer.num_hidden_layers, "mask": made.mask[1]}
    )
    ours = {_our_name(name): tensor for name, tensor in tensors.items()}
    if "mask_hidden" in ours:
        ours["mask_hidden"] = ours["mask_hidden"].flatten()
    return filled(made, PEagle(shape), ours, network, lambda name: their_name(made, layer, _their_name(name)))


def _our_name(name: str) -> str:
    if (match := LATER.fullmatch(name)) is None:
        return name
    norm = match[2] or "layer."
    return f"later.{int(match[1]) - 1}.{norm}{match[3]}"


def _their_name(ours: str) -> str:
    """The name in a checkpoint of a tensor of a later layer; `ours` of others."""
    if (match := OUR_LATER.fullmatch(ours)) is None:
        return ours
    return f"layers.{int(match[1]) + 1}.{match[2].removeprefix('layer.')}"
