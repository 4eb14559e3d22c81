"""Networks with recurrent layers: random weights, small shapes, each built from its own `transformers` config."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support.networks import PADDED, tokenizer

BASE = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 256, "initializer_range": 0.1}  # fmt: skip
PURE = {"hidden_size": 32, "state_size": 8, "initializer_range": 0.1}
MIXED = {"layer_types": ["linear_attention", "full_attention"]}
DELTA = {**BASE, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
         "linear_value_head_dim": 8, **MIXED}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MAMBA2 = {**BASE, "mamba_d_state": 8, "mamba_d_head": 16, "mamba_n_heads": 4, "mamba_n_groups": 1,
          "mamba_chunk_size": 16}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "bamba": {**MAMBA2, "attn_layer_indices": [1]},
    "falcon_h1": {**MAMBA2, "mamba_d_ssm": 64, "head_dim": 16},
    "falcon_mamba": {**PURE, "time_step_rank": 4},
    "granitemoehybrid": {**MAMBA2, **MIXED, "num_local_experts": 4, "num_experts_per_tok": 2,
                         "shared_intermediate_size": 16},
    "jamba": {**BASE, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "num_experts_per_tok": 1,
              "mamba_d_state": 8, "mamba_dt_rank": 4},
    "lfm2": {**BASE, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {**BASE, **EXPERTS, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba": {**PURE, "time_step_rank": 4},
    "mamba2": {**PURE, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 16},
    "nemotron_h": {**BASE, "ssm_state_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1,
                   "chunk_size": 16, "head_dim": 16,
                   "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"]},
    "olmo_hybrid": {**DELTA, "linear_num_key_heads": 4},
    "qwen3_5_moe_text": {**DELTA, **EXPERTS, "head_dim": 16, "shared_expert_intermediate_size": 16},
    "qwen3_5_text": {**DELTA, "head_dim": 16},
    "qwen3_next": {**DELTA, **EXPERTS, "head_dim": 16, "shared_expert_intermediate_size": 16},
    "zamba2": {**BASE, "mamba_d_state": 8, "mamba_ngroups": 1, "n_mamba_heads": 4, "mamba_headdim": 16,
               "chunk_size": 16, "num_mem_blocks": 1, "kv_channels": 16, "attention_head_dim": 16,
               "attention_hidden_size": 64, "adapter_rank": 4,
               "layers_block_type": ["linear_attention", "hybrid", "linear_attention"]},
}  # fmt: skip
NAMES = {
    "bamba": "Bamba", "falcon_h1": "Falcon H1", "falcon_mamba": "Falcon Mamba", "jamba": "Jamba",
    "granitemoehybrid": "Granite 4 (hybrid)", "lfm2": "LFM 2", "lfm2_moe": "LFM 2 MoE", "mamba": "Mamba",
    "mamba2": "Mamba 2", "nemotron_h": "Nemotron H", "olmo_hybrid": "OLMo Hybrid",
    "qwen3_5_moe_text": "Qwen 3.5 MoE (text)", "qwen3_5_text": "Qwen 3.5 (text)", "qwen3_next": "Qwen 3-Next",
    "zamba2": "Zamba 2",
}  # fmt: skip
KINDS = list(SHAPES)


def network(kind: str, seed: int, vocabulary: int = PADDED) -> Any:
    """A network of `kind` whose weights are large enough that greedy texts vary."""
    torch.manual_seed(seed)
    shape = {"num_hidden_layers": len(SHAPES[kind].get("layers_block_type", "12")), **SHAPES[kind]}
    config = AutoConfig.for_model(kind, vocab_size=vocabulary, pad_token_id=0, bos_token_id=0, eos_token_id=1, **shape)
    config.tie_word_embeddings = False
    made = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # convolutions and norms begin at values that tell nothing apart
        for name, weight in made.named_parameters():
            if "conv" in name or (name.endswith("weight") and weight.dim() == 1):
                weight.add_(torch.randn_like(weight), alpha=0.3)
    return made


def save(folder: Path, kind: str, seed: int) -> Path:
    """A folder as `transformers` saves it, with a tokenizer."""
    network(kind, seed).save_pretrained(folder)
    tokenizer(with_end=False).save_pretrained(folder)
    return folder
