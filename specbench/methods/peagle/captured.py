"""P-EAGLE's forward pass as a captured step, beside a target of the same engine; see `methods.eagle.captured`.

Shapes: K rows of a proposal, V logits, F numbers of a target's feature.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.methods.eagle.captured import PROBED_ENTRIES, CapturedEagle, CapturedEagleSession, comparable, noise
from specbench.methods.peagle.cache import PEagleCache
from specbench.methods.peagle.network import PEagle
from specbench.theory.trees import ROOT

MOST_NEW = 16  # entries of the text whose rows are computed; a prompt's are not


class CapturedPEagleSession(CapturedEagleSession):
    """Captured entries of one text; see `PEagleCache`."""

    def __init__(self, model: CapturedEagle, network: PEagle) -> None:
        super().__init__(model, None)
        self.network = network

    def draft_rows(self, features_LF: Tensor, tokens: Sequence[int], rows: int) -> Tensor:
        """Read entries on of these tokens; logits [K, V or more] of the `rows` tokens after them."""
        before = max(0, len(tokens) - MOST_NEW)
        if before:
            self.read(features_LF[:before], tokens[:before])
        unknown_LF = self.network.mask_hidden.to(features_LF.dtype).expand(rows - 1, -1)
        new = [*tokens[before:], *[self.network.shape.mask] * (rows - 1)]
        states_LF = torch.cat([features_LF[before:], unknown_LF])
        self.forget()
        found_LV = self.draft_nodes(states_LF, new, range(ROOT, len(new) - 1)).logits_LV
        self.forget()
        self.length += len(tokens) - before  # the masked entries after them are written over
        return found_LV[-rows:]


@torch.inference_mode()
def probed(network: PEagle, model: CapturedEagle) -> tuple[list[Tensor], list[Tensor]]:
    """Logits of the captured steps and of the modules: of a prompt, of several entries, and of one, without a mask."""
    weight, first = network.fc.weight, network.vocabulary_size // 2
    features_LF = noise(MOST_NEW + 2 * PROBED_ENTRIES, network.shape.feature_width).to(weight.device, weight.dtype)
    tokens = [first + place % PROBED_ENTRIES for place in range(len(features_LF))]

    def rows(entries: CapturedPEagleSession | PEagleCache) -> list[Tensor]:
        ends = (MOST_NEW + PROBED_ENTRIES, len(features_LF) - 1, len(features_LF))
        parts = zip((0, *ends), ends, (2, PROBED_ENTRIES, 1), strict=False)
        return [entries.draft_rows(features_LF[begin:end], tokens[begin:end], count) for begin, end, count in parts]

    sessions = CapturedPEagleSession(model, network), PEagleCache(network)
    ours, own = (comparable(network, rows(entries)) for entries in sessions)
    return ours, own
