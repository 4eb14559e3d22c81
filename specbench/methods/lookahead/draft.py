"""Lookahead decoding: n-grams of the target's guesses at later tokens, verified while new guesses are made.

Fu et al. 2024, "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding". In each pass the target
reads two trees in one run. One holds n-grams of a pool that begin with the sequence's last token: they are the
proposal. The other is the window: N - 1 rows of W guessed tokens, row j the guesses of j passes ago at the W positions
that follow. The oldest row is a chain after the text; a token of another row follows the token of the row before it in
its column, which stands one position earlier. After the last row the target's argmax tokens make the next row (a Jacobi
step), and each column with its new token is an n-gram for the pool.

A window's tokens are guesses that are never verified: they are read beside the proposal and are not part of it. The
n-grams are the target's likeliest tokens, at every temperature, from only earlier passes. So q is one-hot, and children
of a node are tested in turn like found tokens.

Where the paper is silent: the first window is copied from the source or the text, and so are the columns that become
free when a pass accepts several tokens, so that the others keep their positions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal, UnverifiedTokens
from specbench.algorithm.draft import Draft, ScoresAhead, Stateless, read_of
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Model, Prompt, Session
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder
from specbench.methods.certain import certain_ahead
from specbench.methods.lookahead.config import LookaheadConfig
from specbench.sampling import Sampling, most_likely
from specbench.text.processed import processed
from specbench.theory.trees import ROOT


@dataclass(eq=False)
class LookaheadDraft(Draft):
    """A window of `window` columns, n-grams of `ngram` tokens, up to `guesses` of them verified in a pass."""

    target: Model
    window: int
    ngram: int
    guesses: int
    device: torch.device
    operations = 0.0  # what the window takes is counted in each proposal

    def start(self, prompt: Prompt, sampling: Sampling) -> "LookaheadSession":
        return LookaheadSession(self, prompt)


class Window:
    """The guesses, and the n-grams that they made: of each first token the latest, the newest last."""

    def __init__(self, columns: int, ngram: int, guesses: int, filling: Sequence[int]) -> None:
        self.columns, self.guesses, self._filling, self._filled = columns, guesses, filling, 0
        self.rows = [[self._fill() for _ in range(columns)] for _ in range(ngram - 1)]
        self.pool: dict[int, list[tuple[int, ...]]] = {}

    def tree(self, first: int = 0) -> UnverifiedTokens:
        """Row after row, numbered from `first`; the chain of the oldest, and a column for each of its tokens."""
        tokens = [token for row in self.rows for token in row]
        parents = [
            (first + column - 1 if column else ROOT) if row == 0 else first + (row - 1) * self.columns + column
            for row in range(len(self.rows)) for column in range(self.columns)
        ]  # fmt: skip
        return UnverifiedTokens(tokens, parents)

    def learn(self, best: Sequence[int]) -> None:
        """Add n-grams to the pool and a row to the window from the argmax tokens `best` after each of `tree()`."""
        newest = list(best[-self.columns :])
        for column, token in enumerate(newest):
            first, *rest = (*(row[column] for row in self.rows), token)
            known = self.pool.setdefault(first, [])
            if tuple(rest) in known:
                known.remove(tuple(rest))
            known.append(tuple(rest))
            del known[: -self.guesses]
        self.rows = [*self.rows[1:], newest]

    def shift(self, columns: int) -> None:
        """Shift the window after the sequence has grown by one token plus the accepted tokens."""
        columns = min(columns, self.columns)
        self.rows = [[*row[columns:], *(self._fill() for _ in range(columns))] for row in self.rows]

    def found(self, token: int) -> list[tuple[int, ...]]:
        """N-grams that start with `token`, the newest first."""
        return self.pool.get(token, [])[::-1]

    def _fill(self) -> int:
        self._filled += 1
        return self._filling[self._filled % len(self._filling)]


class LookaheadSession(Stateless, ScoresAhead):
    """The window and its pool, for one completion."""

    stops_at_end = False

    def __init__(self, draft: LookaheadDraft, prompt: Prompt) -> None:
        self.draft, self.prompt = draft, prompt
        filling = prompt.source or prompt.prefix
        self.window = Window(draft.window, draft.ngram, draft.guesses, filling)
        self._length = len(prompt.prefix)
        self._scoring: Session | None = None
        self._proposals: list[list[int]] = []

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        """A tree of n-grams, of at most `gamma` levels, beside which the window is read."""
        target = self.draft.target
        if (further := len(tokens) - self._length) > 1:
            self.window.shift(further - 1)
        self._length = len(tokens)
        if gamma == 0:
            return Proposal([])
        drafted, parents = list[int](), list[int]()
        children: dict[tuple[int, int], int] = {}
        for ngram in self.window.found(tokens[-1]):
            node = ROOT
            for token in ngram[:gamma]:
                if (node, token) not in children:
                    children[node, token] = len(drafted)
                    drafted.append(token)
                    parents.append(node)
                node = children[node, token]
                if token in target.eos_ids:
                    break
        unverified = self._unverified(len(tokens), len(drafted))
        operations = len(unverified.tokens) * target.operations if unverified else 0.0
        return Proposal(drafted, None, operations, parents, unverified=unverified)

    def _unverified(self, length: int, first: int) -> UnverifiedTokens | None:
        """The window, whose nodes are numbered from `first`; None if the target has no positions left for it."""
        most, needed = self.draft.target.longest, self.draft.window + self.draft.ngram
        return self.window.tree(first) if most is None or length + needed <= most else None

    def after_unverified(self, logits_LV: Tensor, path: Sequence[int]) -> None:
        self.window.learn(most_likely(logits_LV, self.draft.target.vocabulary_size, len(logits_LV)))

    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        """q of the newest n-gram at each position, as if each pass before had emitted one token.

        The target reads the window at each token of the text, in a session of its own.
        """
        target, window = self.draft.target, self.window
        session = self._scoring = self._scoring or target.start(self.prompt)
        for end in range(max(self._length, prefix_length), len(tokens)):
            newest = window.found(tokens[end - 1])
            self._proposals.append(list(newest[0][:most]) if newest else [])
            unread = list(tokens[session.length : end])
            if (unverified := self._unverified(end, 0)) is None:
                session.extend(unread)
                continue
            _, told, parents = read_of(session, unread, Proposal([], unverified=unverified))
            self.after_unverified(session.extend(told, parents)[len(unread) :], ())
            session.select(range(len(unread)))
        self._length = len(tokens)
        proposals, self._proposals = self._proposals, self._proposals[-most:]
        return certain_ahead(proposals, len(tokens) - prefix_length, most, target.vocabulary_size, self.draft.device)


class LookaheadBuilder(DraftBuilder[LookaheadConfig]):
    """Builds `draft=lookahead`."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        target.require_trees(f"{self.request.key}=lookahead", "use another draft")
        draft = self.draft
        read = processed(target, self.request.run.sampling, self.request.vocabulary)  # also in scoring
        return LookaheadDraft(read, draft.window, draft.ngram, draft.guesses, self.request.device)
