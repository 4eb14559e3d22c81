"""Blockwise heads: small layers over a frozen network's last states that predict the tokens after the next.

Stern, Shazeer, Uszkoreit 2018, "Blockwise Parallel Decoding for Deep Autoregressive Models": a feed-forward layer for
each head, with a residual connection around it, then the network's own output projection. Head 1 is the network's own
and needs no layer; heads 2 ... k are here.

Shapes: K = k - 1 heads, N positions, D the network's width, H the layer's.
"""

import json
from pathlib import Path
from typing import Any, TypedDict

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from specbench.errors import UserError, first_line

WEIGHTS, FACTS = "heads.safetensors", "config.json"
SAMPLED_TENSORS, SAMPLED_VALUES = 16, 4
NEAR = 0.01  # two roundings of one weight are nearer than this, two trainings are not


class Heads(nn.Module):
    """Heads 2 ... k. They start as copies of head 1: the layer's second half is zero."""

    def __init__(self, heads: int, width: int, hidden: int) -> None:
        """`heads` is k, with the network's own."""
        super().__init__()
        self.heads, self.width, self.hidden = heads, width, hidden
        self.into_KDH = nn.Parameter(torch.randn(heads - 1, width, hidden) * width**-0.5)
        self.into_bias_K1H = nn.Parameter(torch.zeros(heads - 1, 1, hidden))
        self.out_KHD = nn.Parameter(torch.zeros(heads - 1, hidden, width))
        self.out_bias_K1D = nn.Parameter(torch.zeros(heads - 1, 1, width))

    def forward(self, states_ND: Tensor, which: slice = slice(None)) -> Tensor:
        """[K, N, D]: what the output projection reads for the heads `which`, 0 being head 2.

        The layer works in units of each state's size: T5 scales its states down before a tied head.
        """
        size_N1 = states_ND.float().pow(2).mean(-1, keepdim=True).sqrt().to(states_ND.dtype)
        units_ND = F.rms_norm(states_ND, (self.width,))
        inner_KNH = F.relu(units_ND @ self.into_KDH[which] + self.into_bias_K1H[which])
        return states_ND + size_N1 * (inner_KNH @ self.out_KHD[which] + self.out_bias_K1D[which])

    def save(self, folder: Path, target: str, prints: list[float]) -> None:
        """Save the weights with the name and the fingerprint of their target."""
        facts = {"heads": self.heads, "width": self.width, "hidden": self.hidden}
        save_file(
            {name: weight.detach().cpu().contiguous() for name, weight in self.state_dict().items()}, folder / WEIGHTS
        )
        (folder / WEIGHTS).chmod(0o644)  # safetensors keeps it from others
        text = json.dumps(facts | {"target": target, "fingerprint": prints}, indent=1)
        (folder / FACTS).write_text(text + "\n", encoding="utf-8")


class HeadFacts(TypedDict):
    """What a folder says of its heads: their shape, and the target that they were trained on."""

    heads: int
    width: int
    hidden: int
    target: str
    fingerprint: list[float]


def read_facts(folder: Path, key: str) -> HeadFacts:
    """What `folder` says its heads are. Raises UserError where it has none."""
    try:
        facts: HeadFacts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        if (folder / WEIGHTS).is_file() and facts.keys() >= {"heads", "width", "hidden", "target", "fingerprint"}:
            return facts
    except (OSError, ValueError):
        pass
    raise UserError(
        f"{key}.path={folder}: no heads are in this folder ({FACTS}, {WEIGHTS}); "
        "make them with specbench train recipe=blockwise distill.target=TARGET"
    )


def load_heads(folder: Path, network: Any, key: str) -> Heads:
    """The heads in `folder`, ready for `network`. Raises UserError where they belong to another."""
    facts = read_facts(folder, key)
    if not _same(fingerprint(network), facts["fingerprint"]):
        raise UserError(
            f"{key}: the heads in {folder.name} were trained on {facts['target']}, and this target's weights are "
            f"others; train some: specbench train recipe=blockwise distill.target=TARGET, and give {key}.path=FOLDER"
        )
    try:
        heads = Heads(facts["heads"], facts["width"], facts["hidden"])
        heads.load_state_dict(load_file(folder / WEIGHTS))
    except Exception as error:  # SafetensorError, RuntimeError, TypeError: whatever is damaged
        raise UserError(f"{key}: the heads in {folder} cannot be loaded: {first_line(error)}") from error
    weight = network.get_output_embeddings().weight
    return heads.to(weight.device, weight.dtype).eval().requires_grad_(False)


def _same(ours: list[float], theirs: list[float]) -> bool:
    if len(ours) != len(theirs):
        return False
    return all(abs(a - b) <= NEAR * max(abs(a), abs(b)) + 1e-6 for a, b in zip(ours, theirs, strict=True))


def fingerprint(network: Any) -> list[float]:
    """A few weights of a few tensors: enough to tell two trainings apart, and the same in every dtype but for rounding.

    It takes no time and reads no file, whatever the network's size.
    """
    tensors = [weight for _, weight in sorted(network.named_parameters())]
    picked = []
    for tensor in tensors[:: max(1, len(tensors) // SAMPLED_TENSORS)]:
        places = [at * (tensor.numel() - 1) // (SAMPLED_VALUES - 1) for at in range(SAMPLED_VALUES)]
        picked += tensor.detach().flatten()[places].float().tolist()
    return picked
