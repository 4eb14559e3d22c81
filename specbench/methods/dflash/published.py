"""Block drafters in their published layouts: DFlash's (z-lab/Qwen3-*-DFlash-b16) and DSpark's (deepseek-ai/dspark_*).

Both have the config of Qwen 3's layers, with `block_size`, `target_layer_ids` and `mask_token_id`: DFlash's under
`dflash_config`, DSpark's beside the others. Layers are numbered from 0 by the state that they write, -1 being the
embeddings. DSpark's checkpoints repeat the target's embeddings and head. Our recipes write the same layouts, with the
target's name and fingerprint in `config.json`. docs/checkpoints.md has all fields.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import Qwen3Config
from transformers.activations import ACT2FN

from specbench.config.recipes import training_command
from specbench.engine.saved_heads import fingerprint, same_weights
from specbench.engine.weights.published_checkpoint import CONFIG, read_config, read_weights, require_all
from specbench.errors import UserError, first_line
from specbench.methods.decoder_layer import ROTATIONS, llama_shape, rotation
from specbench.methods.dflash.network import BlockDrafter, BlockShape

FIELDS = (  # that are read of the layers
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "hidden_act", "rms_norm_eps", "vocab_size", "max_position_embeddings", "rope_theta", "rope_scaling",
    "rope_parameters",
)  # fmt: skip
REQUIRED = ("block_size", "mask_token_id", "target_layer_ids")
# Fields of later drafters, and the values at which they say nothing.
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "attention_bias": (False,), "is_causal": (False,), "causal": (False,), "input_embedding_scale": (1, 1.0),
    "output_multiplier": (1, 1.0), "final_logit_softcapping": (0,), "selector_rank": (), "conv_kernel_size": (),
    "projector_type": ("dflash", "dspark"), "draft_vocab_size": (), "num_experts": (0,), "quantization_config": (),
}  # fmt: skip
MOST_BLOCK = 65
MODEL_TYPES = ("qwen3", "muse_glimmer_assistant")
THEIRS = {"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm.", "model.": ""}  # other names of modules
UNUSED = re.compile(r".*rotary_emb\.inv_freq")


@dataclass(frozen=True)
class PublishedBlock:
    """A checkpoint whose config is read; `source` and `pinned` locate it, `key` is the run's name for it."""

    source: str
    pinned: Mapping[str, Any]
    key: str
    config: Mapping[str, Any]
    shape: BlockShape

    def load(self, network: Any) -> BlockDrafter:
        """The network, bound to `network`.

        Raises UserError if it was trained for other weights, or if a tensor is missing, unknown, damaged, or of another
        shape than the config says.
        """
        prints, weight = self.config.get("fingerprint"), network.get_output_embeddings().weight
        if prints is not None and not same_weights(fingerprint(network), prints):
            raise UserError(
                f"{self.key}: the weights in {self.source} were trained on {self.config.get('target')}, and this "
                f"target's weights are others; train some: {training_command(self.shape.kind)}, and give "
                f"{self.key}.path=FOLDER"
            )
        tensors, named = self._tensors(weight.device)
        own = _own_rows(tensors, network)
        shape = BlockShape(**{name: getattr(self.shape, name) for name in vars(self.shape)} | {"own_rows": own})
        drafter = BlockDrafter(shape, len(weight))
        theirs = partial(_their_name, named=named)
        require_all(drafter.state_dict(), tensors, theirs, self.key, self.source, shape.kind)
        drafter.load_state_dict(tensors)
        return drafter.to(weight.device, weight.dtype).eval().requires_grad_(False).bind(network)

    def _tensors(self, device: torch.device) -> tuple[dict[str, Tensor], list[str]]:
        """The state dict with this package's parameter names, and the names in the files."""
        found = read_weights(self.source, self.pinned, self.key, device)
        state = {_our_name(name): tensor for name, tensor in found.items() if not UNUSED.fullmatch(name)}
        return state, list(found)


def _our_name(name: str) -> str:
    for theirs, ours in THEIRS.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _their_name(ours: str, named: Sequence[str]) -> str:
    """The name of a tensor in files with these names: what `_our_name` makes `ours` of."""
    for theirs, own in THEIRS.items():
        if ours.startswith(own) and any(name.startswith(theirs) for name in named):
            return theirs + ours.removeprefix(own)
    return ours


def _own_rows(tensors: dict[str, Tensor], network: Any) -> tuple[str, ...]:
    """Names of embeddings and head that are not the target's; copies, which are large, are taken out of `tensors`."""
    own = []
    for name, module in (
        ("embed_tokens", network.get_input_embeddings()),
        ("lm_head", network.get_output_embeddings()),
    ):
        weight, tensor = module.weight, tensors.get(f"{name}.weight")
        if tensor is not None and tensor.shape == weight.shape and torch.equal(tensor.to(weight.dtype), weight):
            del tensors[f"{name}.weight"]
        elif tensor is not None:
            own.append(name)
    return tuple(own)


def published_block(source: str, pinned: Mapping[str, Any], key: str, kind: str, target: Any) -> PublishedBlock:
    """The checkpoint of draft=`kind` in a folder or repository, for a target with the `transformers` config `target`.

    Raises UserError for what is missing, not supported, or made for another target; the message names the field.
    """
    config = read_config(source, pinned, key)

    def refuse(name: str, value: object, why: str) -> NoReturn:
        raise UserError(f"{key}: {CONFIG} of {source}: {name}={value}: {why}")

    if target.is_encoder_decoder:
        raise UserError(f"{key}: draft={kind} is for decoder-only targets; this is an encoder-decoder; use draft=eagle")
    told = {**config, **(config.get("dflash_config") or {})}
    if "speculators_model_type" in config:
        refuse("speculators_model_type", config["speculators_model_type"], "this layout is not supported for blocks")
    for name in REQUIRED:
        if told.get(name) is None:
            refuse(name, None, f"a checkpoint of draft={kind} has it")
    if told.get("model_type") not in MODEL_TYPES:
        refuse("model_type", told.get("model_type"), f"only {' and '.join(MODEL_TYPES)} are supported")
    for name, silent in UNSUPPORTED.items():
        if (value := told.get(name)) is not None and value not in silent:
            refuse(name, value, "not supported")
    if set(told.get("layer_types") or ()) - {"full_attention"}:
        refuse("layer_types", told["layer_types"], "only full_attention is supported")
    found = "dspark" if told.get("markov_rank") else "dflash"
    if found != kind:
        raise UserError(f"{key}: the weights in {source} are of draft={found}; use that draft")
    try:
        layer = Qwen3Config(**{name: told[name] for name in FIELDS if told.get(name) is not None})
        theta, angles = rotation(layer)
        shape = BlockShape(
            llama_shape(layer, False, theta=theta, angles=angles, head_norms=True), layer.num_hidden_layers,
            tuple(int(number) + 1 for number in told["target_layer_ids"]), int(told["block_size"]),
            int(told["mask_token_id"]), int(told.get("markov_rank") or 0), _confidence(told),
        )  # fmt: skip
    except Exception as error:  # TypeError, ValueError, StrictDataclassError: fields of other types, another rotation
        allowed = f"rotary positions of the kinds {', '.join(ROTATIONS)}"
        raise UserError(
            f"{key}: {CONFIG} of {source} describes no layers that are supported ({allowed}): {first_line(error)}"
        ) from error
    if shape.rank and told.get("markov_head_type") != "vanilla":
        refuse("markov_head_type", told.get("markov_head_type"), "only vanilla is supported")
    if layer.hidden_act not in ACT2FN:
        refuse("hidden_act", layer.hidden_act, "transformers has no such activation")
    _require_fits(shape, told, target.get_text_config(), refuse)
    return PublishedBlock(source, pinned, key, config, shape)


def _confidence(told: Mapping[str, Any]) -> int | None:
    if not told.get("enable_confidence_head"):
        return None
    return int(told["markov_rank"]) if told.get("confidence_head_with_markov") else 0


def _require_fits(shape: BlockShape, told: Mapping[str, Any], target: Any, refuse: Any) -> None:
    layers, width = target.num_hidden_layers, target.hidden_size
    if shape.layer.width != width:
        refuse("hidden_size", shape.layer.width, f"made for another target; this one's is {width}")
    if told.get("num_target_layers") not in (None, layers):
        refuse("num_target_layers", told["num_target_layers"], f"made for another target; this one has {layers}")
    if told.get("vocab_size") not in (None, target.vocab_size):
        refuse("vocab_size", told["vocab_size"], f"made for another target; this one's is {target.vocab_size}")
    # The last layer's state is normalised where `transformers` hands it over, and none of the checkpoints reads it.
    if not (shape.taps and 0 <= min(shape.taps) <= max(shape.taps) < layers):
        refuse("target_layer_ids", told["target_layer_ids"], f"must be numbers from -1 to {layers - 2} for this target")
    if not 0 <= shape.mask < target.vocab_size:
        refuse("mask_token_id", shape.mask, f"this target has {target.vocab_size} embeddings")
    least = 1 if shape.rank else 2
    if not least <= shape.block <= MOST_BLOCK:
        refuse("block_size", shape.block, f"must be from {least} to {MOST_BLOCK}")
