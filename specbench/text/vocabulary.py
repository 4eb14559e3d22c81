"""Tokens: text to prompts and back, whether two models have the same tokens, and what tokens spell.

Tokenizers write their tokens down in different ways: byte-level BPE writes `Ġthe` and `Ċ`, sentencepiece `▁the` and
`<0x0A>`. They have bytes in common. Special tokens (end of sequence, padding, unknown) spell nothing.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specbench.engine.chat_template import render
from specbench.engine.session import Prompt
from specbench.errors import UserError, first_line
from specbench.files import json_digest

THINKING_TAGS = (
    ("<think>", "</think>"),  # Qwen 3, DeepSeek R1, SmolLM 3, GLM 4.5
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<seed:think>", "</seed:think>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),  # gpt-oss
)
THINKING_SOON = 32  # tokens before the end of a prompt in which a template may begin thinking
Message = Mapping[str, str]  # 'role' and 'content', as chat templates read them


class Vocabulary:
    """A tokenizer and what a decoder needs to know to begin a text.

    `start` is the token before the first generated one: the decoder's start token of an encoder-decoder model, the
    beginning (or, failing that, end) of text of a decoder-only model.
    """

    def __init__(
        self, tokenizer: Any, start: int, is_encoder_decoder: bool, family: str = "", rows: int | None = None
    ) -> None:
        """`rows`: tokens that the model has embeddings for; the tokenizer's others are none of this vocabulary."""
        self.tokenizer = tokenizer
        self.family = family  # what transformers calls the architecture
        self.start = start
        self.is_encoder_decoder = is_encoder_decoder
        named: dict[str, int] = tokenizer.get_vocab()
        self.tokens = {token: number for token, number in named.items() if rows is None or number < rows}
        self.size = max(self.tokens.values()) + 1

    def prompt(self, text: str, suffix: str, max_source_tokens: int) -> Prompt:
        """`text` as a prompt of at most `max_source_tokens` tokens.

        Of a longer text an encoder reads the beginning, and so does a decoder-only model if a `suffix` follows,
        which is never cut. Without a suffix a decoder-only model continues the text's end, which is kept.
        """
        if not text and not self.is_encoder_decoder:
            return Prompt((), (self.start,))
        ids = self._tokenize(text)
        if self.is_encoder_decoder:
            # Not ids[:room]: the tokenizer's end tokens remain when it cuts.
            cut = self._known(self.tokenizer(text, truncation=True, max_length=max_source_tokens).input_ids)
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

    @property
    def thinking_tags(self) -> tuple[str, str] | None:
        """The strings by which the chat template marks the beginning and the end of thinking; None if it has none."""
        template = str(getattr(self.tokenizer, "chat_template", None) or "")
        return next((tags for tags in THINKING_TAGS if tags[0] in template or tags[1] in template), None)

    def is_inside(self, tags: tuple[str, str], tokens: Sequence[int]) -> bool:
        """Whether a text of these tokens ends inside the tags."""
        text = self._decode(list(tokens[-THINKING_SOON:]))
        return text.rfind(tags[0]) > text.rfind(tags[1])

    def chat(self, messages: Sequence[Message], max_source_tokens: int) -> Prompt:
        """A conversation in the tokenizer's chat template, up to where the answer begins; if too long, its end.

        Raises jinja2.TemplateError if the template rejects these messages, fails, or takes too long.
        """
        text = self._rendered(messages)
        ids = self._tokenize(text, add_special_tokens=False)  # the template has written them
        if not ids:
            raise TemplateError("it writes no token")
        kept, cut = self._end(ids, max_source_tokens), len(ids) > max_source_tokens
        return Prompt(kept, (self.start,), cut) if self.is_encoder_decoder else Prompt((), kept, cut)

    def _rendered(self, messages: Sequence[Message]) -> str:
        if type(self.tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template:
            text: str = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
            return text  # a tokenizer with a format in code, and no template
        try:
            template: str = self.tokenizer.get_chat_template()
        except ValueError as error:  # several templates, and none is the default
            raise TemplateError(first_line(error)) from error
        return render(template, messages, self.tokenizer.special_tokens_map)

    def begins_itself(self, text: str) -> bool:
        """Whether `text` spells out the token that begins every text, which the tokenizer would put before it again."""
        return self._adds[0] and text.startswith(self.tokenizer.bos_token)

    @property
    def ends_prompts(self) -> bool:
        """Whether the tokenizer ends every text, also one that is to be continued; `prompt` leaves this end out."""
        return not self.is_encoder_decoder and self._adds[1]

    @cached_property
    def _adds(self) -> tuple[bool, bool]:
        """Whether the tokenizer puts the beginning of a text before it, and the end of a text after it."""
        plain, ids = self._tokenized("a", add_special_tokens=False), self._tokenized("a")
        begins = ids[:1] == [self.tokenizer.bos_token_id] != plain[:1]
        return begins, ids[-1:] == [self.tokenizer.eos_token_id] != plain[-1:]

    def _tokenize(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`; for a decoder-only model it begins once and does not end, since it is to be continued."""
        ids = self._tokenized(text, add_special_tokens)
        if self.is_encoder_decoder or not add_special_tokens:
            return ids
        if self.begins_itself(text) and ids[:2] == [self.tokenizer.bos_token_id] * 2:
            ids = ids[1:]
        return ids[:-1] if self.ends_prompts else ids

    def _tokenized(self, text: str, add_special_tokens: bool = True) -> list[int]:
        told = {"truncation": False, "verbose": False, "add_special_tokens": add_special_tokens}
        return self._known(self.tokenizer(text, **told).input_ids)

    def _known(self, ids: list[int]) -> list[int]:
        """`ids`. Raises UserError for one that the model has no embedding for, as an added token or template may be."""
        if ids and not 0 <= min(ids) <= max(ids) < self.size:
            odd = next(one for one in ids if not 0 <= one < self.size)
            raise UserError(
                f"the tokenizer makes a prompt with token {odd}, and the model has tokens 0 to {self.size - 1}: use "
                "the tokenizer that the weights were trained with, or a prompt without that token"
            )
        return ids

    def _end(self, ids: list[int], room: int) -> tuple[int, ...]:
        """The last `room` tokens, the first of which is the token that begins every text, if `ids` begin with it."""
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
        """Only the tokens of `text`, without tokens that begin or end one."""
        return self._tokenize(text, add_special_tokens=False)

    def text(self, tokens: Sequence[int]) -> str:
        decoded: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return decoded

    def pieces(self, tokens: Iterable[int]) -> dict[int, str]:
        """Each token as it stands inside a text, with the space before a new word; for showing tokens one by one.

        The tokenizer's own decoder writes a word and the token after it; a piece is what the word by itself lacks.
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

    `key` is the config's name of the draft. Raises UserError if they differ; the message names the first difference.
    """
    if target.tokens == draft.tokens:
        return
    pairs = target.tokens.items() ^ draft.tokens.items()
    token, _ = min(pairs, key=lambda pair: (pair[1], pair[0]))
    raise UserError(
        f"{key}={draft_name}: its vocabulary is not target={target_name}'s "
        f"({len(draft.tokens)} and {len(target.tokens)} tokens; the first difference is {token!r}, "
        f"{draft.tokens.get(token, 'absent')} and {target.tokens.get(token, 'absent')}): "
        f"{key}.vocabulary=same needs one vocabulary; pick a draft of the target's family, or a model by itself with "
        "draft.vocabulary=auto"
    )


MARK = "▁"  # sentencepiece's space
BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte token of sentencepiece
ALPHABET = bytes_to_unicode()  # the character that stands for each byte in byte-level BPE (Radford et al. 2019)
BYTES = {character: byte for byte, character in ALPHABET.items()}


class Spelling:
    """The tokens of one tokenizer as bytes, and bytes as its tokens.

    bytes_of: what each id spells; ids without an entry are special, or stand for no token.
    special: the special tokens, by how they are written.
    byte_tokens: id of the sentencepiece token of each byte.
    """

    def __init__(self, vocabulary: Vocabulary, key: str) -> None:
        """Read how `tokenizer` spells its tokens; `key` is the config's name of the model.

        Raises UserError if its format is not known.
        """
        self.vocabulary = vocabulary
        backend = getattr(vocabulary.tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UserError(f"{key}: its tokenizer has no tokenizer.json, so that what its tokens spell is not known")
        described = json.loads(backend.to_str())
        self.kind = _kind(described)
        if self.kind is None:
            raise UserError(
                f"{key}: its tokenizer is neither byte-level, nor sentencepiece, nor WordPiece, so that what its "
                "tokens spell is not known"
            )
        self._normalizer, self._pieces, self._model = backend.normalizer, backend.pre_tokenizer, backend.model
        tokenizer = vocabulary.tokenizer
        added = {one["id"]: one for one in described["added_tokens"]}
        named = {*tokenizer.all_special_ids, *(one for one, about in added.items() if about["special"])}
        self.unknown: int | None = tokenizer.unk_token_id
        self.special = {token: number for token, number in vocabulary.tokens.items() if number in named}
        self.byte_tokens: dict[int, int] = {}
        self.bytes_of: dict[int, bytes] = {}
        for token, number in vocabulary.tokens.items():
            if number in named:
                continue
            if self.kind == "sentencepiece" and number not in added and (byte := BYTE.fullmatch(token)) is not None:
                self.byte_tokens[int(byte[1], 16)] = number
            spelled = token.encode() if number in added else self._spelled(token)
            if spelled:
                self.bytes_of[number] = spelled
        self.spells_bytes = self.kind == "byte-level" or len(self.byte_tokens) == 256
        self.adds_space = self._adds_space()

    def _spelled(self, token: str) -> bytes | None:
        if self.kind == "byte-level":
            return bytes(BYTES[one] for one in token) if all(one in BYTES for one in token) else None
        if self.kind == "wordpiece":
            return token[2:].encode() if token.startswith("##") else f" {token}".encode()
        byte = BYTE.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte is not None else token.replace(MARK, " ").encode()

    def _adds_space(self) -> bool:
        """Whether the first token of a text spells a space that the text does not begin with."""
        ids = self.vocabulary.continuation("a")
        return bool(ids) and self.bytes_of.get(ids[0], b"").startswith(b" ")

    def tokens(self) -> dict[bytes, int]:
        """The token of each spelling; among several the first that is no byte token."""
        found: dict[bytes, int] = {}
        of_bytes = set(self.byte_tokens.values())
        for number in sorted(self.bytes_of, key=lambda number: (number in of_bytes, number)):
            found.setdefault(self.bytes_of[number], number)
        return found

    def continuation(self, spelled: bytes) -> list[int]:
        """The tokens of bytes that stand inside a text: no start token, no space added, no space lost.

        Characters are normalised as the tokenizer normalises them. Bytes that are no UTF-8 are spelled by byte tokens;
        without such, by the unknown token, or left out.
        """
        return [token for part in _parts(spelled) for token in self._of_part(part)]

    def _of_part(self, part: str | bytes) -> Iterator[int]:
        if isinstance(part, str):
            yield from self._of_text(part)
        elif self.kind == "byte-level":
            yield from (token.id for token in self._model.tokenize("".join(ALPHABET[byte] for byte in part)))
        else:
            found = [self.byte_tokens.get(byte, self.unknown) for byte in part]
            yield from (token for token in found if token is not None)

    def _of_text(self, text: str) -> Iterator[int]:
        core = text.strip(" ")
        before, after = text[: len(text) - len(text.lstrip(" "))], text[len(text.rstrip(" ")) :] if core else ""
        if core.strip() and self._normalizer is not None:  # it may strip what is white, which is part of this text
            normal = self._normalizer.normalize_str(core)
            core = normal[1:] if normal.startswith(MARK) and not core.startswith(MARK) else normal
        text = before + core + after
        space = "Ġ" if self.kind == "byte-level" else MARK
        if self._pieces is None:
            pieces = [text.replace(" ", MARK)]
        else:
            pieces = [piece for piece, _ in self._pieces.pre_tokenize_str(text)]
        if pieces and pieces[0].startswith(space) and not text.startswith((" ", space)):
            pieces[0] = pieces[0][1:]  # a space that the tokenizer puts before a text
        for piece in filter(None, pieces):
            yield from (token.id for token in self._model.tokenize(piece))


def _kind(described: dict[str, Any]) -> str | None:
    """How a tokenizer writes its tokens down, from its description in tokenizer.json."""
    steps = [*_steps(described["decoder"]), *_steps(described["pre_tokenizer"]), *_steps(described["normalizer"])]
    if any(step["type"] == "ByteLevel" for step in steps):
        return "byte-level"
    if any(step["type"] == "Metaspace" or MARK in (step.get("content"), step.get("prepend")) for step in steps):
        return "sentencepiece"
    if any(step["type"] == "WordPiece" for step in steps):
        return "wordpiece"
    return None


def _steps(step: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The steps of a decoder, normalizer or pre-tokenizer, in order for a sequence of them."""
    if step is None:
        return
    inner = next((step[name] for name in ("decoders", "pretokenizers", "normalizers") if name in step), None)
    if inner is None:
        yield step
    for one in inner or ():
        yield from _steps(one)


def _parts(spelled: bytes) -> Iterator[str | bytes]:
    """Text, and runs of bytes that are no UTF-8, in turn."""
    while spelled:
        try:
            yield spelled.decode()
            return
        except UnicodeDecodeError as error:
            if error.start:
                yield spelled[: error.start].decode()
            yield spelled[error.start : error.end]
            spelled = spelled[error.end :]


def unfinished(spelled: bytes) -> int:
    """How many bytes at the end of `spelled` begin an incomplete UTF-8 character."""
    for count in range(1, min(3, len(spelled)) + 1):
        byte = spelled[-count]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return count if count < length else 0
    return 0
