"""Prompt lookup decoding: copy the tokens that followed an earlier occurrence of the last tokens in the context.

The last `match` tokens are looked for in the source and in the tokens so far, then the last `match - 1`, and so down to
one; the tokens after the latest occurrence are proposed. Summaries and rewrites repeat their source, so this finds long
matches almost for free. Without a match nothing is proposed, and the pass is a plain target step.

A token costs `match` entries of a table and a proposal at most as many look-ups, however long the text; the prompt is
entered before the first pass.

A tree holds the tokens that followed several places, the longest matches first (`methods.copying`).

q is one-hot: the proposal is certain. Saxena 2023, "Prompt Lookup Decoding"; there only the decoder's own tokens are
searched, which for encoder-decoder models would leave the source out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from specbench.algorithm.continuations import Continuations
from specbench.algorithm.draft import Draft
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder
from specbench.methods.copying import CopiesFromContext, GrowsFromPlaces, Places
from specbench.methods.lookup.config import LookupConfig
from specbench.sampling import Sampling

MOST_PLACES = 64  # of one run, the latest


@dataclass(eq=False)
class LookupDraft(Draft):
    """Proposes from `prompt.source` and the sequence so far."""

    vocabulary_size: int
    device: torch.device
    match: int
    operations = 0.0

    def start(self, prompt: Prompt, sampling: Sampling) -> "LookupSession":
        return LookupSession(self, prompt)


class LookupSession(CopiesFromContext, GrowsFromPlaces):
    """An index of every run of up to `match` tokens: the places where it ends, in order."""

    stops_at_end = False

    def __init__(self, draft: LookupDraft, prompt: Prompt) -> None:
        self.draft, self.size, self.device = draft, draft.vocabulary_size, draft.device
        self._text: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self._read_of_sequence = len(prompt.prefix) - 1
        self._proposals = []
        for token in (*prompt.source, *prompt.prefix[:-1]):
            self._append(token)

    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        self._read(tokens)
        places: Places = []
        seen: set[int] = set()  # a place of a longer run is one of each shorter run as well, and counts once
        for run in reversed(list(self._runs())):
            places.append([end for end in self._ends.get(run, [])[-MOST_PLACES:] if end not in seen])
            seen.update(places[-1])
        return self._grow(self._text, places, self.size)

    def _append(self, token: int) -> None:
        end = len(self._text)
        for run in self._runs():
            self._ends.setdefault(run, []).append(end)
        self._text.append(token)

    def _remove_last(self) -> None:
        self._text.pop()
        for run in self._runs():
            ends = self._ends[run]
            ends.pop()
            if not ends:
                del self._ends[run]

    def _runs(self) -> Iterator[tuple[int, ...]]:
        """The runs that the text ends with, the shortest first."""
        for length in range(1, min(self.draft.match, len(self._text)) + 1):
            yield tuple(self._text[-length:])

    def matched(self, tokens: Sequence[int]) -> int:
        self._read(tokens)
        return self._longest()[0]

    def _continuation(self, most: int) -> list[int]:
        """The tokens after the latest place of the longest match, up to the present end."""
        _, ends = self._longest()
        return self._text[ends[-1] : ends[-1] + most] if ends else []

    def _longest(self) -> tuple[int, list[int]]:
        """The length of the longest run that occurred before, and the places after it."""
        for length in range(min(self.draft.match, len(self._text)), 0, -1):
            ends = self._ends.get(tuple(self._text[-length:]))
            if ends is not None:
                return length, ends
        return 0, []


class LookupBuilder(DraftBuilder[LookupConfig]):
    """Builds `draft=lookup`."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        return LookupDraft(self.request.vocabulary.size, self.request.device, self.draft.match)
