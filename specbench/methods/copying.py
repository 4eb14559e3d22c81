"""Shared parts of drafts that copy: their reading of a text, a one-hot q, and a trie of tokens after several places."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.continuations import Found, RankedTokens
from specbench.algorithm.draft import ScoresAhead, Stateless
from specbench.methods.certain import certain_ahead


class Text(Protocol):
    """A sequence of tokens."""

    def __len__(self) -> int: ...
    def __getitem__(self, place: int, /) -> Any: ...


Places = list[list[int]]  # for each run that was found, the longest first, where its followers stand, in order


class Trie:
    """The tokens after `places` of `text`. `end` follows each of its parts, and is no token."""

    def __init__(self, text: Text, places: Places, end: int) -> None:
        self._text, self._end = text, end
        self._nodes: list[dict[int, Places]] = []
        self._root = self._followers(places)

    def after_root(self) -> RankedTokens:
        return _ranked(self._root)

    def after(self, tokens: Sequence[int], parents: Sequence[int]) -> list[RankedTokens]:
        """For more nodes, numbered from 0; the parent of a child of the root is -1."""
        first = len(self._nodes)
        for token, parent in zip(tokens, parents, strict=True):
            places = (self._root if parent < 0 else self._nodes[parent]).get(token, [])
            self._nodes.append(self._followers([[place + 1 for place in of_run] for of_run in places]))
        return [_ranked(node) for node in self._nodes[first:]]

    def _followers(self, places: Places) -> dict[int, Places]:
        """The distinct tokens at `places`, each with the places that hold it."""
        found: dict[int, Places] = {}
        for run, of_run in enumerate(places):
            for place in of_run:
                token = int(self._text[place]) if place < len(self._text) else self._end
                if token != self._end:
                    found.setdefault(token, [[] for _ in places])[run].append(place)
        return found


def _ranked(followers: dict[int, Places]) -> RankedTokens:
    ranked: list[tuple[int, float]] = []
    rest, left = 1.0, dict(followers)
    for run in range(max(map(len, followers.values()), default=0)):
        total = sum(len(places[run]) for places in followers.values())
        here = [(token, places[run]) for token, places in left.items() if places[run]]
        for token, places in sorted(here, key=lambda pair: (-len(pair[1]), -pair[1][-1])):
            ranked.append((token, rest * len(places) / (total + 1)))
            del left[token]
        rest /= total + 1
    return ranked


class GrowsFromPlaces(Stateless):
    """The part of a draft session that reads trees from places of a text."""

    size: int
    device: torch.device
    _trie: Trie

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Found:
        return Found(self._trie.after(tokens, parents), self.size, self.device)

    def _grow(self, text: Text, places: Places, end: int) -> Found:
        self._trie = Trie(text, places, end)
        return Found([self._trie.after_root()], self.size, self.device)


class CopiesFromContext(ScoresAhead):
    """The part of a draft session that indexes its own text, each token once, and continues it by what it found.

    Tokens are removed again when the text is rolled back: inside a cascade it reads tokens that the target may reject.
    """

    size: int
    device: torch.device
    _read_of_sequence: int  # its tokens that are indexed
    _proposals: list[list[int]]  # at the latest positions that were scored

    @abstractmethod
    def _append(self, token: int) -> None:
        """Index one more token."""

    @abstractmethod
    def _remove_last(self) -> None:
        """Remove the last token from the index."""

    @abstractmethod
    def _continuation(self, most: int) -> list[int]:
        """Up to `most` tokens to propose after the indexed text."""

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        self._read(tokens)
        return Proposal(self._continuation(gamma))

    def _read(self, tokens: Sequence[int]) -> None:
        for token in tokens[self._read_of_sequence :]:
            self._append(token)
        self._read_of_sequence = len(tokens)

    def rollback(self, length: int) -> None:
        while self._read_of_sequence > length:
            self._remove_last()
            self._read_of_sequence -= 1

    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        proposals = self._proposals
        for position in range(self._read_of_sequence, len(tokens)):
            if position >= prefix_length:
                proposals.append(self._continuation(most))
            self._append(tokens[position])
        self._read_of_sequence = len(tokens)
        self._proposals = proposals[len(proposals) - most + 1 :]
        return certain_ahead(proposals, len(tokens) - prefix_length, most, self.size, self.device)
