"""Building the network of a recipe: a T5 or a GPT-2 of the given shape, a few of the target's layers, or a checkpoint.

Independent of data or optimisers.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.t5.modeling_t5 import T5Stack

from specbench.config.model import ADAPTER, GGUF
from specbench.config.places import model_at
from specbench.engine.eager.network_parts import layer_list
from specbench.engine.weights import parameters
from specbench.engine.weights.pretrained import config_in, named, network_in, network_of_shape, tokenizer_in
from specbench.errors import MachineError, UserError, first_line
from specbench.hub import hub_is_reachable, only_cached
from specbench.train.recipe_places import resolve
from specbench.train.recipe_schema import ModelShape, Recipe

T = TypeVar("T")


def build(shape: ModelShape, tokenizer: PreTrainedTokenizerFast, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A network whose vocabulary is the tokenizer's, with weights in `dtype` (fp32 while training).

    Raises UserError if the checkpoint to start from has fewer logits than the tokenizer tokens.
    """
    if shape.start_from:
        model = load(shape.start_from, shape.family, dtype, shape.revision)
        if model.config.vocab_size < len(tokenizer):
            raise UserError(
                f"model.start_from={shape.start_from} has {model.config.vocab_size} logits but the tokenizer has "
                f"{len(tokenizer)} tokens: give the model's own with tokenizer.start_from={shape.start_from}"
            )
        return model
    return (_t5(shape, tokenizer) if shape.family == "t5" else _gpt2(shape, tokenizer)).to(dtype)


def as_target(recipe: Recipe) -> PreTrainedModel:
    """A network of `distill.target`'s architecture and widths, with `model.decoder_layers` layers and new weights.

    Raises UserError if the target has fewer layers.
    """
    config = copy.deepcopy(load_config(recipe.distill.target or "", recipe.distill.revision))
    text, layers = config.get_text_config(), recipe.model.decoder_layers
    if layers > text.num_hidden_layers:
        raise UserError(f"model.decoder_layers={layers}: the target has {text.num_hidden_layers} layers")
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[-layers:]
    network: PreTrainedModel = network_of_shape(AutoModelForCausalLM, config, dtype=torch.float32)
    return network


def load(where: str, family: str, dtype: torch.dtype = torch.float32, revision: str | None = None) -> PreTrainedModel:
    """A trained model from a folder, the hub or the package. Raises UserError if there is none, or a part of one."""
    auto = AutoModelForSeq2SeqLM if family == "t5" else AutoModelForCausalLM
    network, unused = _read(partial(network_in, auto, dtype=dtype), f"{family} model", where, revision)
    if unused:
        print(f"{where}: tensors of its files that nothing reads: {named(unused)}", file=sys.stderr)
    return network


def load_config(where: str, revision: str | None = None) -> Any:
    """A trained model's config from a folder, the hub or the package. Raises UserError if there is none."""
    return _read(config_in, "config", where, revision)


def load_tokenizer(where: str) -> PreTrainedTokenizerFast:
    """A trained model's tokenizer from a folder, the hub or the package. Raises UserError if there is none."""
    tokenizer = _read(tokenizer_in, "tokenizer", where)
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of '{where}' has no end-of-sequence token, which texts are closed with")
    return tokenizer


def _read(read: Callable[..., T], what: str, where: str, revision: str | None = None) -> T:
    source = resolve(where)
    if source.endswith(GGUF):
        raise UserError(f"'{where}' is a GGUF file, which training does not read; give a folder of safetensors")
    if (Path(source) / ADAPTER).is_file() and not (Path(source) / "config.json").is_file():
        raise UserError(f"'{where}' is an adapter, which training does not read; give a folder with its base merged in")
    if revision is None and not Path(source).exists() and not hub_is_reachable():
        revision = only_cached(source)
    try:
        return read(source, revision=revision)
    except (OSError, ValueError) as error:
        raise UserError(f"no {what} can be loaded from '{where}': {first_line(error)}") from error


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """bf16 safetensors, config and tokenizer, as `from_pretrained` takes them, without what only training needed."""
    model.config.use_cache = True
    model.generation_config = GenerationConfig.from_model_config(model.config)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.backend_tokenizer.no_truncation()  # a limit once asked for would travel with the file
    for key in ("max_length", "stride", "truncation_side", "truncation_strategy"):
        tokenizer.init_kwargs.pop(key, None)
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)


def _t5(shape: ModelShape, tokenizer: PreTrainedTokenizerFast) -> T5ForConditionalGeneration:
    config = T5Config(
        d_model=shape.d_model,
        d_ff=shape.d_ff,
        d_kv=shape.d_kv,
        num_heads=shape.heads,
        num_layers=shape.encoder_layers,
        num_decoder_layers=shape.decoder_layers,
        dropout_rate=shape.dropout,
        decoder_start_token_id=tokenizer.pad_token_id,
        **_of_both(shape, tokenizer),
    )
    return T5ForConditionalGeneration(config)


def _gpt2(shape: ModelShape, tokenizer: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    config = GPT2Config(
        n_positions=shape.positions,
        n_embd=shape.d_model,
        n_inner=shape.d_ff,
        n_layer=shape.decoder_layers,
        n_head=shape.heads,
        activation_function="gelu",
        resid_pdrop=shape.dropout,
        embd_pdrop=shape.dropout,
        attn_pdrop=shape.dropout,
        bos_token_id=tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id,
        **_of_both(shape, tokenizer),
    )
    return GPT2LMHeadModel(config)


def _of_both(shape: ModelShape, tokenizer: PreTrainedTokenizerFast) -> dict[str, object]:
    """The keys that the configs of both families have: vocabulary, special tokens, and whether the head is tied."""
    return {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "tie_word_embeddings": shape.tied,
    }


def parameter_count(model: nn.Module) -> int:
    """Trainable numbers, tied numbers once."""
    return sum(weight.numel() for weight in model.parameters())


@dataclass(frozen=True)
class _Size:
    """The part of a tokenizer that the size of a network depends on."""

    number: int
    pad_token_id: int = 0
    eos_token_id: int = 1
    bos_token_id: int | None = None

    def __len__(self) -> int:
        return self.number


def trained_parameters(recipe: Recipe) -> int | None:
    """How many weights `recipe` trains, without loading any; None of heads, whose size the target decides."""
    if recipe.on_frozen_target:
        return None
    if recipe.model.start_from:
        return parameters(model_at(recipe.model.start_from, "model.start_from"))
    pieces, where = recipe.tokenizer.size, recipe.tokenizer.start_from or recipe.distill.target
    try:
        if where:
            pieces = load_config(where).get_text_config().vocab_size
    except (UserError, MachineError):
        return None
    with torch.device("meta"):
        if recipe.model.family == "own":
            return parameter_count(as_target(recipe))
        return parameter_count(build(recipe.model, cast(PreTrainedTokenizerFast, _Size(pieces))))


def check_same_vocabulary(target_tokens: dict[str, int], draft_tokens: dict[str, int], target: str) -> None:
    """Check that the draft's token ids mean the same as the target's.

    Raises UserError if they differ; the message names the first difference.
    """
    if target_tokens == draft_tokens:
        return
    either = target_tokens.keys() | draft_tokens.keys()
    differing = sorted(token for token in either if target_tokens.get(token) != draft_tokens.get(token))
    raise UserError(
        f"the draft's vocabulary differs from distill.target={target}: {len(differing)} tokens differ, first "
        f"{differing[0]!r}; set tokenizer.start_from={target}"
    )


def borrow(draft: PreTrainedModel, target: PreTrainedModel) -> None:
    """Start the draft from the target: its embeddings and, if the widths are the same, some of its layers.

    Training then has little left to find: tokens alike for the target are alike for the draft from the first step.
    """
    if type(draft) is type(target) and not isinstance(draft, (T5ForConditionalGeneration, GPT2LMHeadModel)):
        _borrow_all(draft, target)
        return
    borrow_embeddings(draft, target)
    if isinstance(draft, T5ForConditionalGeneration) and isinstance(target, T5ForConditionalGeneration):
        _borrow_layers(draft.encoder, target.encoder)
        _borrow_layers(draft.decoder, target.decoder)
    if isinstance(draft, GPT2LMHeadModel) and isinstance(target, GPT2LMHeadModel):
        _borrow_blocks(draft.transformer.h, target.transformer.h)
        for name in ("wpe", "ln_f"):
            ours, theirs = (getattr(model.transformer, name) for model in (draft, target))
            if ours.weight.shape == theirs.weight.shape:
                ours.load_state_dict(theirs.state_dict())


def borrow_embeddings(draft: PreTrainedModel, target: PreTrainedModel) -> None:
    """The target's embeddings, on as many of their principal directions as the draft is wide, at the draft's size."""
    ours = draft.get_input_embeddings().weight
    theirs = target.get_input_embeddings().weight.detach().float()
    rows = min(ours.shape[0], theirs.shape[0])
    with torch.no_grad():
        if ours.shape[1] == theirs.shape[1]:
            ours[:rows] = theirs[:rows].to(ours.dtype)
            return
        width = min(ours.shape[1], theirs.shape[1])
        _, _, directions = torch.linalg.svd(theirs[:rows], full_matrices=False)
        # Principal directions differ in strength; a random turn spreads it over the coordinates.
        turn, _ = torch.linalg.qr(torch.randn(width, width))
        projected = theirs[:rows] @ directions[:width].T @ turn
        size = ours.pow(2).mean().sqrt()
        ours[:rows, :width] = (projected * (size / projected.pow(2).mean().sqrt())).to(ours.dtype)


@torch.no_grad()
def _borrow_all(draft: PreTrainedModel, target: PreTrainedModel) -> None:
    """Everything of the target's own architecture: layers, and what stands around them."""
    ours, theirs = (list(layer_list(model)) for model in (draft, target))
    _borrow_blocks(nn.ModuleList(ours), nn.ModuleList(theirs))
    inner = {id(weight) for layer in ours for weight in layer.parameters()}
    given = dict(target.named_parameters())
    for name, weight in draft.named_parameters():
        if id(weight) not in inner and name in given and given[name].shape == weight.shape:
            weight.copy_(given[name])


def _borrow_layers(ours: T5Stack, theirs: T5Stack) -> None:
    if _borrow_blocks(ours.block, theirs.block):
        ours.final_layer_norm.load_state_dict(theirs.final_layer_norm.state_dict())


def _borrow_blocks(ours: nn.ModuleList, theirs: nn.ModuleList) -> bool:
    """Layers of the same shape, evenly spaced from the first to the last; a single layer is the first."""
    shapes = [{name: weight.shape for name, weight in blocks[0].state_dict().items()} for blocks in (ours, theirs)]
    if len(ours) > len(theirs) or shapes[0] != shapes[1]:
        return False
    for index, block in enumerate(ours):
        place = round(index * (len(theirs) - 1) / max(len(ours) - 1, 1))
        # Only T5's first layer has the position biases, which it keeps for the others.
        block.load_state_dict(theirs[place].state_dict(), strict=index == place == 0)
    return True
