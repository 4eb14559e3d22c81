"""P-EAGLE's layers over the entries of one text: those with the target's features, and masked ones after them.

Shapes: L new entries, K rows of a proposal, F numbers of a target's feature, V logits.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.engine.beside.declared import EntrySession, TextEntries
from specbench.methods.eagle.beside import PROBED, comparable, noise
from specbench.methods.eagle.entries import EagleEntries
from specbench.methods.peagle.network import PEagle

MOST_NEW = 16  # entries of the text whose rows are computed; a prompt's are not


class PEagleEntries(TextEntries):
    """Entries of one text. `length` counts the ones that hold the target's features."""

    def __init__(self, network: PEagle, session: EntrySession) -> None:
        self.network, self.session = network, session

    def draft_rows(self, features_LF: Tensor, tokens: Sequence[int], rows: int) -> Tensor:
        """Read entries on of the target's features and these tokens; logits [K, V] of the `rows` tokens after them."""
        before = max(0, len(tokens) - MOST_NEW)
        if before:
            EagleEntries(self.network, self.session).read(features_LF[:before], tokens[:before])
        unknown_LF = self.network.mask_hidden.to(features_LF.dtype).expand(rows - 1, -1)
        new = [*tokens[before:], *[self.network.shape.mask] * (rows - 1)]
        found_LV = self.session.run("draft", new, torch.cat([features_LF[before:], unknown_LF]))
        self.session.length += len(tokens) - before  # the masked entries after them are written over
        return found_LV[-rows:, : self.network.vocabulary_size]


def probe(network: PEagle, session: EntrySession) -> list[Tensor]:
    """Logits [K, V] after a prompt, after several entries, and after one, without a mask."""
    features_LF, entries = noise(network, MOST_NEW + 2 * PROBED), PEagleEntries(network, session)
    tokens = [network.vocabulary_size // 2 + place % PROBED for place in range(len(features_LF))]
    ends = (MOST_NEW + PROBED, len(features_LF) - 1, len(features_LF))
    parts = zip((0, *ends), ends, (2, PROBED, 1), strict=False)
    return comparable(entries.draft_rows(features_LF[first:end], tokens[first:end], rows) for first, end, rows in parts)
