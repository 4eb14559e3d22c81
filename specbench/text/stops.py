"""Strings that end a completion, wherever in a block of tokens they are completed."""

from collections.abc import Iterable, Sequence

from specbench.text.vocabulary import Spelling, Vocabulary


class Stops:
    """Stop strings, looked for in the text of a completion, byte by byte; the prompt's text is not part of it.

    Special tokens count as they are written, as in `StopStringCriteria` of `transformers`.
    """

    def __init__(self, strings: Iterable[str], vocabulary: Vocabulary) -> None:
        """Raises UserError if the tokenizer's format is not known."""
        spelling = Spelling(vocabulary, "target")
        self._strings = [one.encode() for one in strings]
        self._before = max(map(len, self._strings)) - 1  # bytes that a string may have before the newest token
        # The decoder of an encoder-decoder begins a text, and the space before its first word is not part of it.
        self._strips = vocabulary.is_encoder_decoder and spelling.adds_space
        self._bytes = {number: token.encode() for token, number in spelling.special.items()} | spelling.bytes_of

    def place(self, written: Sequence[int], block: Sequence[int]) -> int | None:
        """How many tokens of `block`, which follows the completion `written`, complete a string; None if all do not."""
        text, first = b"", len(written)
        while first and len(text) < self._before:
            first -= 1
            text = self._bytes.get(written[first], b"") + text
        if self._strips and not first:
            text = text.removeprefix(b" ")
        text = text[max(0, len(text) - self._before) :]
        for count, token in enumerate(block, start=1):
            spelled = self._bytes.get(token, b"")
            text += spelled.removeprefix(b" ") if self._strips and count == 1 and not written else spelled
            if any(one in text for one in self._strings):
                return count
        return None


def stops_of(strings: Sequence[str], vocabulary: Vocabulary) -> Stops | None:
    """The stop strings of a config; None if there are none."""
    return Stops(strings, vocabulary) if strings else None
