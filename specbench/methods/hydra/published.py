"""Hydra's heads as its authors publish them (Ankner et al. 2024): `config.json` and `hydra_lm_head.pt`.

Head J reads the state and the embeddings of the J tokens after it, side by side: A x + SiLU(W x + b), then residual
blocks, then an output layer of its own. In Hydra++ (`hydra_head_arch: prefix-mlp`) the state is what one decoder layer
more makes of the target's last states of the whole text (`prefix_embeding_layer`). Code: github.com/zankner/Hydra.

Shapes: N positions, D the target's width, J tokens that a head reads, V its logits.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.engine.weights.files import CONFIG, find_file, read_config, read_tensors
from specbench.errors import UserError, first_line
from specbench.methods.decoder_layer import layer_shape, rotation
from specbench.methods.hydra.network import PrefixLayer

WEIGHTS = ("hydra_lm_head.safetensors", "hydra_lm_head.pt")
ARCHITECTURES = ("mlp", "prefix-mlp")
BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(linear|res_connection)\.(weight|bias)")
OUTPUT = re.compile(r"hydra_lm_head\.(\d+)\.(?:1\.)?(weight|bias)")
PREFIX = re.compile(r"prefix_embeding_layer\.(?:layers\.0\.)?(.+)")
UNUSED = re.compile(r".*rotary_emb\.inv_freq|prefix_embeding_layer\.embed_tokens\.weight")


class Block(nn.Module):
    """x + SiLU(W x + b), or A x + c instead of x where the block narrows."""

    def __init__(self, reads: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(reads, width)
        self.res_connection = nn.Linear(reads, width) if reads != width else nn.Identity()

    def forward(self, read: Tensor) -> Tensor:
        kept: Tensor = self.res_connection(read)
        return kept + F.silu(self.linear(read))


class PublishedHydra(nn.Module):
    """All heads of a checkpoint, and the layer before them, if it has such a layer."""

    def __init__(self, heads: int, blocks: int, width: int, rows: int, prefix: PrefixLayer | None) -> None:
        super().__init__()
        self.heads, self.prefix = heads, prefix
        self.blocks = nn.ModuleList(
            nn.Sequential(*(Block((head + 2) * width if place == 0 else width, width) for place in range(blocks)))
            for head in range(heads)
        )
        self.outputs = nn.ModuleList(nn.Linear(width, rows) for _ in range(heads))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def operations(self, rows: int) -> float:
        """Arithmetic operations of one head at one position: the mean of the heads, with its share of the prefix."""
        return 2.0 * sum(weight.numel() for weight in self.parameters()) / self.heads

    def narrowed(self, embeddings: Tensor) -> Tensor:
        """Embeddings [..., D] as the heads read them: whole."""
        return embeddings

    def logits(self, states_ND: Tensor, read_NJD: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
        """[N, V] of head J, from the J tokens after each state."""
        head = read_NJD.shape[1] - 1
        logits: Tensor = self.outputs[head](self.blocks[head](torch.cat([states_ND, read_NJD.flatten(1)], -1)))
        return logits


@dataclass(frozen=True)
class HydraCheckpoint:
    """The config of a checkpoint; `source`, `pinned` and `key` as in `PublishedEagle`."""

    source: str
    pinned: Mapping[str, Any]
    key: str
    heads: int
    has_prefix: bool

    def load(self, network: Any) -> PublishedHydra:
        """The heads, ready for `network`.

        Raises UserError where they are damaged or fit another target.
        """
        projection = network.get_output_embeddings().weight
        rows, width = projection.shape
        state = self._state(projection.device)
        if (first := state.get("blocks.0.0.linear.weight")) is not None and len(first) != width:
            raise UserError(
                f"{self.key}: the heads in {self.source} are for a target of width {len(first)}, not {width}"
            )
        blocks = 1 + max((int(name.split(".")[2]) for name in state if name.startswith("blocks.")), default=0)
        prefix = self._prefix(network) if self.has_prefix else None
        heads = PublishedHydra(self.heads, blocks, width, rows, prefix)
        for name, tensor in heads.state_dict().items():
            if name not in state or state[name].shape != tensor.shape:
                found = list(state[name].shape) if name in state else "missing"
                raise UserError(
                    f"{self.key}: {name} of {self.source} is {found}; this target needs {list(tensor.shape)}"
                )
        if left := sorted(state.keys() - heads.state_dict().keys()):
            raise UserError(f"{self.key}: {self.source} has a tensor {left[0]}; its {CONFIG} says {self.heads} heads")
        heads.load_state_dict(state)
        return heads.to(projection.device, projection.dtype).eval().requires_grad_(False)

    def _prefix(self, network: Any) -> PrefixLayer:
        """A decoder layer of the target's own shape."""
        shape = layer_shape(network, self.key)
        try:
            theta, angles = rotation(network.config)
        except (AttributeError, ValueError) as error:
            raise UserError(
                f"{self.key}: the heads in {self.source} have a layer with this target's rotary positions, which are "
                f"not supported: {first_line(error)}"
            ) from error
        return PrefixLayer(replace(shape, theta=theta, angles=angles))

    def _state(self, device: torch.device) -> dict[str, Tensor]:
        """The state dict with this package's parameter names, on `device`."""
        files = [file for name in WEIGHTS if (file := find_file(self.source, name, self.pinned, self.key))][:1]
        if not files:
            raise UserError(f"{self.key}: {self.source} has no {' or '.join(WEIGHTS)}")
        mapped = read_tensors(files, self.source, device, self.key)
        step = 2 if self.has_prefix else 1  # there a dropout without weights stands before each block
        state = {}
        for name, tensor in mapped.items():
            if UNUSED.fullmatch(name):
                continue
            if found := BLOCK.fullmatch(name):
                state[f"blocks.{found[1]}.{int(found[2]) // step}.{found[3]}.{found[4]}"] = tensor
            elif found := OUTPUT.fullmatch(name):
                state[f"outputs.{found[1]}.{found[2]}"] = tensor
            elif self.has_prefix and (found := PREFIX.fullmatch(name)):
                own = found[1] if found[1].startswith(("input_layernorm.", "norm.")) else f"layer.{found[1]}"
                state[f"prefix.{own}"] = tensor
            else:
                raise UserError(
                    f"{self.key}: {files[0].name} of {self.source} has a tensor {name}, which is not Hydra's"
                )
        return state


def published_hydra(source: str, pinned: Mapping[str, Any], key: str) -> HydraCheckpoint | None:
    """The config of published heads; None where `source` has no such config.

    Raises UserError for what is not supported.
    """
    config = read_config(source, pinned, key)
    if not isinstance(heads := config.get("hydra_num_heads"), int):
        return None
    supported: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "hydra_head_arch": ("mlp", ARCHITECTURES), "grounded_heads": (False, (True,)), "hidden_state_offset": (0, (0,)),
    }  # fmt: skip
    for name, (default, values) in supported.items():
        if (value := config.get(name, default)) not in values:
            only = " and ".join(map(str, values))
            raise UserError(f"{key}: {CONFIG} of {source}: {name}={value}: only {only} can be read")
    has_prefix = config.get("hydra_head_arch") == "prefix-mlp"
    return HydraCheckpoint(source, pinned, key, heads, has_prefix)
