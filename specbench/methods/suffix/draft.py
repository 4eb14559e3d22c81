"""Suffix decoding: the likeliest continuation by counts in this text and in earlier completions (Oliaro et al. 2024).

"SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications". Two tries hold the runs of tokens of this
prompt and completion, and of all earlier completions. For each of the last 1, 2, ... tokens that occurred before, the
likeliest token is followed, then the next, for at most `factor` times as many tokens as were matched, and while the
product of the tokens' shares is at least `min_probability`. The proposal with the highest sum of these products, the
tokens that it expects to be accepted, is taken; of equals the one of the longest match, in this text first. So a short
or doubtful match drafts few tokens, and a long one many, up to gamma.

The end of this text is no occurrence of what it ends with: shares are of the places where a token follows. (The
authors' code counts it, so that what followed a run once has a share of one half.)

A tree holds the continuations of the match whose chain was best, in the order of their shares.

Completions are added between prompts only: a proposal depends on earlier completions and on nothing drawn later. q is
one-hot: the proposal is certain.
"""

from collections.abc import Iterator, Sequence
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
from specbench.sampling import Sampling
from specbench.theory.trees import ROOT

# A trie of the runs of tokens in texts, with how often each occurs; it grows and shrinks token by token.
#
# A run that occurs once has no nodes after it: its node holds the place of what followed. A node gets followers when
# its run occurs again, so that memory and time a token grow with what repeats, and not with the depth of the trie.


END = -1  # after each text, and no token


class Node:
    """A run of tokens: how often it occurs, and the place of the token after its first occurrence.

    `followers` are the runs that are longer by a token; None of a run that occurs once, and of the longest runs.
    `likeliest` is the answer of `SuffixTrie.likeliest` until one of `followers` changes.
    """

    __slots__ = ("count", "followers", "likeliest", "place")

    def __init__(self, place: int) -> None:
        self.count, self.place = 1, place
        self.followers: dict[int, Node] | None = None
        self.likeliest: tuple[int, float, Node] | None = None


class SuffixTrie:
    """All runs of up to `depth` tokens of texts, the last of which may be unfinished."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._tokens: list[int] = []
        self._root = Node(0)
        self._root.followers = {}
        self._ending: list[Node] = []  # the unfinished text's last 1, 2, ... tokens, of those runs that occurred before
        self._endings: list[list[Node]] = []  # the same before each of its tokens

    @property
    def is_empty(self) -> bool:
        return not self._tokens

    @property
    def ending(self) -> Sequence[Node]:
        """The last 1, 2, ... tokens of the unfinished text, as far as they occurred before, shorter than `depth`."""
        return self._ending

    def append(self, token: int) -> None:
        """Add a token to the unfinished text."""
        self._tokens.append(token)
        self._endings.append(self._ending)
        again = list[Node]()
        for node in (self._root, *self._ending):
            assert node.followers is not None
            node.likeliest = None
            child = node.followers.get(token)
            if child is None:
                node.followers[token] = Node(len(self._tokens))
            else:
                child.count += 1
                again.append(child)
        self._ending = again[: self.depth - 1]
        for child in self._ending:
            if child.followers is None:
                first = self._tokens[child.place]
                child.followers, child.likeliest = {} if first == END else {first: Node(child.place + 1)}, None

    def remove_last(self) -> None:
        """Remove the last token of the unfinished text."""
        token, self._ending = self._tokens.pop(), self._endings.pop()
        for node in (self._root, *self._ending):
            assert node.followers is not None
            node.likeliest = None
            child = node.followers[token]
            child.count -= 1
            if child.count == 0:
                del node.followers[token]
            elif child.count == 1:
                child.followers = None

    def finish(self) -> None:
        """Finish the text: no run goes on from it to the next."""
        self._tokens.append(END)
        self._ending, self._endings = [], []

    def find(self, context: Sequence[int]) -> Iterator[Node]:
        """The last 1, 2, ... tokens of `context`, as far as they occur."""
        for first in range(len(context) - 1, -1, -1):
            run = self._root
            for token in context[first:]:
                if (longer := self.after(run, token)) is None:
                    return
                run = longer
            yield run

    def likeliest(self, node: Node) -> tuple[int, float, Node] | None:
        """The token that followed most often, its share of all followers, and the longer run; None without followers.

        Of equally frequent tokens the newest.
        """
        if node.followers is None:
            return next(((token, 1.0, child) for token, child in self._followers(node).items()), None)
        if node.likeliest is None and node.followers:
            total = sum(child.count for child in node.followers.values())
            token, child = max(reversed(node.followers.items()), key=lambda pair: pair[1].count)
            node.likeliest = token, child.count / total, child
        return node.likeliest

    def ranked(self, node: Node) -> list[tuple[int, float, Node]]:
        """The tokens that followed, their shares and the longer runs, the most frequent first."""
        followers = self._followers(node)
        total = sum(child.count for child in followers.values())
        found = [(token, child.count / total, child) for token, child in reversed(followers.items())]
        return sorted(found, key=lambda one: -one[1])

    def after(self, node: Node, token: int) -> Node | None:
        """The run that is longer by `token`; None if that did not follow."""
        return self._followers(node).get(token)

    def _followers(self, node: Node) -> dict[int, Node]:
        if node.followers is not None:
            return node.followers
        if node.count > 1 or node.place >= len(self._tokens) or self._tokens[node.place] == END:
            return {}
        return {self._tokens[node.place]: Node(node.place + 1)}


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
        return self._found([self._node_of(ROOT)])

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Found:
        for token, parent in zip(tokens, parents, strict=True):
            node = self._node_of(parent)
            self._nodes.append(None if node is None or self._root is None else self._root.trie.after(node, token))
        return self._found(self._nodes[len(self._nodes) - len(tokens) :])

    def _node_of(self, number: int) -> Node | None:
        if number != ROOT:
            return self._nodes[number]
        return None if self._root is None else self._root.node

    def _found(self, nodes: Sequence[Node | None]) -> Found:
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
