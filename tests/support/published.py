"""Small random checkpoints in the layouts that others publish, and what they draft, computed by plain code.

Written after the authors' code: github.com/SafeAILab/EAGLE and github.com/vllm-project/speculators.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

WIDTH, HIDDEN, HEADS, SHARED = 32, 48, 4, 2  # SHARED: key heads
ROWS, SIZE, KEPT = 64, 40, 24  # of the target's head; tokens of its tokenizer; of the draft vocabulary
State = dict[str, Tensor]


def weights(reads: int, layer: str, head: int = 8, bias: bool = False, hidden: int = HIDDEN) -> State:
    """One decoder layer, under the name `layer`, whose attention reads `reads` numbers."""
    sizes = {"q": (HEADS * head, reads), "k": (SHARED * head, reads), "v": (SHARED * head, reads),
             "o": (WIDTH, HEADS * head)}  # fmt: skip
    state = {f"{layer}.self_attn.{name}_proj.weight": torch.randn(*size) * 0.3 for name, size in sizes.items()}
    if bias:
        state |= {f"{layer}.self_attn.{name}_proj.bias": torch.randn(sizes[name][0]) for name in "qkv"}
    for name, size in {"gate": (hidden, WIDTH), "up": (hidden, WIDTH), "down": (WIDTH, hidden)}.items():
        state[f"{layer}.mlp.{name}_proj.weight"] = torch.randn(*size) * 0.3
    state[f"{layer}.post_attention_layernorm.weight"] = torch.rand(WIDTH) + 0.5
    return state


def config(**more: Any) -> dict[str, Any]:
    """That of one Llama layer, as EAGLE's are."""
    own = {
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": WIDTH, "intermediate_size": HIDDEN,
        "model_type": "llama", "num_attention_heads": HEADS, "num_key_value_heads": SHARED, "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5, "vocab_size": ROWS, "rope_theta": 5000.0, "max_position_embeddings": 128,
    }  # fmt: skip
    return own | more


def eagle(bias: bool = False) -> tuple[dict[str, Any], State]:
    """EAGLE's own layout. `bias`: of attention, which drafts for Qwen2 have, and of the first linear layer."""
    torch.manual_seed(5)
    state = weights(WIDTH, "layers.0", bias=bias) | {"fc.weight": torch.randn(WIDTH, 2 * WIDTH) * 0.3}
    state["embed_tokens.weight"] = torch.randn(ROWS, WIDTH)
    if bias:
        state["fc.bias"] = torch.randn(WIDTH)
    return config(bias=bias), state


def eagle3(layer: str = "midlayer", head: int = 8, target: int = WIDTH, taps: int = 3) -> tuple[dict[str, Any], State]:
    """EAGLE-3's own layout, with a draft vocabulary. `target`: its width."""
    torch.manual_seed(6)
    state = weights(2 * WIDTH, layer, head)
    state |= {f"{layer}.{name}.weight": torch.rand(WIDTH) + 0.5 for name in ("hidden_norm", "input_layernorm")}
    state |= {"fc.weight": torch.randn(WIDTH, taps * target) * 0.1, "norm.weight": torch.rand(WIDTH) + 0.5}
    state["lm_head.weight"] = torch.randn(KEPT, WIDTH)
    kept = torch.randperm(ROWS)[:KEPT].sort()[0]
    state["d2t"] = kept - torch.arange(KEPT)
    state["t2d"] = torch.zeros(ROWS, dtype=torch.bool).index_fill(0, kept, True)
    return config(draft_vocab_size=KEPT), state


def peagle(layers: int = 2, taps: int = 3) -> tuple[dict[str, Any], State]:
    """P-EAGLE in EAGLE-3's own layout, with decoder layers after the first."""
    told, state = eagle3("layers.0", taps=taps)
    for layer in range(1, layers):
        state |= weights(WIDTH, f"layers.{layer}") | {f"layers.{layer}.input_layernorm.weight": torch.rand(WIDTH) + 0.5}
    state["mask_hidden"] = torch.randn(1, 1, taps * WIDTH)
    state["lm_head.weight"] *= 0.1  # logits of a usual size
    return told | {"num_hidden_layers": layers, "ptd_token_id": 50}, state


def speculators(kind: str, layers: int = 2, **more: Any) -> tuple[dict[str, Any], State]:
    """The speculators format of `kind`."""
    layer = config(head_dim=WIDTH // HEADS)
    state = eagle()[1] if kind == "eagle" else eagle3("layers.0")[1]
    if kind == "peagle":
        state = peagle(layers)[1]
        layer |= {"num_hidden_layers": layers}
        more = {"mask_token_id": 50} | more
    own: dict[str, Any] = {"layernorms": False, "fusion_bias": False}
    if kind == "eagle":
        del state["embed_tokens.weight"]  # the target's
        state = {
            name.replace("layers.0.", "transformer.").replace("fc.", "fusion_fc."): part for name, part in state.items()
        }
    else:
        own = {"draft_vocab_size": KEPT, "norm_before_residual": False}
    verifier = {"name_or_path": "owner/target", "architectures": ["LlamaForCausalLM"]}
    told = {
        "speculators_model_type": kind, "speculators_config": {"algorithm": kind, "verifier": verifier},
        "transformer_layer_config": layer, "architectures": [f"{kind.capitalize()}Speculator"],
    }  # fmt: skip
    return told | own | more, state


def hydra(prefix: bool = False, heads: int = 3, blocks: int = 1) -> tuple[dict[str, Any], State]:
    """Hydra's layout, with the layer before the heads of Hydra++ or without."""
    torch.manual_seed(7)
    state: State = {}
    step = 2 if prefix else 1
    for head in range(heads):
        for block in range(blocks):
            reads = (head + 2) * WIDTH if block == 0 else WIDTH
            for name in ("linear", "res_connection")[: 2 if block == 0 else 1]:
                own = f"hydra_mlp.{head}.{step * block + step - 1}.{name}"
                state |= {f"{own}.weight": torch.randn(WIDTH, reads) * 0.3, f"{own}.bias": torch.randn(WIDTH)}
        own = f"hydra_lm_head.{head}" + (".1" if prefix else "")
        state |= {f"{own}.weight": torch.randn(ROWS, WIDTH), f"{own}.bias": torch.randn(ROWS)}
    if prefix:
        of = "prefix_embeding_layer"
        state |= weights(WIDTH, f"{of}.layers.0", hidden=2 * WIDTH)
        state |= {f"{of}.{name}.weight": torch.rand(WIDTH) + 0.5 for name in ("norm", "layers.0.input_layernorm")}
        state[f"{of}.embed_tokens.weight"] = torch.randn(ROWS, WIDTH)  # never read
    told = {
        "hydra_num_heads": heads, "hydra_num_layers": blocks, "hydra_head_arch": "prefix-mlp" if prefix else "mlp",
        "grounded_heads": True, "hidden_state_offset": 0, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
    }  # fmt: skip
    return told, state


def hydra_drafted(told: dict[str, Any], w: State, network: Any, tokens: list[int]) -> list[Tensor]:
    """Logits [V] of as many tokens after `tokens` as there are heads, drafted greedily."""
    with torch.no_grad():
        states = network(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0, :-1]
        is_prefixed = told["hydra_head_arch"] == "prefix-mlp"
        if is_prefixed:
            of = "prefix_embeding_layer."
            own = {name.removeprefix(of).removeprefix("layers.0."): part for name, part in w.items()}
            like = {"num_attention_heads": HEADS, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
            states = _decoded(like, own, states, _norm(states, own["input_layernorm.weight"], like))
            states = _norm(states, own["norm.weight"], like)
        text, rows, step = tokens[-1:], list[Tensor](), 2 if is_prefixed else 1
        for head in range(told["hydra_num_heads"]):
            x = torch.cat([states[-1], *network.get_input_embeddings().weight[torch.tensor(text)]])
            for block in range(told["hydra_num_layers"]):
                at = f"hydra_mlp.{head}.{step * block + step - 1}"
                kept = x if block else w[f"{at}.res_connection.weight"] @ x + w[f"{at}.res_connection.bias"]
                x = kept + F.silu(w[f"{at}.linear.weight"] @ x + w[f"{at}.linear.bias"])
            at = f"hydra_lm_head.{head}" + (".1" if is_prefixed else "")
            rows.append(w[f"{at}.weight"] @ x + w[f"{at}.bias"])
            text.append(int(rows[-1][:SIZE].argmax()))
    return rows


def write(folder: Path, told: dict[str, Any], state: State, file: str = "model.safetensors") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(told))
    if file.endswith((".bin", ".pt")):
        torch.save(state, folder / file)
    else:
        save_file(state, folder / file)
    return folder


def drafted(
    told: dict[str, Any], state: State, network: Any, taps: tuple[int, ...], tokens: list[int], count: int
) -> list[Tensor]:
    """Logits [V] of `count` tokens drafted greedily after `tokens`: everything is computed anew for each."""
    told = told.get("transformer_layer_config", {}) | told
    w = {re.sub(r"^(midlayer|layers\.0|transformer|fusion_fc)\.", _bare, name): part for name, part in state.items()}
    with torch.no_grad():
        hidden = network(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        table = w.get("embed_tokens.weight", network.get_input_embeddings().weight)
        states = hidden[-1][0]
        if taps:
            states = _fused(told, w, torch.cat([hidden[tap][0] for tap in taps], -1))
        states, rows = states[:-1], list[Tensor]()
        text = tokens[1:]
        while len(rows) < count:
            out = _layer(told, w, states, table[torch.tensor(text)], bool(taps))
            if taps:
                normal = _norm(out[-1], w["norm.weight"], told)
                row = _row(w, normal)
            else:
                row = network.get_output_embeddings().weight @ out[-1]
            rows.append(row)
            fed_back = normal if told.get("norm_output") else out[-1]
            states, text = torch.cat([states, fed_back[None]]), [*text, int(row[:SIZE].argmax())]
    return rows


def drafted_at_once(
    told: dict[str, Any], state: State, network: Any, taps: tuple[int, ...], tokens: list[int], count: int
) -> list[Tensor]:
    """Logits [V] of `count` tokens after `tokens`, from one pass of P-EAGLE's layers over all entries."""
    mask = told.get("mask_token_id", told.get("ptd_token_id"))
    told = told.get("transformer_layer_config", {}) | told
    w = {name.removeprefix("layers.0."): part for name, part in state.items()}
    with torch.no_grad():
        hidden = network(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        table = w.get("embed_tokens.weight", network.get_input_embeddings().weight)
        unknown = w["mask_hidden"][0].expand(count - 1, -1)
        states = _fused(told, w, torch.cat([torch.cat([hidden[tap][0, :-1] for tap in taps], -1), unknown]))
        out = _layer(told, w, states, table[torch.tensor([*tokens[1:], *[mask] * (count - 1)])], True)
        for layer in range(1, told["num_hidden_layers"]):
            own = {name.removeprefix(f"layers.{layer}."): part for name, part in state.items()}
            out = _decoded(told, own, out, _norm(out, own["input_layernorm.weight"], told))
        return [_row(w, normal) for normal in _norm(out[-count:], w["norm.weight"], told)]


def _fused(told: dict[str, Any], w: State, joint: Tensor) -> Tensor:
    """States of EAGLE-3's taps as its layer's input."""
    if told.get("fc_norm"):
        parts = joint.chunk(joint.shape[-1] // WIDTH, -1)
        joint = torch.cat([_norm(part, w[f"fc_norm.{place}.weight"], told) for place, part in enumerate(parts)], -1)
    joint = _norm(joint, w["input_norm.weight"], told) if told.get("norm_before_fc") else joint
    return F.linear(joint, w["fc.weight"])


def _row(w: State, normal: Tensor) -> Tensor:
    """Logits of the target's tokens, of which the draft vocabulary has some."""
    row = torch.full((ROWS,), -torch.inf)
    row[torch.arange(len(w["d2t"])) + w["d2t"]] = F.linear(normal, w["lm_head.weight"])
    return row


def _bare(prefix: re.Match[str]) -> str:
    return "fc." if prefix[1] == "fusion_fc" else ""


def _layer(told: dict[str, Any], w: State, states: Tensor, embedded: Tensor, is_third: bool) -> Tensor:
    """The layer over all entries: the first of `states` are the target's, those after them its own."""
    if is_third:
        normal = _norm(states, w["hidden_norm.weight"], told)
        stream = normal if told.get("norm_before_residual") else states
        into = torch.cat([_norm(embedded, w["input_layernorm.weight"], told), normal], -1)
    else:
        stream = into = F.linear(torch.cat([embedded, states], -1), w["fc.weight"], w.get("fc.bias"))
    return _decoded(told, w, stream, into)


def _decoded(told: dict[str, Any], w: State, stream: Tensor, into: Tensor) -> Tensor:
    """A decoder layer over all entries, whose attention reads `into`."""
    q, k, v = (
        F.linear(into, w[f"self_attn.{name}_proj.weight"], w.get(f"self_attn.{name}_proj.bias")) for name in "qkv"
    )
    heads, size = told["num_attention_heads"], len(stream)
    q, k, v = (part.view(size, -1, q.shape[1] // heads) for part in (q, k, v))
    if "self_attn.q_norm.weight" in w:
        q, k = _norm(q, w["self_attn.q_norm.weight"], told), _norm(k, w["self_attn.k_norm.weight"], told)
    mixed = []
    for head in range(heads):
        of = head // (heads // k.shape[1])
        scores = _turned(q[:, head], told) @ _turned(k[:, of], told).T * q.shape[2] ** -0.5
        seen = torch.ones(size, size, dtype=torch.bool).tril()
        mixed.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v[:, of])
    stream = stream + F.linear(torch.cat(mixed, -1), w["self_attn.o_proj.weight"])
    inner = _norm(stream, w["post_attention_layernorm.weight"], told)
    gate = F.silu(F.linear(inner, w["mlp.gate_proj.weight"])) * F.linear(inner, w["mlp.up_proj.weight"])
    return stream + F.linear(gate, w["mlp.down_proj.weight"])


def _norm(states: Tensor, weight: Tensor, told: dict[str, Any]) -> Tensor:
    return states * (states.square().mean(-1, keepdim=True) + told["rms_norm_eps"]) ** -0.5 * weight


def _turned(states: Tensor, told: dict[str, Any]) -> Tensor:
    """Channel i and the channel half a head after it are one complex number, turned by its position."""
    half = states.shape[1] // 2
    speed = told["rope_theta"] ** (-torch.arange(half) / half)
    scaling = told.get("rope_scaling") or {}
    if scaling.get("rope_type") == "linear":
        speed = speed / scaling["factor"]
    if scaling.get("rope_type") == "llama3":  # slow channels by the factor, fast ones not, and those between in part
        turns = scaling["original_max_position_embeddings"] * speed / (2 * torch.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        part = ((turns - low) / (high - low)).clamp(0, 1)
        speed = part * speed + (1 - part) * speed / scaling["factor"]
    angles = torch.arange(len(states))[:, None] * speed
    turned = torch.complex(states[:, :half], states[:, half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1)
