"""Medusa's heads as a draft, on the target's last state: head k predicts the token k places after the next.

Cai et al. 2024, arXiv 2401.10774: a residual block h + SiLU(W h + b), then an output layer of its own. That would be as
large as the network's for each head; in ours it is the network's, plus a matrix of low rank for each head. Blocks work
in units of each state's size, for T5 scales its states down before a tied head, where h + SiLU(W h) could not be of the
size of h.

The authors publish `config.json` and `medusa_lm_head.pt` or `.safetensors`. Tensors are named HEAD.BLOCK.linear.weight
[D, D], HEAD.BLOCK.linear.bias [D] and HEAD.LAST.weight [V, D], the output layer, which the first checkpoints lack: they
used the target's own. The heads are counted from these names, because the config of the published Vicuna heads says 2
where the file has 5. Head 0 predicts the token after the next.

Shapes: K heads, N positions, D the target's width, V its logits, R the rank, L blocks of a head.
"""

import re
from collections.abc import Mapping
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.algorithm.draft import Draft
from specbench.config.keys import MAX_GAMMA
from specbench.engine.eager.model import EagerModel
from specbench.engine.weights.published_checkpoint import read_config
from specbench.errors import UserError
from specbench.methods.blockwise.draft import in_units
from specbench.methods.build import source_of
from specbench.methods.heads import HeadsBuilder, HeadsDraft, Project, TrainedHeads, published_heads

WEIGHTS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
NAME = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)")


class PublishedHead(nn.Module):
    """Residual blocks h + SiLU(W h + b), then an output layer, or the target's if it has none."""

    def __init__(self, blocks: list[tuple[Tensor, Tensor]], output_VD: Tensor | None) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(weight, requires_grad=False) for weight, _ in blocks)
        self.biases = nn.ParameterList(nn.Parameter(bias, requires_grad=False) for _, bias in blocks)
        self.output_VD = None if output_VD is None else nn.Parameter(output_VD, requires_grad=False)

    def logits(self, states_ND: Tensor, project: Project) -> Tensor:
        """Logits [N, V] of the head for N states of the target."""
        for weight_DD, bias_D in zip(self.weights, self.biases, strict=True):
            states_ND = states_ND + F.silu(F.linear(states_ND, weight_DD, bias_D))
        return project(states_ND) if self.output_VD is None else F.linear(states_ND, self.output_VD)


class PublishedMedusa(nn.Module):
    """All heads of a checkpoint."""

    def __init__(self, heads: list[PublishedHead], width: int) -> None:
        super().__init__()
        self.all, self.later, self.width = nn.ModuleList(heads), len(heads), width

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def operations(self, rows: int) -> float:
        """Arithmetic operations of one head at one position; `rows` is how many logits the target's projection has."""
        own = sum(weight.numel() for weight in self.parameters()) / self.later
        shared = sum(head.output_VD is None for head in self.all) / self.later
        return 2.0 * (own + shared * rows * self.width)

    def logits(self, states_ND: Tensor, which: slice, project: Project) -> Tensor:
        """[heads, N, V] of the heads `which`; head 0 predicts the token after the next."""
        chosen = cast(list[PublishedHead], list(self.all)[which])
        return torch.stack([head.logits(states_ND, project) for head in chosen])

    @classmethod
    def load(cls, source: str, pinned: Mapping[str, Any], network: Any, key: str) -> Self:
        """The heads in the folder or repository `source`, ready for `network`.

        Raises UserError if they are damaged or fit another network.
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


def is_published(source: str, pinned: Mapping[str, Any], key: str) -> bool:
    """Whether `source` has the config of published heads."""
    return "medusa_num_heads" in read_config(source, pinned, key)


def _tensors(
    source: str, pinned: Mapping[str, Any], device: torch.device, key: str
) -> dict[tuple[int, int, str], Tensor]:
    """The tensors by head, place in the head, and name."""
    file, tensors = published_heads(source, pinned, WEIGHTS, device, key)
    found: dict[tuple[int, int, str], Tensor] = {}
    for name, tensor in tensors.items():
        if (match := NAME.fullmatch(name)) is None:
            raise UserError(f"{key}: {file} of {source} has a tensor {name}, which Medusa's heads have not")
        found[int(match[1]), int(match[2]), match[3]] = tensor
    if not found:
        raise UserError(f"{key}: {file} of {source} has no tensors")
    for place in sorted({(block, name) for _, block, name in found}):
        for head in range(max(head for head, _, _ in found) + 1):
            if (head, *place) not in found:
                name = ".".join(map(str, (head, *place)))
                raise UserError(f"{key}: {source} has no tensor {name}, which others of its heads have")
    return found


class LowRank(nn.Module):
    """For each head a matrix of rank R that is added to the network's output projection; zero at first."""

    def __init__(self, heads: int, width: int, rank: int, vocabulary: int) -> None:
        super().__init__()
        self.down_KDR = nn.Parameter(torch.randn(heads, width, rank) * width**-0.5)
        self.up_KRV = nn.Parameter(torch.zeros(heads, rank, vocabulary))

    def forward(self, units_ND: Tensor, head: int) -> Tensor:
        return F.linear(F.linear(units_ND, self.down_KDR[head].t()), self.up_KRV[head].t())


class MedusaHeads(TrainedHeads):
    """Heads that read only the state. They start as copies of the network's own head."""

    KIND, RECIPE, SHAPE = "medusa", "medusa", ("heads", "width", "layers", "rank", "vocabulary")

    def __init__(self, heads: int, width: int, layers: int, rank: int, vocabulary: int) -> None:
        super().__init__()
        self.heads, self.width, self.layers, self.rank, self.vocabulary = heads, width, layers, rank, vocabulary
        self.weight_LKDD = nn.Parameter(torch.zeros(layers, heads, width, width))
        self.bias_LK1D = nn.Parameter(torch.zeros(layers, heads, 1, width))
        self.output = LowRank(heads, width, rank, vocabulary)

    def logits(self, states_ND: Tensor, which: slice, project: Project) -> Tensor:
        """[K, N, V] of the heads `which`, 0 being the head of the token after the next."""
        size_N1, units_ND = in_units(states_ND)
        chosen = range(self.heads)[which]
        each = [self._units(units_ND, head) for head in chosen]
        more = [self.output(units_ND, head) for units_ND, head in zip(each, chosen, strict=True)]
        # Rows of all heads in one matrix: the projection, the largest of all weights, is read once.
        logits = project(size_N1.repeat(len(chosen), 1) * torch.cat(each)) + torch.cat(more)
        return logits.view(len(chosen), states_ND.shape[0], -1)

    def _units(self, units_ND: Tensor, head: int) -> Tensor:
        """The output of head `head` for the state."""
        for layer in range(self.layers):
            gate_ND = F.linear(units_ND, self.weight_LKDD[layer, head].t(), self.bias_LK1D[layer, head, 0])
            units_ND = units_ND + F.silu(gate_ND)
        return units_ND


class MedusaBuilder(HeadsBuilder):
    """Our heads, or a checkpoint in Medusa's own layout, from a folder or the hub."""

    heads = MedusaHeads

    def longest(self) -> int:
        self.source, self.pinned = source_of(self.draft)
        self.is_published = is_published(self.source, self.pinned, self.request.key)
        if self.is_published:
            return MAX_GAMMA  # the weights say how many heads there are
        return super().longest()

    def build_draft(self, target: EagerModel) -> Draft:
        key, network = self.request.key, target.network
        if self.is_published:
            return HeadsDraft(target, PublishedMedusa.load(self.source, self.pinned, network, key))
        return HeadsDraft(target, MedusaHeads.load(self.folder, network, key))
