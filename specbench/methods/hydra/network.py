"""Hydra's heads over a frozen network's last states, and Hydra++'s layer before them.

Ankner et al. 2024, arXiv 2402.05109: head k also reads the embeddings of the k tokens between the state and the token
that it predicts, so that its distribution depends on the candidate. In Hydra++ (`hydra_head_arch: prefix-mlp`) the
state is what one decoder layer more makes of the target's last states of the whole text (`prefix_embeding_layer`).

The authors publish `config.json` and `hydra_lm_head.pt` (github.com/zankner/Hydra): head J reads the state and the
embeddings of the J tokens after it, side by side: A x + SiLU(W x + b), then residual blocks, then an output layer.

Shapes: K heads, N positions, L tokens, C tokens so far, D the target's width, J tokens that a head reads, M numbers
that an embedding is narrowed to, V the target's logits, H query heads, E channels of a head.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.engine.beside.declared import Attend
from specbench.engine.weights.published_checkpoint import CONFIG, read_config
from specbench.errors import UserError, first_line
from specbench.methods.blockwise.draft import in_units
from specbench.methods.decoder_layer import DraftLayer, LayerShape, Norm, layer_shape, rotation
from specbench.methods.heads import Project, TrainedHeads, published_heads
from specbench.methods.medusa.draft import LowRank


class HydraHeads(TrainedHeads):
    """Heads that also see the tokens before the token that they predict: head k the last k of them."""

    KIND, RECIPE, SHAPE = "hydra", "hydra", ("heads", "width", "narrow", "rank", "vocabulary")
    prefix = None  # published heads may have a layer before them

    def __init__(self, heads: int, width: int, narrow: int, rank: int, vocabulary: int) -> None:
        super().__init__()
        self.heads, self.width, self.narrow, self.rank, self.vocabulary = heads, width, narrow, rank, vocabulary
        self.narrow_DM = nn.Parameter(torch.randn(width, narrow) * width**-0.5)
        self.weight_KDD = nn.Parameter(torch.zeros(heads, width, width))
        self.bias_KD = nn.Parameter(torch.zeros(heads, width))
        read = [(head + 1) * narrow for head in range(heads)]
        self.gates = nn.ParameterList(nn.Parameter(torch.zeros(numbers, width)) for numbers in read)
        self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(numbers, width)) for numbers in read)
        self.output = LowRank(heads, width, rank, vocabulary)

    def narrowed(self, embeddings: Tensor) -> Tensor:
        """Embeddings [..., D] of tokens as the heads read them, [..., M]."""
        units = F.rms_norm(embeddings.to(self.narrow_DM.dtype), (self.width,))
        return F.linear(units, self.narrow_DM.t())

    def logits(self, states_ND: Tensor, read_NJM: Tensor, project: Project) -> Tensor:
        """[N, V] of head J, from the J tokens after each state, narrowed."""
        head = read_NJM.shape[1] - 1
        size_N1, units_ND = in_units(states_ND)
        read_NE = read_NJM.flatten(1)
        gate_ND = F.linear(units_ND, self.weight_KDD[head].t(), self.bias_KD[head])
        gate_ND = gate_ND + F.linear(read_NE, self.gates[head].t())
        units_ND = units_ND + F.linear(read_NE, self.shifts[head].t()) + F.silu(gate_ND)
        more_NV: Tensor = self.output(units_ND, head)
        return project(size_N1 * units_ND) + more_NV


class PrefixLayer(nn.Module):
    """A whole decoder layer with the norms before and after it."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.shape = shape
        self.input_layernorm, self.norm = Norm(shape), Norm(shape)
        self.layer = DraftLayer(shape, shape.width)

    def forward(self, states_BLD: Tensor, positions_BL: Tensor, attend: Attend) -> Tensor:
        out_BLD: Tensor = self.layer(states_BLD, self.input_layernorm(states_BLD), positions_BL, attend, None)
        return self.norm(out_BLD)  # type: ignore[no-any-return]


WEIGHTS = ("hydra_lm_head.safetensors", "hydra_lm_head.pt")
ARCHITECTURES = ("mlp", "prefix-mlp")
BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(linear|res_connection)\.(weight|bias)")
OUTPUT = re.compile(r"hydra_lm_head\.(\d+)\.(?:1\.)?(weight|bias)")
PREFIX = re.compile(r"prefix_embeding_layer\.(?:layers\.0\.)?(.+)")
UNUSED = re.compile(r".*rotary_emb\.inv_freq|prefix_embeding_layer\.embed_tokens\.weight")


class Block(nn.Module):
    """x + SiLU(W x + b), or A x + c instead of x if the block narrows."""

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
        self.later, self.prefix = heads, prefix
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
        return 2.0 * sum(weight.numel() for weight in self.parameters()) / self.later

    def logits(self, states_ND: Tensor, read_NJD: Tensor, project: Project) -> Tensor:
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

        Raises UserError if they are damaged or fit another target.
        """
        projection = network.get_output_embeddings().weight
        rows, width = projection.shape
        state, named = self._state(projection.device)
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
                theirs = self._their_name(name, named)
                raise UserError(
                    f"{self.key}: {theirs} of {self.source} is {found}; this target needs {list(tensor.shape)}"
                )
        if left := sorted(state.keys() - heads.state_dict().keys()):
            theirs = self._their_name(left[0], named)
            raise UserError(f"{self.key}: {self.source} has a tensor {theirs}; its {CONFIG} says {self.heads} heads")
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

    def _state(self, device: torch.device) -> tuple[dict[str, Tensor], list[str]]:
        """The state dict with this package's parameter names, on `device`, and the names in the file."""
        file, mapped = published_heads(self.source, self.pinned, WEIGHTS, device, self.key)
        state = {}
        for name, tensor in mapped.items():
            if UNUSED.fullmatch(name):
                continue
            if found := BLOCK.fullmatch(name):
                state[f"blocks.{found[1]}.{int(found[2]) // self.step}.{found[3]}.{found[4]}"] = tensor
            elif found := OUTPUT.fullmatch(name):
                state[f"outputs.{found[1]}.{found[2]}"] = tensor
            elif self.has_prefix and (found := PREFIX.fullmatch(name)):
                own = found[1] if found[1].startswith(("input_layernorm.", "norm.")) else f"layer.{found[1]}"
                state[f"prefix.{own}"] = tensor
            else:
                raise UserError(f"{self.key}: {file} of {self.source} has a tensor {name}, which is not Hydra's")
        return state, list(mapped)

    @property
    def step(self) -> int:
        """How far apart blocks are numbered: with a prefix a dropout without weights stands before each."""
        return 2 if self.has_prefix else 1

    def _their_name(self, ours: str, named: Sequence[str]) -> str:
        """The name of a tensor in a file with these names: what `_state` makes `ours` of."""
        kind, _, rest = ours.partition(".")
        if kind == "blocks":
            head, place, rest = rest.split(".", 2)
            return f"hydra_mlp.{head}.{int(place) * self.step + self.step - 1}.{rest}"
        if kind == "outputs":
            head, _, rest = rest.partition(".")
            nested = any(re.fullmatch(r"hydra_lm_head\.\d+\.1\..+", name) for name in named)
            return f"hydra_lm_head.{head}.{'1.' if nested else ''}{rest}"
        of = "prefix_embeding_layer."
        if not rest.startswith("norm.") and any(name.startswith(f"{of}layers.0.") for name in named):
            of += "layers.0."
        return of + rest.removeprefix("layer.")


def published_hydra(source: str, pinned: Mapping[str, Any], key: str) -> HydraCheckpoint | None:
    """The config of published heads; None if `source` has no such config.

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
