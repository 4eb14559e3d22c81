"""Medusa's heads as its authors publish them (Cai et al. 2024): `config.json`, `medusa_lm_head.pt` or `.safetensors`.

Tensors are named HEAD.BLOCK.linear.weight [D, D], HEAD.BLOCK.linear.bias [D] and HEAD.LAST.weight [V, D], the output
layer, which the first checkpoints lack: they used the target's own. The heads are counted from these names, because
the config of the published Vicuna heads says 2 where the file has 5. Head 0 predicts the token after the next.

Shapes: N positions, D the target's width, V its logits.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.engine.weights.files import find_file, read_config, read_tensors
from specbench.errors import UserError

WEIGHTS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
NAME = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)")


class PublishedHead(nn.Module):
    """Residual blocks h + SiLU(W h + b), then an output layer, or the target's own where there is none."""

    def __init__(self, blocks: list[tuple[Tensor, Tensor]], output_VD: Tensor | None) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(weight, requires_grad=False) for weight, _ in blocks)
        self.biases = nn.ParameterList(nn.Parameter(bias, requires_grad=False) for _, bias in blocks)
        self.output_VD = None if output_VD is None else nn.Parameter(output_VD, requires_grad=False)

    def logits(self, states_ND: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
        """Logits [N, V] of the head for N states of the target."""
        for weight_DD, bias_D in zip(self.weights, self.biases, strict=True):
            states_ND = states_ND + F.silu(F.linear(states_ND, weight_DD, bias_D))
        return project(states_ND) if self.output_VD is None else F.linear(states_ND, self.output_VD)


class PublishedMedusa(nn.Module):
    """All heads of a checkpoint."""

    def __init__(self, heads: list[PublishedHead], width: int) -> None:
        super().__init__()
        self.all, self.heads, self.width = nn.ModuleList(heads), len(heads), width

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def operations(self, rows: int) -> float:
        """Arithmetic operations of one head at one position; `rows` is how many logits the target's projection has."""
        own = sum(weight.numel() for weight in self.parameters()) / self.heads
        shared = sum(head.output_VD is None for head in self.all) / self.heads
        return 2.0 * (own + shared * rows * self.width)

    def logits(self, states_ND: Tensor, which: slice, project: Callable[[Tensor], Tensor]) -> Tensor:
        """[heads, N, V] of the heads `which`, 0 being that of the token after the next."""
        chosen = cast(list[PublishedHead], list(self.all)[which])
        return torch.stack([head.logits(states_ND, project) for head in chosen])

    @classmethod
    def load(cls, source: str, pinned: Mapping[str, Any], network: Any, key: str) -> Self:
        """The heads in the folder or repository `source`, ready for `network`.

        Raises:
            UserError: they are damaged or fit another network.
        """
        projection = network.get_output_embeddings().weight
        rows, width = projection.shape
        tensors = _tensors(source, pinned, projection.device, key)
        heads = []
        for number in range(max(head for head, _, _ in tensors) + 1):
            blocks, output = list[tuple[Tensor, Tensor]](), None
            while (number, len(blocks), "linear.weight") in tensors:
                place = (number, len(blocks))
                if (*place, "linear.bias") not in tensors:
                    raise UserError(f"{key}: {source} has no tensor {number}.{len(blocks)}.linear.bias")
                blocks.append((tensors[*place, "linear.weight"], tensors[*place, "linear.bias"]))
            output = tensors.get((number, len(blocks), "weight"))
            heads.append(PublishedHead(blocks, output))
            sizes = {size for weight, _ in blocks for size in weight.shape} | {width}
            sizes |= set() if output is None else {output.shape[1]}
            if sizes != {width} or not blocks:
                theirs = ", ".join(map(str, sorted(sizes - {width}))) or "no block"
                raise UserError(f"{key}: the heads in {source} are for a target of width {theirs}; this has {width}")
            if output is not None and len(output) != rows:
                raise UserError(
                    f"{key}: the heads in {source} predict {len(output)} tokens; this target's vocabulary has {rows}"
                )
        return cls(heads, width).to(projection.device, projection.dtype).eval()


def published(source: str, pinned: Mapping[str, Any], key: str) -> str | None:
    """The target that the config of published heads names ('' if none); None if `source` has no such config."""
    config = read_config(source, pinned, key)
    return str(config.get("base_model_name_or_path", "")) if "medusa_num_heads" in config else None


def _tensors(
    source: str, pinned: Mapping[str, Any], device: torch.device, key: str
) -> dict[tuple[int, int, str], Tensor]:
    """The tensors by head, place in the head, and name."""
    files = [file for name in WEIGHTS if (file := find_file(source, name, pinned, key)) is not None][:1]
    if not files:
        raise UserError(f"{key}: {source} has no {' or '.join(WEIGHTS)}")
    found: dict[tuple[int, int, str], Tensor] = {}
    for name, tensor in read_tensors(files, source, device, key).items():
        if (match := NAME.fullmatch(name)) is None:
            raise UserError(f"{key}: {files[0].name} of {source} has a tensor {name}, which Medusa's heads have not")
        found[int(match[1]), int(match[2]), match[3]] = tensor
    if not found:
        raise UserError(f"{key}: {files[0].name} of {source} has no tensors")
    return found
