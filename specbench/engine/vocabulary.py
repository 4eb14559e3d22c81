"""Tokens: text to prompts and back, and whether two models speak of the same tokens."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.files import json_digest

Message = Mapping[str, str]  # 'role' and 'content', as chat templates read them


class Vocabulary:
    """A tokenizer and what a decoder needs to know to begin a text.

    `start` is the token before the first generated one: the decoder's start token of an encoder-decoder model, the
    beginning (or, failing that, end) of text of a decoder-only model.
    """

    def __init__(self, tokenizer: Any, start: int, is_encoder_decoder: bool, family: str = "") -> None:
        self.tokenizer = tokenizer
        self.family = family  # what transformers calls the architecture
        self.start = start
        self.is_encoder_decoder = is_encoder_decoder
        self.tokens: dict[str, int] = tokenizer.get_vocab()
        self.size = max(self.tokens.values()) + 1

    def prompt(self, text: str, suffix: str, max_source_tokens: int) -> Prompt:
        """`text` as a prompt of at most `max_source_tokens` tokens.

        Of a longer text an encoder reads the beginning, and so does a decoder-only model where a `suffix` follows,
        which is never cut. Without a suffix a decoder-only model continues the text's end, which is kept.
        """
        if not text and not self.is_encoder_decoder:
            return Prompt((), (self.start,))
        ids = self._tokenize(text)
        if self.is_encoder_decoder:
            # Not ids[:room]: the tokenizer's end tokens remain when it cuts.
            cut: list[int] = self.tokenizer(text, truncation=True, max_length=max_source_tokens).input_ids
            return Prompt(tuple(cut), (self.start,), len(ids) > len(cut))
        if not suffix:
            return Prompt((), self._end(ids, max_source_tokens) or (self.start,), len(ids) > max_source_tokens)
        after = self._tokenize(suffix, add_special_tokens=False)
        room = max(1, max_source_tokens - len(after))
        return Prompt((), (*ids[:room], *after), len(ids) > room)

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer says how a conversation is written."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def chat(self, messages: Sequence[Message], max_source_tokens: int) -> Prompt:
        """A conversation in the tokenizer's chat template, up to where the answer begins; if too long, its end.

        Raises:
            jinja2.TemplateError: the template rejects these messages.
        """
        text: str = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        ids = self._tokenize(text, add_special_tokens=False)  # the template has written them
        kept, cut = self._end(ids, max_source_tokens), len(ids) > max_source_tokens
        return Prompt(kept, (self.start,), cut) if self.is_encoder_decoder else Prompt((), kept, cut)

    def _tokenize(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self.tokenizer(
            text, truncation=False, verbose=False, add_special_tokens=add_special_tokens
        ).input_ids
        return ids

    def _end(self, ids: list[int], room: int) -> tuple[int, ...]:
        """The last `room` tokens, the first of which is the token that begins every text, where `ids` begin with it."""
        if len(ids) <= room:
            return tuple(ids)
        begins_text = ids[0] == self.tokenizer.bos_token_id and ids.count(ids[0]) == 1
        return (ids[0], *ids[len(ids) - room + 1 :]) if begins_text else tuple(ids[len(ids) - room :])

    def ids(self, text: str) -> list[int]:
        """`text` as a model would write it: its tokens and the end of sequence."""
        ids = self._tokenize(text)
        if self.is_encoder_decoder:
            return ids
        ids = ids[1:] if ids and ids[0] == self.start else ids
        end = self.tokenizer.eos_token_id
        return ids if end is None else [*ids, end]

    def continuation(self, text: str) -> list[int]:
        """The tokens of `text` alone, without those that begin or end one."""
        return self._tokenize(text, add_special_tokens=False)

    def text(self, tokens: Sequence[int]) -> str:
        decoded: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return decoded

    def pieces(self, tokens: Iterable[int]) -> dict[int, str]:
        """Each token as it stands inside a text, with the space before a new word; for showing tokens one by one.

        The tokenizer's own decoder says it, of the token after a word: what it writes more than for the word alone.
        """
        word = next((token for token in range(self.size) if _is_word(self._decode([token]))), None)
        before = "" if word is None else self._decode([word])
        pieces = {}
        for token in sorted(set(tokens)):
            after = "" if word is None else self._decode([word, token])
            follows = bool(before) and after.startswith(before)
            pieces[token] = after.removeprefix(before) if follows else self._decode([token])
        return pieces

    def _decode(self, tokens: list[int]) -> str:
        decoded: str = self.tokenizer.decode(tokens)
        return decoded

    def fingerprint(self) -> str:
        """A name for the token map, equal for equal maps."""
        return json_digest(sorted(self.tokens.items()), 16)


def _is_word(text: str) -> bool:
    """Whether nothing that a decoder does between two tokens changes `text`."""
    return text.isascii() and text.isalnum()


def require_same_vocabulary(
    target: Vocabulary, draft: Vocabulary, target_name: str, draft_name: str, key: str = "draft"
) -> None:
    """Check that both tokenizers map the same tokens to the same ids: p and q must be over one vocabulary.

    `key` is the config's name of the draft.

    Raises:
        UserError: they differ; the message names the first difference.
    """
    if target.tokens == draft.tokens:
        return
    pairs = target.tokens.items() ^ draft.tokens.items()
    token, _ = min(pairs, key=lambda pair: (pair[1], pair[0]))
    raise UserError(
        f"{key}={draft_name}: its vocabulary is not that of target={target_name} "
        f"({len(draft.tokens)} and {len(target.tokens)} tokens; the first difference is {token!r}, "
        f"{draft.tokens.get(token, 'absent')} and {target.tokens.get(token, 'absent')}): "
        f"{key}.vocabulary=same needs one vocabulary; pick a draft of the target's family, or a model by itself with "
        "draft.vocabulary=auto"
    )
