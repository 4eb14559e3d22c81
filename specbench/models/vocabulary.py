"""Tokens: text to prompts and back, and whether two models speak of the same tokens."""

from collections.abc import Iterable, Sequence
from typing import Any

from specbench.errors import UserError
from specbench.files import json_digest
from specbench.models.base import Prompt


class Vocabulary:
    """A tokenizer and what a decoder needs to know to begin a text.

    `start` is the token before the first generated one: the decoder's start token of an encoder-decoder model, the
    beginning (or, failing that, end) of text of a decoder-only one.
    """

    def __init__(self, tokenizer: Any, start: int, is_encoder_decoder: bool, family: str = "") -> None:
        self.tokenizer = tokenizer
        self.family = family  # what transformers calls the architecture
        self.start = start
        self.is_encoder_decoder = is_encoder_decoder
        self.tokens: dict[str, int] = tokenizer.get_vocab()
        self.size = max(self.tokens.values()) + 1

    def prompt(self, text: str, suffix: str, max_source_tokens: int) -> Prompt:
        """`text` as a prompt, cut to `max_source_tokens`. `suffix` goes behind the cut, for decoder-only models."""
        if self.is_encoder_decoder:
            source, cut = self._beginning(text, max_source_tokens)
            return Prompt(tuple(source), (self.start,), cut)
        if not text:
            return Prompt((), (self.start,))
        behind = self.tokenizer(suffix, add_special_tokens=False).input_ids if suffix else []
        room = max(1, max_source_tokens - len(behind))
        before, cut = self._beginning(text, room)
        return Prompt((), (*before, *behind), cut)

    def _beginning(self, text: str, room: int) -> tuple[list[int], bool]:
        """At most `room` tokens of `text`, and whether there are more."""
        ids: list[int] = self.tokenizer(text, truncation=True, max_length=room).input_ids
        return ids, len(ids) >= room and len(self.tokenizer(text, truncation=False, verbose=False).input_ids) > room

    def ids(self, text: str) -> list[int]:
        """`text` as a model would write it: its tokens and the end of sequence."""
        ids: list[int] = self.tokenizer(text, truncation=False, verbose=False).input_ids
        if self.is_encoder_decoder:
            return ids
        ids = ids[1:] if ids and ids[0] == self.start else ids
        end = self.tokenizer.eos_token_id
        return ids if end is None else [*ids, end]

    def text(self, tokens: Sequence[int]) -> str:
        decoded: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return decoded

    def pieces(self, tokens: Iterable[int]) -> dict[int, str]:
        """Each token as it stands in a text, the space before a new word included; for showing tokens one by one."""
        words_are_bare = any(token.startswith("##") for token in self.tokens)  # WordPiece marks what continues a word
        pieces = {}
        for token in sorted(set(tokens)):
            name = self.tokenizer.convert_ids_to_tokens(token)
            text = self.tokenizer.decode([token]).removeprefix("##")
            begins_word = name.startswith(("▁", "Ġ")) or (words_are_bare and not name.startswith("##"))
            pieces[token] = f" {text.lstrip(' ')}" if begins_word else text
        return pieces

    def fingerprint(self) -> str:
        """A name for the token map, equal for equal maps."""
        return json_digest(sorted(self.tokens.items()), 16)


def require_same_vocabulary(
    target: Vocabulary, draft: Vocabulary, target_name: str, draft_name: str, key: str = "draft"
) -> None:
    """Raise UserError unless both map the same tokens to the same ids: p and q must be over one vocabulary. `key` is
    what the config calls the draft."""
    if target.tokens == draft.tokens:
        return
    pairs = target.tokens.items() ^ draft.tokens.items()
    token, _ = min(pairs, key=lambda pair: (pair[1], pair[0]))
    raise UserError(
        f"{key}={draft_name}: its vocabulary is not that of target={target_name} "
        f"({len(draft.tokens)} and {len(target.tokens)} tokens; the first difference is {token!r}, "
        f"{draft.tokens.get(token, 'absent')} and {target.tokens.get(token, 'absent')}): "
        "pick a draft of the target's family, or draft=unigram | bigram | random"
    )
