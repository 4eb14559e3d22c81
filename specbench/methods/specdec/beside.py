"""SpecDec's decoder as a network beside the target, its entries of one text, and how captured steps are compared.

Shapes: L new entries, K queries, D width, V logits.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.engine.beside.declared import Beside, EntrySession, StepOf, TextEntries
from specbench.engine.layout import Apart
from specbench.methods.specdec.network import ParallelDecoder

PROBED = 3  # tokens of a text


def beside(decoder: ParallelDecoder) -> Beside:
    """`decoder`, bound to its target, with one step over embeddings of tokens and the queries after them."""
    shape = decoder.shape
    return Beside(
        "SpecDec's decoder", decoder, decoder.borrowed, decoder.query_KD, decoder.described(),
        {"draft": StepOf(decoder.step, shape.width, least=2, usual=())},
        shape.caches(len(decoder.layers)), [(shape.heads, shape.head_width)] * 2 * len(decoder.layers), decoder.layers,
    )  # fmt: skip


class ParallelEntries(TextEntries):
    """The tokens that the decoder has read of one text. The queries of a step are written after them and dropped."""

    def __init__(self, decoder: ParallelDecoder, session: EntrySession) -> None:
        self.decoder, self.session = decoder, session

    def step(self, tokens: Sequence[int], queries: int) -> Tensor:
        """Read `tokens` on; the logits [K, V] of the first `queries` queries after them."""
        ids_L = torch.tensor(tokens, device=self.decoder.query_KD.device)
        states_LD = torch.cat([self.decoder.embed(ids_L), self.decoder.query_KD[:queries]])
        logits_LV = self.session.run("draft", [0] * len(states_LD), states_LD, Apart(queries))
        self.session.length += len(tokens)
        return logits_LV[-queries:]


def probe(decoder: ParallelDecoder, session: EntrySession) -> list[Tensor]:
    """Logits [K, V] of all queries after a few tokens, and of one after one more."""
    entries, first = ParallelEntries(decoder, session), decoder.logits_size // 2
    parts = (range(first, first + PROBED), decoder.queries), (range(first + PROBED, first + PROBED + 1), 1)
    return [entries.step(list(tokens), queries).float() for tokens, queries in parts]
