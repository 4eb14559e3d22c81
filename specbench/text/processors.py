"""Changes of logits that servers make before sampling: biases, penalties, forbidden or forced tokens, a pattern.

Each is a function of the tokens before a position, drafted tokens included, so that rolling back tokens rolls back
their state. The definitions, in the order in which `transformers` applies its processors:

- logit bias (`SequenceBiasLogitsProcessor` of single tokens; the OpenAI API): added to the logits of tokens;
- repetition penalty (Keskar et al. 2019, section 4.1; `RepetitionPenaltyLogitsProcessor`): of each token of the
  prompt or the completion, a positive logit is divided by it, a negative one multiplied;
- no repeated n-gram (`NoRepeatNGramLogitsProcessor`): a token that would complete n tokens which prompt and completion
  have already is left out;
- frequency and presence penalty (the OpenAI API; vLLM's `SamplingParams`): of each token of the completion, the first
  is subtracted for each occurrence, the second once;
- bad words (`NoBadWordsLogitsProcessor`): the last token of a sequence is left out after the rest of it;
- minimum length (`MinNewTokensLengthLogitsProcessor`): no end of sequence before so many tokens;
- suppressed tokens (`SuppressTokensLogitsProcessor`): left out everywhere;
- forced first tokens (`ForcedBOSTokenLogitsProcessor`, for any number of them): all others are left out, whatever else
  forbids them;
- a regular expression: only tokens with which the completion can still become a match, and the end if it is one or no
  other token remains.

Shapes: L positions, V tokens of the vocabulary.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from specbench.config.schema import SamplingConfig, bias_of
from specbench.errors import UserError
from specbench.text.vocabulary import Spelling, Vocabulary

MOST_TEXTS = 4096  # whose allowed tokens are cached


@dataclass(frozen=True)
class Processors:
    """The changes of logits over one vocabulary; `ends` are its tokens that end a completion."""

    size: int
    ends: frozenset[int]
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_new_tokens: int = 0
    pattern: "Pattern | None" = None
    bias: tuple[tuple[int, float], ...] = ()
    ngram: int = 0
    suppressed: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()

    def processed(self, logits_LV: Tensor, sequences: Iterable[Sequence[int]], prompt: int) -> Tensor:
        """fp32 logits [L, size] after each of L `sequences`, whose first `prompt` tokens are the prompt's."""
        wide_LV = logits_LV[:, : self.size].to(torch.float32, copy=True)
        for row_V, sequence in zip(wide_LV, sequences, strict=True):
            self._weigh(row_V, sequence, sequence[prompt:])
            self._mask(row_V, sequence, sequence[prompt:])
        return wide_LV

    @property
    def weighs(self) -> bool:
        """Whether it adds to logits or scales them, by the tokens that were read."""
        return bool(self.bias or self.repetition != 1 or self.presence or self.frequency)

    @property
    def masks(self) -> bool:
        """Whether it leaves out tokens."""
        given = self.bad_words, self.min_new_tokens, self.ngram, self.suppressed, self.forced
        return self.pattern is not None or any(map(bool, given))

    def weighing(self) -> "Weighing":
        """What it adds to logits and scales them by, of rows one after another, as one function of tensors."""
        return Weighing(self.size, self.repetition, self.presence, self.frequency)

    def biases(self, device: torch.device) -> Tensor:
        """What is added to the logit of each token [V]."""
        added_V = torch.zeros(self.size)
        for token, by in self.bias:
            if token < self.size:
                added_V[token] = by
        return added_V.to(device)

    def mask(self, rows_LV: Tensor, sequences: Iterable[Sequence[int]], prompt: int) -> None:
        """Leave out tokens after each of L `sequences`, in place."""
        for row_V, sequence in zip(rows_LV, sequences, strict=True):
            self._mask(row_V, sequence, sequence[prompt:])

    def _weigh(self, row_V: Tensor, sequence: Sequence[int], written: Sequence[int]) -> None:
        """Change one row in place. Ids past the vocabulary are no text: embeddings that a draft reads."""
        if self.bias:
            added = {token: by for token, by in self.bias if token < self.size}
            biases = torch.tensor(list(added.values()), dtype=row_V.dtype, device=row_V.device)
            row_V[self._index(added, row_V)] += biases
        if self.repetition != 1:
            seen = self._index({token for token in sequence if token < self.size}, row_V)
            scores = row_V[seen]
            row_V[seen] = torch.where(scores < 0, scores * self.repetition, scores / self.repetition)
        if self.presence or self.frequency:
            counts = Counter(token for token in written if token < self.size)
            times = torch.tensor(list(counts.values()), dtype=row_V.dtype, device=row_V.device)
            row_V[self._index(counts, row_V)] -= self.frequency * times + self.presence

    def _mask(self, row_V: Tensor, sequence: Sequence[int], written: Sequence[int]) -> None:
        masked = [words[-1] for words in self.bad_words if _follows(sequence, words[:-1])]
        masked += [token for token in (*_repeating(sequence, self.ngram), *self.suppressed) if token < self.size]
        if len(written) < self.min_new_tokens:
            masked += self.ends
        if masked:
            row_V[self._index(masked, row_V)] = -torch.inf
        if self.pattern is not None:
            allowed = self._index(self.pattern.allowed(written, self.ends), row_V)
            scores = row_V[allowed]
            row_V.fill_(-torch.inf)
            if bool(scores.isneginf().all()):  # all are bad words, or not among the tokens of this draft
                row_V[self._index(self.ends, row_V)] = 0.0
            else:
                row_V[allowed] = scores
        if len(written) < len(self.forced):
            row_V.masked_fill_(row_V > -torch.inf, -torch.inf)  # a row that is not finite remains so
            row_V[self._index(self.forced[len(written) : len(written) + 1], row_V)] = 0.0

    def _index(self, tokens: Iterable[int], row_V: Tensor) -> Tensor:
        return torch.tensor(list(tokens), dtype=torch.long, device=row_V.device)


@dataclass(frozen=True)
class Weighing:
    """The biases and penalties of `Processors`, of rows one after another. No host is asked: an engine may capture it.

    It carries on the counts [2, V] of the tokens that were read: in prompt and completion, and only in the completion.
    """

    size: int
    repetition: float
    presence: float
    frequency: float

    def __call__(self, logits_LV: Tensor, tokens_2L: Tensor, counts_2V: Tensor, biases_V: Tensor) -> Tensor:
        """fp32 logits after each of L tokens, and both counts after each, [3, L, V].

        `tokens_2L` are the tokens that follow, and the completion's among them; `size` stands for none.
        """
        rows_LV = logits_LV[:, : self.size].float() + biases_V
        once_2LX = rows_LV.new_zeros(*tokens_2L.shape, self.size + 1).scatter_(-1, tokens_2L.unsqueeze(-1), 1.0)
        seen_LV, written_LV = counts_2LV = counts_2V.unsqueeze(1) + once_2LX[..., : self.size].cumsum(1)
        if self.repetition != 1:
            scaled_LV = torch.where(rows_LV < 0, rows_LV * self.repetition, rows_LV / self.repetition)
            rows_LV = torch.where(seen_LV > 0, scaled_LV, rows_LV)
        if self.presence or self.frequency:
            lowered_LV = rows_LV - (self.frequency * written_LV + self.presence)
            rows_LV = torch.where(written_LV > 0, lowered_LV, rows_LV)
        return torch.cat([rows_LV.unsqueeze(0), counts_2LV])


def _follows(sequence: Sequence[int], words: Sequence[int]) -> bool:
    return not words or tuple(sequence[-len(words) :]) == tuple(words)


def _repeating(sequence: Sequence[int], size: int) -> list[int]:
    """The tokens after which the last `size` tokens of `sequence` would be there for a second time."""
    if not size or len(sequence) + 1 < size:
        return []
    begun = tuple(sequence[len(sequence) - size + 1 :])
    return [sequence[end] for end in range(size - 1, len(sequence)) if tuple(sequence[end - size + 1 : end]) == begun]


class Pattern:
    """A compiled regular expression over completions, as the tokens that may follow one.

    The package `regex` says whether a text can still become a match ("partial match"). A token that ends within a
    character is left out; if no token can follow, the end does.
    """

    def __init__(self, compiled: Any, vocabulary: Vocabulary) -> None:
        """Raises UserError if the tokenizer's format is not known."""
        self._compiled, spelling = compiled, Spelling(vocabulary, "target")
        # The decoder of an encoder-decoder begins a text, and the space before its first word is not part of it.
        self._strips = vocabulary.is_encoder_decoder and spelling.adds_space
        self._bytes = spelling.bytes_of
        self._by_first: dict[str, list[tuple[int, str]]] = {}
        for token, spelled in spelling.bytes_of.items():
            try:
                text = spelled.decode()
            except UnicodeDecodeError:
                continue
            self._by_first.setdefault(text[0], []).append((token, text))
        self._found: dict[str, list[int]] = {}

    def allowed(self, written: Sequence[int], ends: frozenset[int]) -> list[int]:
        """The tokens that may follow the completion `written`, never none."""
        text = b"".join(self._bytes.get(token, b"") for token in written).decode(errors="replace")
        if self._strips:
            text = text.removeprefix(" ")
        if (found := self._found.get(text)) is None:
            if len(self._found) >= MOST_TEXTS:
                self._found.clear()
            first = self._strips and not text
            found = self._found[text] = self._followers(text, first)
        return [*found, *ends] if not found or self._compiled.fullmatch(text) else found

    def _followers(self, text: str, first: bool) -> list[int]:
        found = list[int]()
        for letter, tokens in self._by_first.items():
            if first and letter == " ":
                found += [token for token, piece in tokens if len(piece) > 1 and self._can_match(piece[1:])]
            elif self._can_match(text + letter):
                found += [token for token, piece in tokens if len(piece) == 1 or self._can_match(text + piece)]
        return found

    def _can_match(self, text: str) -> bool:
        return self._compiled.fullmatch(text, partial=True) is not None


def processors(sampling: SamplingConfig, vocabulary: Vocabulary, ends: frozenset[int]) -> Processors | None:
    """The processors of a config; None if there are none.

    Raises UserError if the vocabulary does not support them.
    """
    if not sampling.processes:
        return None
    compiled = sampling.pattern()
    if compiled is not None and not ends:
        raise UserError("sampling.regex: the target has no end-of-sequence token, so that a match would never end")
    biases = tuple(found for one in sampling.logit_bias if (found := bias_of(one)) is not None)
    of_ids: dict[str, Iterable[int]] = {
        "logit_bias": [token for token, _ in biases], "suppress_tokens": sampling.suppress_tokens,
        "forced_tokens": sampling.forced_tokens, "bad_words_ids": chain.from_iterable(sampling.bad_words_ids),
    }  # fmt: skip
    for name, ids in of_ids.items():
        if (odd := next((one for one in ids if not 0 <= one < vocabulary.size), None)) is not None:
            raise UserError(f"sampling.{name}: there is no token {odd}; the tokenizer has 0 to {vocabulary.size - 1}")
    return Processors(
        vocabulary.size, ends, sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty,
        (*_bad_words(sampling.bad_words, vocabulary), *map(tuple, sampling.bad_words_ids)), sampling.min_new_tokens,
        None if compiled is None else Pattern(compiled, vocabulary), biases,
        sampling.no_repeat_ngram_size, tuple(sampling.suppress_tokens), tuple(sampling.forced_tokens),
    )  # fmt: skip


def _bad_words(words: Iterable[str], vocabulary: Vocabulary) -> list[tuple[int, ...]]:
    """The tokens of each word as it begins a text, and as it follows another word."""
    spelled = [tuple(vocabulary.continuation(text)) for word in words for text in (word.strip(), f" {word.strip()}")]
    return list(dict.fromkeys(filter(None, spelled)))
