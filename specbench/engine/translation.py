"""Two vocabularies that differ: which tokens they share, and a text of the target's tokens in the draft's.

Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
Vocabularies", section 4 (token-level intersection). Nothing here decides what is emitted: a bad translation costs
acceptance, and no token of the target's own distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.engine.session import Prompt
from specbench.engine.spelling import Spelling, unfinished
from specbench.engine.vocabulary import Vocabulary

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
    """From the tokens of `target` to those of `draft`.

    Tokens are shared that spell the same bytes, and special tokens that are written the same; and the two ends of text,
    however they are written. The pairs are one to one, so that the draft's probability of a token is that of one token
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
        found, spelled = list[int](), b""
        for token in tokens:
            if token in self.from_.bytes_of:
                spelled += self.from_.bytes_of[token]
                continue
            found += self.to.continuation(spelled)
            found += [self.shared[token]] if token in self.shared else []
            spelled = b""
        ready = len(spelled) - unfinished(spelled)
        return found + self.to.continuation(spelled[:ready]), spelled[ready:]

    def back(self, written: Sequence[int], spelled: bytes) -> list[int]:
        """The target's tokens of the text `spelled` that follows the target's tokens `written`.

        They are those that the tokenizer has after `written`; where it would have cut `written` elsewhere, so that no
        token begins at its end, those of the new text by itself. A character that is not complete is left out.
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
            return Prompt(tuple(source), (self.draft.start, *self.continued(prompt.prefix[1:])), prompt.cut)
        text = self._text(prompt.prefix) if prompt.prefix != (self.target.start,) else []
        while self._begins and text[: len(self._begins)] == self._begins:
            text = text[len(self._begins) :]
        return Prompt((), (*self._begins, *text) or (self.draft.start,), prompt.cut)

    def _text(self, tokens: Sequence[int]) -> list[int]:
        """`tokens` tokenised again between special tokens, without those around every text."""
        begin, end = len(self._begins_target), len(self._ends_target)
        inside = list(tokens)
        if begin and inside[:begin] == self._begins_target:
            inside = inside[begin:]
        if end and inside[-end:] == self._ends_target:
            inside = inside[:-end]
        found, spelled = list[int](), b""
        for token in [*inside, None]:
            if token is not None and token in self.from_.bytes_of:
                spelled += self.from_.bytes_of[token]
                continue
            if spelled:
                if not found and self.from_.adds_space:
                    spelled = spelled.removeprefix(b" ")
                found += self.to.continuation(spelled) if found else self._canonical(spelled)
                spelled = b""
            if token is not None and token in self.shared:
                found.append(self.shared[token])
        return found

    def _canonical(self, spelled: bytes) -> list[int]:
        """As the draft's tokenizer has this text; what is no text as `continuation` has it."""
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
