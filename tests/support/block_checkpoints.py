"""Small random block drafters in the layouts that others publish, and what they draft, computed by plain code.

Written after the authors' code: github.com/z-lab/dflash and github.com/deepseek-ai/DeepSpec.
"""

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from tests.support.published import _norm, _turned

from tests.support.networks import PADDED  # isort: skip

WIDTH, HEAD, HEADS, SHARED, HIDDEN, RANK = 32, 8, 4, 2, 48, 6  # of the llama of `networks`; SHARED: key heads
BLOCK, MASK, LAYERS = 5, 3, 2
State = dict[str, Tensor]


def config(kind: str, **more: Any) -> dict[str, Any]:
    own = {"mask_token_id": MASK, "target_layer_ids": [-1, 1] if kind == "dspark" else [0, 1]}
    told: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": BLOCK, "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": SHARED, "head_dim": HEAD,
        "intermediate_size": HIDDEN, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 5000.0,
        "vocab_size": PADDED, "max_position_embeddings": 128, "num_target_layers": 3, "attention_bias": False,
        "layer_types": ["full_attention"] * LAYERS, "is_causal": None,
    }  # fmt: skip
    if kind == "dflash":
        return told | {"dflash_config": own} | more
    heads = {"markov_rank": RANK, "markov_head_type": "vanilla", "num_anchors": 4, "enable_confidence_head": True}
    return told | own | heads | {"architectures": ["Qwen3DSparkModel"], "confidence_head_with_markov": True} | more


def state(kind: str, network: Any) -> State:
    """Weights under the published names; DSpark's repeat the target's embeddings and head."""
    torch.manual_seed(7)
    found = {"fc.weight": torch.randn(WIDTH, 2 * WIDTH) * 0.3}
    found |= {f"{name}.weight": torch.rand(WIDTH) + 0.5 for name in ("hidden_norm", "norm")}
    sizes = {"q": (HEADS * HEAD, WIDTH), "k": (SHARED * HEAD, WIDTH), "v": (SHARED * HEAD, WIDTH)}
    sizes["o"] = (WIDTH, HEADS * HEAD)
    for layer in range(LAYERS):
        own = {f"self_attn.{name}_proj": torch.randn(*size) * 0.3 for name, size in sizes.items()}
        own |= {f"self_attn.{name}_norm": torch.rand(HEAD) + 0.5 for name in "qk"}
        own |= {f"mlp.{name}_proj": torch.randn(HIDDEN, WIDTH) * 0.3 for name in ("gate", "up")}
        own |= {"mlp.down_proj": torch.randn(WIDTH, HIDDEN) * 0.3}
        own |= {f"{name}_layernorm": torch.rand(WIDTH) + 0.5 for name in ("input", "post_attention")}
        found |= {f"layers.{layer}.{name}.weight": tensor for name, tensor in own.items()}
    if kind == "dspark":
        found["embed_tokens.weight"] = network.get_input_embeddings().weight.detach().clone()
        found["lm_head.weight"] = network.get_output_embeddings().weight.detach().clone()
        found["markov_head.markov_w1.weight"] = torch.randn(PADDED, RANK)
        found["markov_head.markov_w2.weight"] = torch.randn(PADDED, RANK)
        found["confidence_head.proj.weight"] = torch.randn(1, WIDTH + RANK) * 0.3
        found["confidence_head.proj.bias"] = torch.randn(1)
    return found


def write(folder: Path, told: dict[str, Any], weights: State) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(told))
    save_file(weights, folder / "model.safetensors")
    return folder


@torch.no_grad()
def plain_states(told: dict[str, Any], w: State, features: Tensor, embedded: Tensor) -> Tensor:
    """The states of a block [L, D] whose entries are `embedded`, after a context with these tapped states [T, F]."""
    context, stream, groups = (
        _norm(features @ w["fc.weight"].T, w["hidden_norm.weight"], told),
        embedded,
        HEADS // SHARED,
    )
    size = len(embedded)
    for layer in range(LAYERS):
        own = {name.removeprefix(f"layers.{layer}."): tensor for name, tensor in w.items()}
        read = _norm(stream, own["input_layernorm.weight"], told)
        both = torch.cat([context, read])
        q, k, v = (F.linear(both, own[f"self_attn.{name}_proj.weight"]).view(len(both), -1, HEAD) for name in "qkv")
        q, k = _norm(q, own["self_attn.q_norm.weight"], told), _norm(k, own["self_attn.k_norm.weight"], told)
        mixed = []
        for head in range(HEADS):
            scores = _turned(q[:, head], told)[-size:] @ _turned(k[:, head // groups], told).T * HEAD**-0.5
            mixed.append(scores.softmax(-1) @ v[:, head // groups])
        stream = stream + F.linear(torch.cat(mixed, -1), own["self_attn.o_proj.weight"])
        inner = _norm(stream, own["post_attention_layernorm.weight"], told)
        gate = F.silu(F.linear(inner, own["mlp.gate_proj.weight"])) * F.linear(inner, own["mlp.up_proj.weight"])
        stream = stream + F.linear(gate, own["mlp.down_proj.weight"])
    return _norm(stream, w["norm.weight"], told)
