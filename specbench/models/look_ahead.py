"""Look-ahead embeddings: learned inputs of a network for tokens that are not known yet.

Source: Monea et al. 2023, "PaSS: Parallel Speculative Sampling". They are tokens with ids after those of the network's
own embeddings, so that every engine supports them in every layout without changes.

Shapes: B rows, T tokens, L look-ahead positions, D width of the embeddings.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.models.saved_heads import SavedHeads

Positions = Mapping[Path, range]  # the ids of the look-ahead positions whose embeddings are from each folder


class LookAheadEmbeddings(SavedHeads):
    """`number` embeddings: number j is read j positions after the last token that is known."""

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
    """`embedding`, and after its rows those of `more_LD`."""

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


def read_look_ahead(network: Any, folders: Sequence[Path], key: str) -> Positions:
    """Have `network` read the look-ahead embeddings in each of `folders`, and return the ids that stand for them.

    Raises:
        UserError: they belong to another network, or cannot be loaded.
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
