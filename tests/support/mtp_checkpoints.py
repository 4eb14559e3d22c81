"""Targets with depths of multi-token prediction in their own checkpoint: random weights in the published layouts.

DeepSeek-V3 and GLM-4-MoE have them as layers after the target's last, Qwen3-Next, Qwen3.5 and Mellum beside the model
as `mtp.` (here Qwen3.5 alone has recurrent layers; heads have none). Names are those of the published files; the
decoder layers get theirs from a target with so many more layers.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support.networks import PADDED, network, tokenizer  # isort: skip
from specbench.engine.eager.network_parts import return_states
from specbench.methods.mtp.draft import MtpDraft
from specbench.methods.mtp.network import Mtp

WIDTH, LAYERS = 32, 2
MOE: dict[str, Any] = {
    "vocab_size": PADDED, "hidden_size": WIDTH, "intermediate_size": 48, "moe_intermediate_size": 16,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2,
    "max_position_embeddings": 128, "initializer_range": 0.4, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1,
}  # fmt: skip
ROUTED: dict[str, Any] = {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "glm4_moe": {**ROUTED, "head_dim": 8, "use_qk_norm": True, "attention_bias": True},
    "deepseek_v3": {
        **ROUTED, "first_k_dense_replace": 1, "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 16,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12,
    },
    "qwen3_next": {
        "head_dim": 8, "num_experts": 4, "shared_expert_intermediate_size": 16, "decoder_sparse_step": 1,
        "partial_rotary_factor": 0.5, "layer_types": ["full_attention"] * 3,
    },
    "qwen3_5_text": {
        "head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention", "full_attention"],
    },
    "mellum": {"head_dim": 8, "num_experts": 4, "mtp_layer_types": ["full_attention"]},
}  # fmt: skip
BESIDE = ("mellum", "qwen3_next", "qwen3_5_text")  # whose heads are named `mtp.`


def config(family: str, depths: int, layers: int = LAYERS) -> Any:
    told = MOE | FAMILIES[family] | {"num_hidden_layers": layers}
    if "layer_types" in told:
        told["layer_types"] = told["layer_types"][:layers]
    else:
        told["num_nextn_predict_layers"] = depths
    return AutoConfig.for_model(family, **told)


def target(family: str, depths: int = 1, layers: int = LAYERS, seed: int = 4) -> Any:
    torch.manual_seed(seed)
    made = AutoModelForCausalLM.from_config(config(family, depths, layers), dtype=torch.float32)
    for weight in made.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.25)
    return made.eval()


def write(folder: Path, family: str, depths: int = 1) -> Path:
    """A target of this family with so many depths, in `folder`, as it would be published."""
    folder.mkdir(parents=True, exist_ok=True)
    target(family, depths, LAYERS + depths).save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    torch.manual_seed(7)
    made: dict[str, Tensor] = {}
    for name, tensor in state.items():
        number = int(name.split(".")[2]) if name.startswith("model.layers.") else -1
        beside = family in BESIDE and number >= LAYERS
        made[name.replace(f"model.layers.{number}.", f"mtp.layers.{number - LAYERS}.") if beside else name] = tensor
    for depth in range(depths):
        made |= joining(family, depth)
    save_file(
        {name: tensor.contiguous() for name, tensor in made.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    told = json.loads((folder / "config.json").read_text())
    told |= {key: value[:LAYERS] for key, value in told.items() if key in ("layer_types", "mlp_layer_types")}
    (folder / "config.json").write_text(json.dumps(told | {"num_hidden_layers": LAYERS}))
    tokenizer(with_end=False).save_pretrained(folder)
    return folder


def joining(family: str, depth: int) -> dict[str, Tensor]:
    """What a depth has besides its decoder layer."""
    norms, linear = [torch.rand(WIDTH) + 0.5 for _ in range(3)], torch.randn(WIDTH, 2 * WIDTH) * 0.3
    if family in BESIDE:
        names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc")
        return {f"mtp.{name}.weight": tensor for name, tensor in zip(names, (*norms, linear), strict=True)}
    names, layer = ("enorm", "hnorm", "shared_head.norm", "eh_proj"), LAYERS + depth
    copies = {f"model.layers.{layer}.embed_tokens.weight": torch.zeros(PADDED, WIDTH)}
    own = {f"model.layers.{layer}.{name}.weight": part for name, part in zip(names, (*norms, linear), strict=True)}
    return own | copies


def started(engine: Any, size: int, end: int) -> tuple[Any, MtpDraft]:
    """GPT-2, which hands over its states, and a depth for it as our recipe starts it."""
    own = network("gpt2", 4)
    width = return_states(own, "target")
    made = engine(own, size, frozenset({end}))
    made.state_width, made.states_of_prompt = width, True
    torch.manual_seed(1)
    depth = Mtp.start_from(own, "target")
    torch.nn.init.normal_(depth.fc.weight, std=0.3)
    return made, MtpDraft(made, [depth.eval().requires_grad_(False).bind(own)])
