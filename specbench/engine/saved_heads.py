"""Heads and look-ahead embeddings as files: their weights, their shape, and the target that they were trained on.

Shapes: B rows, T tokens, L look-ahead positions, D width of the embeddings.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from specbench import border
from specbench.border import Unreadable
from specbench.config.recipes import training_command
from specbench.errors import UserError, first_line

WEIGHTS, FACTS = "heads.safetensors", "config.json"
SAMPLED_TENSORS, SAMPLED_VALUES = 16, 4
Facts = dict[str, Any]  # of a folder of weights, from its JSON: shape, `target`, `fingerprint`
NEAR = 0.01  # two roundings of one weight are nearer than this, two trainings are not


class SavedHeads(nn.Module):
    """Heads that are saved with the name and the fingerprint of their target.

    Arguments of the constructor are JSON values, and attributes of the same names.
    """

    KIND: ClassVar[str]  # as `draft=` has it
    RECIPE: ClassVar[str]  # makes such heads
    SHAPE: ClassVar[tuple[str, ...]]  # the constructor's arguments
    CALLED: ClassVar[str] = "heads"
    FILE: ClassVar[str] = WEIGHTS

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def save(self, folder: Path, target: str, prints: list[float]) -> None:
        """Write the weights, and what `target` is."""
        weights = {name: weight.detach().cpu().contiguous() for name, weight in self.state_dict().items()}
        save_file(weights, folder / self.FILE)
        (folder / self.FILE).chmod(0o644)  # safetensors keeps it from others
        text = json.dumps(self.described() | {"target": target, "fingerprint": prints}, indent=1)
        (folder / FACTS).write_text(text + "\n", encoding="utf-8")

    def described(self) -> Facts:
        """The facts of their kind and shape."""
        return {"kind": self.KIND, **{name: getattr(self, name) for name in self.SHAPE}}

    @classmethod
    def shape_of(cls, facts: Facts) -> tuple[Any, ...]:
        """The arguments of the constructor. Raises KeyError, TypeError or ValueError for facts of another kind."""
        if facts["kind"] != cls.KIND:
            raise ValueError(facts["kind"])
        return tuple(facts[name] for name in cls.SHAPE)

    @classmethod
    def recipe_of(cls, facts: Facts) -> str:
        """The recipe that makes such heads."""
        return cls.RECIPE

    @classmethod
    def facts(cls, folder: Path, key: str, recipe: str | None = None) -> Facts:
        """The facts of the heads in `folder`: their shape, `target` and `fingerprint`.

        Raises UserError if it has no heads of this kind; the message names `recipe`, or `RECIPE`.
        """
        try:
            content = border.read_bytes(folder / FACTS) if (folder / FACTS).is_file() else b"{}"
            facts: Facts = border.parse(content, Facts)
        except Unreadable as error:
            raise UserError(f"{key}.path={folder}: {FACTS} is damaged: {first_line(error)}") from error
        try:
            cls.shape_of(facts)
            if (folder / cls.FILE).is_file() and facts.keys() >= {"target", "fingerprint"}:
                return facts
        except (ValueError, TypeError, KeyError, AttributeError):
            pass
        raise UserError(
            f"{key}.path={folder}: no {cls.KIND} {cls.CALLED} are in this folder ({FACTS}, {cls.FILE}); "
            f"make them with {training_command(recipe or cls.RECIPE)}"
        )

    @classmethod
    def made(cls, facts: Facts, network: Any) -> Self:
        """Heads of the shape in `facts` for `network`, with new weights."""
        return cls(*cls.shape_of(facts))

    @classmethod
    def load(cls, folder: Path, network: Any, key: str) -> Self:
        """The heads in `folder`, ready for `network`. Raises UserError if they belong to another."""
        facts = cls.facts(folder, key)
        if not same_weights(fingerprint(network), facts["fingerprint"]):
            raise UserError(
                f"{key}: the {cls.CALLED} in {folder.name} were trained on {facts['target']}, and this target's "
                f"weights are others; train some: {training_command(cls.recipe_of(facts))}, and give "
                f"{key}.path=FOLDER"
            )
        try:
            heads = cls.made(facts, network)
            heads.load_state_dict(load_file(folder / cls.FILE))
        except Exception as error:  # SafetensorError, RuntimeError, TypeError: whatever is damaged
            raise UserError(f"{key}: the {cls.CALLED} in {folder} cannot be loaded: {reason(error)}") from error
        weight = network.get_output_embeddings().weight
        return heads.to(weight.device, weight.dtype).eval().requires_grad_(False)


def reason(error: Exception) -> str:
    """An error of `load_state_dict` on one line, which names the tensors that do not fit."""
    return " ".join((str(error).strip() or type(error).__name__).split())[:300]


def same_weights(ours: list[float], theirs: list[float]) -> bool:
    """Whether two fingerprints are of one network, except for rounding."""
    if len(ours) != len(theirs):
        return False
    return all(abs(a - b) <= NEAR * max(abs(a), abs(b)) + 1e-6 for a, b in zip(ours, theirs, strict=True))


def fingerprint(network: Any) -> list[float]:
    """A few weights of a few tensors, which identify a training and are the same in every dtype up to rounding.

    It takes no time and reads no file, whatever the network's size.
    """
    tensors = [weight for _, weight in sorted(network.named_parameters())]
    picked = []
    for tensor in tensors[:: max(1, len(tensors) // SAMPLED_TENSORS)]:
        places = [at * (tensor.numel() - 1) // (SAMPLED_VALUES - 1) for at in range(SAMPLED_VALUES)]
        picked += tensor.detach().flatten()[places].float().tolist()
    return picked


Positions = Mapping[Path, range]  # the ids of the look-ahead positions whose embeddings are from each folder


class LookAheadEmbeddings(SavedHeads):
    """Learned inputs of a network for `number` tokens not known yet: number j is read j positions after the last known.

    Monea et al. 2023, "PaSS: Parallel Speculative Sampling". They are tokens with ids after the network's own
    embeddings, so that every engine supports them in every layout without changes.
    """

    KIND = "pass"
    RECIPE = "pass"
    SHAPE = ("number", "width")
    CALLED = "look-ahead embeddings"

    def __init__(self, number: int, width: int) -> None:
        super().__init__()
        self.number, self.width = number, width
        self.weight_LD = nn.Parameter(torch.zeros(number, width))

    def start_as(self, table_VD: Tensor) -> None:
        """Start as the mean of the network's own embeddings, each with noise of their spread."""
        table_VD = table_VD.detach().float()
        with torch.no_grad():
            self.weight_LD.copy_(table_VD.mean(0) + torch.randn(self.number, self.width) * table_VD.std(0))


class ExtendedEmbedding(nn.Module):
    """`embedding`, followed by the rows of `more_LD`."""

    more_LD: Tensor

    def __init__(self, embedding: Any, more_LD: Tensor) -> None:
        super().__init__()
        self.embedding = embedding
        # No parameter of the network: its fingerprint does not depend on which drafts read it.
        self.register_buffer("more_LD", more_LD, persistent=False)

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.embedding.weight
        return weight

    def forward(self, ids_BT: Tensor) -> Tensor:
        own_BTD = self.embedding(ids_BT.clamp(max=self.weight.shape[0] - 1))
        ahead_BT = ids_BT - self.weight.shape[0]
        more_BTD = F.embedding(ahead_BT.clamp(min=0), self.more_LD).to(own_BTD.dtype)
        return torch.where((ahead_BT >= 0).unsqueeze(-1), more_BTD, own_BTD)


def extend(network: Any, more_LD: Tensor) -> range:
    """Add `more_LD` to the decoder's embeddings of `network`, and return their ids."""
    decoder = network.get_decoder()
    embedding = decoder.get_input_embeddings()
    first: int = embedding.weight.shape[0]
    decoder.set_input_embeddings(ExtendedEmbedding(embedding, more_LD))
    return range(first, first + len(more_LD))


def readable_tokens(network: Any) -> int:
    """How many ids the decoder of `network` has embeddings for, including look-ahead positions."""
    embedding = network.get_decoder().get_input_embeddings()
    further = embedding.more_LD if isinstance(embedding, ExtendedEmbedding) else ()
    return int(embedding.weight.shape[0]) + len(further)


def read_lookahead_embeddings(network: Any, folders: Sequence[Path], key: str) -> Positions:
    """Have `network` read the look-ahead embeddings in each of `folders`, and return the ids that stand for them.

    Raises UserError if they belong to another network, or cannot be loaded.
    """
    loaded = [LookAheadEmbeddings.load(folder, network, key) for folder in folders]
    if not loaded:
        return {}
    first = extend(network, torch.cat([one.weight_LD for one in loaded])).start
    positions = {}
    for folder, one in zip(folders, loaded, strict=True):
        positions[folder] = range(first, first + one.number)
        first += one.number
    return positions
