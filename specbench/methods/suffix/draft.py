"""Suffix decoding: the likeliest continuation by counts in this text and in earlier completions (Oliaro et al. 2024).

"SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications". Two tries hold the runs of tokens of this
prompt and completion, and of all earlier completions. For each of the last 1, 2, ... tokens that occurred before, the
likeliest token is followed, then the next, for at most `factor` times as many tokens as were matched, and while the
product of the tokens' shares is at least `min_probability`. The proposal with the highest sum of these products, the
tokens that it expects to be accepted, is taken; among equals the one of the longest match, in this text first. So a
short or doubtful match drafts few tokens, and a long one many, up to gamma.

The end of this text is no occurrence of what it ends with: shares are of the places where a token follows. (The
authors' code counts it, so that what followed a run once has a share of one half.)

A tree holds the continuations of the match whose chain was best, in the order of their shares.

Completions are added between prompts only: a proposal depends on earlier completions and on nothing drawn later. q is
one-hot: the proposal is certain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specbench.algorithm.continuations import Found
from specbench.algorithm.draft import Draft, Stateless
from specbench.config.keys import MAX_GAMMA
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder
from specbench.methods.copying import CopiesFromContext
from specbench.methods.suffix.config import SuffixConfig
from specbench.methods.suffix.trie import Node, SuffixTrie
from specbench.sampling import Sampling
from specbench.theory.trees import ROOT


@dataclass(eq=False)
class SuffixDraft(Draft):
    """Proposes from the text so far and, if `config.grow`, from the completions that were added."""

    config: SuffixConfig
    vocabulary_size: int
    device: torch.device
    earlier: SuffixTrie = field(init=False)
    operations = 0.0

    def __post_init__(self) -> None:
        self.forget_texts()

    def start(self, prompt: Prompt, sampling: Sampling) -> "SuffixSession":
        return SuffixSession(self, prompt)

    @property
    def grown(self) -> int | None:
        """Tokens of completions in the store; None if it does not grow."""
        return self._grown if self.config.grow else None

    def add_texts(self, decoded: Sequence[tuple[Prompt, Sequence[int]]]) -> None:
        """Each completion is added with the last tokens of its prompt, so that runs which lead into it are found."""
        for prompt, tokens in decoded if self.config.grow else ():
            for token in (*prompt.prefix[-self.config.depth :], *tokens):
                self.earlier.append(token)
            self.earlier.finish()
            self._grown += len(tokens)

    def forget_texts(self) -> None:
        self.earlier, self._grown = SuffixTrie(self.config.depth), 0


@dataclass
class Match:
    """The last `length` tokens as a run of `trie`, and the tokens that follow it."""

    trie: SuffixTrie
    node: Node
    length: int
    tokens: list[int] = field(default_factory=list)
    score: float = 0.0  # sum of the tokens' probabilities


class SuffixSession(CopiesFromContext, Stateless):
    """A trie of the source, the prompt and the completion so far."""

    stops_at_end = True  # as completions do

    def __init__(self, draft: SuffixDraft, prompt: Prompt) -> None:
        self.draft, self.size, self.device = draft, draft.vocabulary_size, draft.device
        self._trie, self._last = SuffixTrie(draft.config.depth), list[int]()
        self._read_of_sequence, self._proposals = len(prompt.prefix) - 1, []
        self._root: Match | None = None  # of the tree that is grown, and its nodes
        self._nodes: list[Node | None] = []
        for token in prompt.source:
            self._trie.append(token)
        self._trie.finish()
        for token in prompt.prefix[:-1]:
            self._append(token)

    def matched(self, tokens: Sequence[int]) -> int:
        self._read(tokens)
        best = self._best(MAX_GAMMA)
        return 0 if best is None else best.length

    def after_text(self, tokens: Sequence[int], levels: int) -> Found:
        self._read(tokens)
        self._root, self._nodes = self._best(levels), []
        return self._ranked_after([self._node_of(ROOT)])

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Found:
        for token, parent in zip(tokens, parents, strict=True):
            node = self._node_of(parent)
            self._nodes.append(None if node is None or self._root is None else self._root.trie.after(node, token))
        return self._ranked_after(self._nodes[len(self._nodes) - len(tokens) :])

    def _node_of(self, number: int) -> Node | None:
        if number != ROOT:
            return self._nodes[number]
        return None if self._root is None else self._root.node

    def _ranked_after(self, nodes: Sequence[Node | None]) -> Found:
        trie = self._trie if self._root is None else self._root.trie
        ranked = [
            [] if node is None else [(token, share) for token, share, _ in trie.ranked(node)] for node in nodes
        ]  # fmt: skip
        return Found(ranked, self.size, self.device)

    def _append(self, token: int) -> None:
        self._trie.append(token)
        self._last.append(token)

    def _remove_last(self) -> None:
        self._trie.remove_last()
        self._last.pop()

    def _continuation(self, most: int) -> list[int]:
        best = self._best(most)
        return [] if best is None else best.tokens

    def _best(self, most: int) -> Match | None:
        """The match whose continuation, of up to `most` tokens, has the highest score."""
        earlier, depth = self.draft.earlier, self.draft.config.depth
        best = self._better(self._trie, self._trie.ending, most, None)
        if earlier.is_empty or (best is not None and best.score >= most):
            return best
        return self._better(earlier, list(earlier.find(self._last[1 - depth :])), most, best)

    def _better(self, trie: SuffixTrie, nodes: Sequence[Node], most: int, best: Match | None) -> Match | None:
        """The better of `best` and the best continuation of `nodes`, which are runs of 1, 2, ... tokens."""
        factor, least = self.draft.config.factor, self.draft.config.min_probability
        for length in range(len(nodes), 0, -1):
            node, tokens = nodes[length - 1], min(most, int(length * factor + 1e-6))
            if best is not None and best.score >= tokens:  # which no shorter run can exceed either
                break
            match, probability = Match(trie, node, length), 1.0
            for _ in range(tokens):
                if (found := trie.likeliest(node)) is None:
                    break
                token, share, node = found
                probability *= share
                if probability < least:
                    break
                match.tokens.append(token)
                match.score += probability
            if match.tokens and (best is None or match.score > best.score):
                best = match
        return best


class SuffixBuilder(DraftBuilder[SuffixConfig]):
    """Builds `draft=suffix`."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        return SuffixDraft(self.draft, self.request.vocabulary.size, self.request.device)
