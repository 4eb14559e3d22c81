"""Building the network of a recipe: a T5 or a GPT-2 of the given shape, or a checkpoint to start from.

Independent of data or optimisers.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from specbench.errors import UserError, first_line
from specbench.train.schema import ModelShape, resolve


def build(shape: ModelShape, tokenizer: PreTrainedTokenizerFast, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A network whose vocabulary is the tokenizer's, with weights in `dtype` (fp32 while training).

    Raises:
        UserError: the checkpoint to start from has fewer logits than the tokenizer tokens.
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


def load(where: str, family: str, dtype: torch.dtype = torch.float32, revision: str | None = None) -> PreTrainedModel:
    """A trained model from a folder, the hub or the package.

    Raises:
        UserError: there is none.
    """
    auto = AutoModelForSeq2SeqLM if family == "t5" else AutoModelForCausalLM
    try:
        return auto.from_pretrained(resolve(where), dtype=dtype, revision=revision)
    except (OSError, ValueError) as error:
        raise UserError(f"no {family} model can be loaded from '{where}': {first_line(error)}") from error


def load_tokenizer(where: str) -> PreTrainedTokenizerFast:
    """A trained model's tokenizer from a folder, the hub or the package.

    Raises:
        UserError: there is none.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve(where))
    except (OSError, ValueError) as error:
        raise UserError(f"no tokenizer can be loaded from '{where}': {first_line(error)}") from error
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of '{where}' has no end-of-sequence token, which texts are closed with")
    return tokenizer


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


def parameter_count(model: PreTrainedModel, without_positions: bool = False) -> int:
    """Trainable numbers, tied numbers once; the paper's 97M and 6M leave learned positions out."""
    return sum(weight.numel() for name, weight in model.named_parameters() if not (without_positions and "wpe" in name))
