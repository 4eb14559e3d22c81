"""Small networks with random weights and a small tokenizer, saved as folders that `target.path=` takes.

T5 1.0 and v1.1, GPT-2 and Llama: the two families, tied and untied heads, learned and rotary positions. Logits are
padded past the tokenizer's last token, as T5's are.
"""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

WORDS = [
    "the",
    "a",
    "dog",
    "cat",
    "man",
    "house",
    "tree",
    "runs",
    "sees",
    "sits",
    "old",
    "small",
    "red",
    "green",
    "under",
    "over",
    "near",
    "der",
    "die",
    "ein",
    "hund",
    "katze",
    "mann",
    "haus",
    "baum",
    "rennt",
    "sieht",
    "sitzt",
    "alte",
    "kleine",
    "rote",
    "unter",
    "neben",
    ".",
    ",",
    "to",
    "translate",
    "English",
    "German",
    ":",
]
SPECIAL = ["<pad>", "</s>", "<unk>"]
PADDED = 64  # rows of the head; the tokenizer has fewer tokens


def tokenizer(with_end: bool, words: list[str] = WORDS) -> PreTrainedTokenizerFast:
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *words])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    if with_end:
        inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def network(kind: str, seed: int, layers: int = 2, width: int = 32) -> Any:
    """A network of `kind` whose weights are large enough that greedy texts vary."""
    torch.manual_seed(seed)
    ends = {"pad_token_id": 0, "eos_token_id": 1}
    made: Any
    if kind.startswith("t5"):
        config = T5Config(
            vocab_size=PADDED, d_model=width, d_ff=2 * width, d_kv=16, num_heads=2, num_layers=layers,
            num_decoder_layers=layers, decoder_start_token_id=0, initializer_factor=3.0,
            feed_forward_proj="gated-gelu" if kind == "t5-v1_1" else "relu", **ends,
        )  # fmt: skip
        if kind == "t5-v1_1":
            config.tie_word_embeddings = False  # the constructor forces True
            config.scale_decoder_outputs = False
        made = T5ForConditionalGeneration(config)
        for stack in (made.encoder, made.decoder):
            stack.set_input_embeddings(made.shared)  # public v1.1 checkpoints share these, though the head is free
        if kind == "t5":
            with torch.no_grad():  # a tied head repeats the last token unless the blocks speak up
                for weight in made.decoder.block.parameters():
                    weight.mul_(3)
    elif kind == "gpt2":
        made = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=PADDED, n_embd=width, n_layer=layers, n_head=2, n_positions=128, initializer_range=0.4,
                bos_token_id=1, **ends,
            )
        )  # fmt: skip
    elif kind == "mistral":  # attends to the last 8 tokens only
        made = MistralForCausalLM(
            MistralConfig(
                vocab_size=PADDED, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
                num_attention_heads=4, num_key_value_heads=2, sliding_window=8, max_position_embeddings=128,
                initializer_range=0.4, bos_token_id=1, **ends,
            )
        )  # fmt: skip
    else:
        config_of, network_of = (Qwen2Config, Qwen2ForCausalLM) if kind == "qwen2" else (LlamaConfig, LlamaForCausalLM)
        made = network_of(
            config_of(
                vocab_size=PADDED, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.4,
                bos_token_id=1, **ends,
            )
        )  # fmt: skip
    return made.eval()


def save(folder: Path, kind: str, seed: int, layers: int = 2, words: list[str] = WORDS) -> Path:
    """A folder with weights and tokenizer."""
    network(kind, seed, layers).save_pretrained(folder)
    tokenizer(with_end=kind.startswith("t5"), words=words).save_pretrained(folder)
    return folder
