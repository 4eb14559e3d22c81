"""Networks of the architectures that people use today: random weights, small shapes, no checkpoint.

Each is built from its own `transformers` config, with the parts that set it apart: gated attention heads, windows,
capped scores, learned or rotary positions. Logits are 4 wide for the toy vocabulary, 64 wide otherwise.
"""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

ROTARY = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 128, "initializer_range": 0.4}  # fmt: skip
SEQ2SEQ = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
           "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 128,
           "init_std": 0.1, "decoder_start_token_id": 0, "forced_eos_token_id": None}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {**ROTARY, "rope_parameters": LLAMA3},
    "qwen2": {**ROTARY},
    "qwen3": {**ROTARY, "head_dim": 16, "initializer_range": 0.1},
    "gemma2": {**ROTARY, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "gemma3_text": {**ROTARY, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "mistral": {**ROTARY, "sliding_window": 8},
    "gpt_neox": {key: value for key, value in ROTARY.items() if key != "num_key_value_heads"},
    "opt": {"hidden_size": 32, "ffn_dim": 64, "num_attention_heads": 2, "word_embed_proj_dim": 32,
            "max_position_embeddings": 128, "init_std": 0.4},
    "mt5": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2, "initializer_factor": 3.0,
            "decoder_start_token_id": 0},
    "bart": SEQ2SEQ,
    "marian": SEQ2SEQ,
}  # fmt: skip
LAYERS = {"mt5": ("num_layers", "num_decoder_layers"), "bart": ("decoder_layers",), "marian": ("decoder_layers",)}
SHARPNESS = {"mt5": 15.0}  # the logits' standard deviation, where it is far from 1
KINDS = list(SHAPES)
ENCODER_DECODER = ("mt5", "bart", "marian")


def network(kind: str, seed: int, layers: int = 2, vocabulary: int = 64) -> Any:
    """A network of `kind` whose weights are large enough that greedy texts vary."""
    torch.manual_seed(seed)
    counts = dict.fromkeys(LAYERS.get(kind, ("num_hidden_layers",)), layers)
    ends = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1}
    config = AutoConfig.for_model(kind, vocab_size=vocabulary, **SHAPES[kind], **counts, **ends)
    config.tie_word_embeddings = False  # with a tied head of random weights a text repeats its last token
    auto = AutoModelForSeq2SeqLM if kind in ENCODER_DECODER else AutoModelForCausalLM
    made = auto.from_config(config).eval()
    if vocabulary < 64:  # a toy's texts are to be tested as draws: none of them may have all of the mass
        made.get_output_embeddings().weight.data /= SHARPNESS.get(kind, 1.0)
    return made
