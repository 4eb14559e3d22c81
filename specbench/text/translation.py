"""Two vocabularies that differ: which tokens they share, and a text of the target's tokens in the draft's.

Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
Vocabularies", section 4 (token-level intersection). Nothing here decides what is emitted: a bad translation costs
acceptance, and no token of the target's own distribution.

Shapes: L tokens read, S shared tokens, V tokens of the target's vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from specbench.engine.batch_steps import BatchableModel, StepsOfRows
from specbench.engine.reads import Read, ReadsThrough
from specbench.engine.session import Model, Prompt, Session, Tokens, WrappedModel
from specbench.errors import UserError
from specbench.text.vocabulary import Spelling, Vocabulary, unfinished
from specbench.theory.trees import ROOT

WINDOW = 16  # tokens before a new text that its tokenisation is made with


@dataclass(frozen=True)
class Overlap:
    """How many tokens two vocabularies have, and how many they share."""

    shared: int
    target: int
    draft: int

    @property
    def of_target(self) -> float:
        """Share of the target's tokens that the draft has."""
        return self.shared / self.target

    @property
    def of_draft(self) -> float:
        """Share of the draft's tokens that the target has."""
        return self.shared / self.draft


class Translation:
    """The translation from the tokens of `target` to the tokens of `draft`.

    Tokens are shared that spell the same bytes, and special tokens that are written the same; and the two ends of text,
    however they are written. The pairs are one to one, so that the draft's probability of a token belongs to one token
    of the target.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary, key: str = "draft") -> None:
        self.target, self.draft = target, draft
        self.from_, self.to = Spelling(target, "target"), Spelling(draft, key)
        self.shared = _pairs(self.from_, self.to)  # id of the target -> id of the draft
        self.overlap = Overlap(len(self.shared), len(target.tokens), len(draft.tokens))
        self._begins, self._ends = _template(draft)
        self._begins_target, self._ends_target = _template(target)
        self._read: dict[int, list[int]] = {}
        self._tokens = self.from_.tokens()
        self._longest = max(map(len, self._tokens), default=0)

    def step(self, token: int, pending: bytes = b"") -> tuple[list[int], bytes]:
        """The tokens that the draft reads for `token`, and the bytes of an incomplete character.

        `pending` are earlier bytes. A shared token is read as it is. Any other token is tokenised by itself, so that no
        earlier token changes. A draft without byte tokens waits until a character is complete.
        """
        if token in self.shared:
            return [*self.to.continuation(pending), self.shared[token]], b""
        spelled = self.from_.bytes_of.get(token)
        if spelled is None:  # special, and nothing to the draft
            return self.to.continuation(pending), b""
        if pending or not self.to.spells_bytes:
            spelled = pending + spelled
            waiting = 0 if self.to.spells_bytes else unfinished(spelled)
            ready = len(spelled) - waiting
            return self.to.continuation(spelled[:ready]), spelled[ready:]
        if token not in self._read:
            self._read[token] = self.to.continuation(spelled)
        return self._read[token], b""

    def continued(self, tokens: Sequence[int]) -> list[int]:
        """The draft's tokens when the target's completion continues with `tokens`."""
        found, pending = list[int](), b""
        for token in tokens:
            ids, pending = self.step(token, pending)
            found += ids
        return [*found, *self.to.continuation(pending)]

    def read(self, tokens: Sequence[int]) -> tuple[list[int], bytes]:
        """The text of `tokens` as the draft's own tokenizer continues a text, and bytes of an incomplete character.

        Boundaries may move. Special tokens that both know are read between.
        """
        found = list[int]()
        *before, (spelled, _) = self._runs(tokens)
        for text, special in before:
            found += [*self.to.continuation(text), *special]
        ready = len(spelled) - unfinished(spelled)
        return found + self.to.continuation(spelled[:ready]), spelled[ready:]

    def _runs(self, tokens: Sequence[int]) -> Iterator[tuple[bytes, list[int]]]:
        """The bytes of `tokens` up to each special token, and the draft's such token if both have it; then the rest."""
        spelled = b""
        for token in tokens:
            if token in self.from_.bytes_of:
                spelled += self.from_.bytes_of[token]
            else:
                yield spelled, [self.shared[token]] if token in self.shared else []
                spelled = b""
        yield spelled, []

    def back(self, written: Sequence[int], spelled: bytes) -> list[int]:
        """The target's tokens of the text `spelled` that follows the target's tokens `written`.

        They are the tokenizer's tokens after `written`. If it would have cut `written` elsewhere, so that no token
        begins at its end, they are the tokens of the new text by itself. An incomplete character is left out.
        """
        spelled = spelled[: len(spelled) - unfinished(spelled)]
        before = b""
        for token in reversed(written[-WINDOW:]):
            if token not in self.from_.bytes_of:
                break
            before = self.from_.bytes_of[token] + before
        whole, place = self.from_.continuation(before + spelled), 0
        while whole and place < len(before):
            place += len(self.from_.bytes_of.get(whole.pop(0), b""))
        if place != len(before) or b"".join(self.from_.bytes_of.get(token, b"") for token in whole) != spelled:
            whole = self.from_.continuation(spelled)
        known = next((index for index, token in enumerate(whole) if token not in self.from_.bytes_of), len(whole))
        return whole[:known]

    def beginnings(self, spelled: bytes) -> list[int]:
        """The target's tokens whose bytes are a prefix of the text `spelled`, the shortest first."""
        ends = range(1, min(len(spelled), self._longest) + 1)
        return [self._tokens[spelled[:end]] for end in ends if spelled[:end] in self._tokens]

    def prompt(self, prompt: Prompt) -> Prompt:
        """`prompt` in the draft's tokens: its own start and end, each once, and the special tokens that both know.

        Other special tokens are left out, and never read as text.
        """
        if self.target.is_encoder_decoder:
            source = [*self._begins, *self._text(prompt.source), *self._ends]
            return Prompt(tuple(source), (self.draft.start, *self.continued(prompt.prefix[1:])), prompt.truncated)
        text = self._text(prompt.prefix) if prompt.prefix != (self.target.start,) else []
        while self._begins and text[: len(self._begins)] == self._begins:
            text = text[len(self._begins) :]
        return Prompt((), (*self._begins, *text) or (self.draft.start,), prompt.truncated)

    def _text(self, tokens: Sequence[int]) -> list[int]:
        """`tokens` tokenised again between special tokens, without those around every text."""
        begin, end = len(self._begins_target), len(self._ends_target)
        text = list(tokens)
        if begin and text[:begin] == self._begins_target:
            text = text[begin:]
        if end and text[-end:] == self._ends_target:
            text = text[:-end]
        found = list[int]()
        for spelled, special in self._runs(text):
            if spelled and not found:
                found += self._canonical(spelled.removeprefix(b" ") if self.from_.adds_space else spelled)
            else:
                found += self.to.continuation(spelled)
            found += special
        return found

    def _canonical(self, spelled: bytes) -> list[int]:
        """Tokens of this text as the draft's tokenizer has it; what is no text as `continuation` has it."""
        try:
            return self.draft.continuation(spelled.decode())
        except UnicodeDecodeError:
            return self.to.continuation(spelled)


def _pairs(target: Spelling, draft: Spelling) -> dict[int, int]:
    """The shared tokens, by the target's ids; each id of the draft at most once."""
    there = draft.tokens()
    pairs = {ours: there[spelled] for spelled, ours in target.tokens().items() if spelled in there}
    taken = set(pairs.values())
    candidates = [(ours, draft.byte_tokens.get(byte)) for byte, ours in target.byte_tokens.items()]
    candidates += [(ours, draft.special.get(token)) for token, ours in target.special.items()]
    ends = (target.vocabulary.tokenizer.eos_token_id, draft.vocabulary.tokenizer.eos_token_id)
    for ours, theirs in [*candidates, ends]:
        if ours is not None and theirs is not None and ours not in pairs and theirs not in taken:
            pairs[ours] = theirs
            taken.add(theirs)
    return pairs


def _template(vocabulary: Vocabulary) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before and after every text."""
    plain, whole = vocabulary.continuation("a"), list(vocabulary.tokenizer("a").input_ids)
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return [], []


class TranslatedModel(WrappedModel):
    """`model`, which has the draft's vocabulary of `translation`, in the tokens of the target's."""

    def __init__(self, model: Model, translation: Translation) -> None:
        super().__init__(model)
        self.translation = translation
        self.vocabulary_size = translation.target.size
        pairs = sorted(translation.shared.items())
        self.targets_S, self._sources_S = torch.tensor(pairs, device=self.device).T.contiguous()
        self._of_draft = {theirs: ours for ours, theirs in pairs}

    def ours(self, theirs: int) -> list[int]:
        """The target's token that is the draft's token `theirs`; none if they share none."""
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

    def own_prompt(self, prompt: Prompt) -> Prompt:
        return self.model.own_prompt(self.translation.prompt(prompt))

    def in_batch(self, rows: int) -> "TranslatedModel":
        """This model with room for `rows` sequences at a time."""
        return TranslatedModel(self.model.in_batch(rows), self.translation)

    def steps_of_rows(self, rows: int) -> StepsOfRows:
        """How the network runs over up to `rows` rows."""
        return cast(BatchableModel, self.model).steps_of_rows(rows)

    def get_ready(self, prompt: Prompt, tokens: int) -> None:
        self.model.get_ready(self.translation.prompt(prompt), tokens)

    def translated(self, logits_LV: Tensor) -> Tensor:
        """Logits of the model's own vocabulary as logits [L, V] of the target's."""
        found_LV = logits_LV.new_full((len(logits_LV), self.vocabulary_size), -torch.inf)
        found_LV[:, self.targets_S] = logits_LV[:, self._sources_S]
        return found_LV


class TranslatedSession(Session, ReadsThrough):
    """The model's own session, which reads the translation of the text.

    It knows where the translation of each token ends, so that rolling back is a cut there.
    """

    def __init__(self, model: TranslatedModel, session: Session, prompt: Prompt, own: Prompt) -> None:
        self.model, self.session = model, session
        self._first = len(prompt.prefix) - 1  # the number of the prefix's last token
        self._prefix = len(own.prefix)
        self._ids = list(own.prefix)  # the model's own sequence
        # For each token from the prefix's last on: its end in that sequence, and the pending bytes of a character.
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
