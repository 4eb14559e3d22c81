"""A model of another vocabulary that reads the target's tokens, and predicts those that both share.

Token-level intersection (Timor et al. 2025, section 4): its logits of the shared tokens stand at the target's ids, and
minus infinity everywhere else, so that what is standardised from them is q renormalised on the shared tokens. Nothing
that drafts, accepts or scores need know of it.

Shapes: L tokens read, S shared tokens, V tokens of the target's vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from specbench.engine.batch import Batch
from specbench.engine.batch_steps import BatchableModel, StepsOfRows
from specbench.engine.clock import Marking
from specbench.engine.session import Model, Prompt, Read, ReadsThrough, Session, Tokens, get_ready
from specbench.engine.translation import Translation
from specbench.errors import UserError
from specbench.theory.trees import ROOT


class TranslatedModel:
    """`model`, which has the draft's vocabulary of `translation`, in the tokens of the target's."""

    def __init__(self, model: Model, translation: Translation) -> None:
        self.model, self.translation = model, translation
        self.vocabulary_size = translation.target.size
        self.operations, self.now, self.longest = model.operations, model.now, model.longest
        self.mark: Marking | None = getattr(model, "mark", None)
        self.device: torch.device = getattr(model, "device", torch.device("cpu"))
        pairs = sorted(translation.shared.items())
        self.targets_S, self._sources_S = torch.tensor(pairs, device=self.device).T.contiguous()
        self._of_draft = {theirs: ours for ours, theirs in pairs}

    def ours(self, theirs: int) -> list[int]:
        """The target's token that is the draft's token `theirs`; none where they share none."""
        return [self._of_draft[theirs]] if theirs in self._of_draft else []

    @property
    def eos_ids(self) -> frozenset[int]:
        """The target's tokens that end the draft's text."""
        return frozenset(self._of_draft[end] for end in self.model.eos_ids if end in self._of_draft)

    @eos_ids.setter
    def eos_ids(self, ends: frozenset[int]) -> None:
        shared = self.translation.shared
        self.model.eos_ids = frozenset(shared[end] for end in ends if end in shared)

    def start(self, prompt: Prompt) -> "TranslatedSession":
        own = self.translation.prompt(prompt)
        return TranslatedSession(self, self.model.start(own), prompt, own)

    def in_batch(self, rows: int) -> "TranslatedModel":
        """The same, with room for `rows` sequences at a time."""
        return TranslatedModel(Batch.of(self.model, rows), self.translation)

    def steps_of_rows(self, rows: int) -> StepsOfRows:
        """How the network runs over up to `rows` rows."""
        return cast(BatchableModel, self.model).steps_of_rows(rows)

    def get_ready(self, prompt: Prompt, tokens: int) -> None:
        """Capture what decoding will need, where the model captures its steps."""
        get_ready(self.model, self.translation.prompt(prompt), tokens)

    def translated(self, logits_LV: Tensor) -> Tensor:
        """Logits of the model's own vocabulary as logits [L, V] of the target's."""
        found_LV = logits_LV.new_full((len(logits_LV), self.vocabulary_size), -torch.inf)
        found_LV[:, self.targets_S] = logits_LV[:, self._sources_S]
        return found_LV


class TranslatedSession(ReadsThrough):
    """The model's own session, which reads the translation of the text.

    It knows where the translation of each token ends, so that rolling back is a cut there.
    """

    def __init__(self, model: TranslatedModel, session: Session, prompt: Prompt, own: Prompt) -> None:
        self.model, self.session = model, session
        self._first = len(prompt.prefix) - 1  # the number of the prefix's last token
        self._prefix = len(own.prefix)
        self._ids = list(own.prefix)  # the model's own sequence
        # Of each token from the prefix's last on: where it ends in that sequence, and what of a character is pending.
        self._ends: list[tuple[int, bytes]] = []
        self._nodes: list[int] = []  # of an open tree: the model's own
        self._own: list[list[int]] = []  # and which of them each node is read as

    @property
    def length(self) -> int:
        return self._first + len(self._ends)

    def extend(self, tokens: Tokens, parents: Sequence[int] | None = None) -> Tensor:
        read, answer = self.through(tokens, parents)
        return answer(self.session.extend(read.tokens, read.parents))

    def through(self, tokens: Tokens, parents: Sequence[int] | None = None) -> tuple[Read, Callable[[Tensor], Tensor]]:
        tokens = tokens.tolist() if isinstance(tokens, Tensor) else tokens
        ids, own_parents, rows = self._text(tokens) if parents is None else self._tree(tokens, parents)
        self._require_room(len(self._ids) + len(self._nodes))

        def answer(logits_LV: Tensor) -> Tensor:
            return self.model.translated(logits_LV if len(rows) == len(logits_LV) else logits_LV[rows])

        return Read(self.session, ids, own_parents), answer

    def _text(self, tokens: Sequence[int]) -> tuple[list[int], None, list[int]]:
        """The draft's tokens of a text, and the row that follows each of `tokens`."""
        start, before = self.session.length, len(self._ends)
        for token in tokens:
            pending = b""
            if self._ends:  # the prefix's last token is the end of the prefix's translation
                ids, pending = self.model.translation.step(token, self._ends[-1][1])
                self._ids += ids
            self._ends.append((len(self._ids), pending))
        ends = [end for end, _ in self._ends[before:]]
        if ends[0] == start:  # the first token has no translation: the last token read is read again
            start -= 1
            self.session.rollback(start)
        return self._ids[start:], None, [end - 1 - start for end in ends]

    def _tree(self, tokens: Sequence[int], parents: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """The nodes that the draft reads: a node that is not shared is a chain of nodes.

        A node without a translation is the unknown token, or the start token, since there must be a token to read.
        """
        assert self._ends, "the prefix is read before a tree"
        translation, first = self.model.translation, len(self._nodes)
        filler = translation.draft.start if translation.to.unknown is None else translation.to.unknown
        own_parents, rows = list[int](), list[int]()
        for token, parent in zip(tokens, parents, strict=True):
            ids = translation.continued([token]) or [filler]
            own = list(range(len(self._nodes), len(self._nodes) + len(ids)))
            own_parents += [ROOT if parent == ROOT else self._own[parent][-1], *own[:-1]]
            self._nodes += ids
            self._own.append(own)
            rows.append(own[-1] - first)
        return self._nodes[first:], own_parents, rows

    def _require_room(self, needed: int) -> None:
        longest = self.model.longest
        if longest is not None and needed > longest:
            raise UserError(
                f"max_new_tokens: this text is {needed} tokens of the draft's vocabulary, and the draft has positions "
                f"for {longest}; lower max_new_tokens or task.max_source_tokens"
            )

    def select(self, path: Sequence[int]) -> None:
        self.session.select([node for one in path for node in self._own[one]])
        for one in path:
            self._ids += [self._nodes[node] for node in self._own[one]]
            self._ends.append((len(self._ids), b""))
        self._nodes, self._own = [], []

    def rollback(self, length: int) -> None:
        self._nodes, self._own = [], []
        del self._ends[max(0, length - self._first) :]
        read = self._ends[-1][0] if self._ends else self._prefix
        del self._ids[read:]
        self.session.rollback(read if self._ends else read - 1)
