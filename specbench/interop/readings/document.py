"""A file as lines and as JSON values, read piece by piece; errors name the file and the line.

Memory is bounded by a line or a JSON value, not by the file, and a compressed file that unpacks to more than `LARGEST`
is refused before it fills the disk.
"""

import codecs
import gzip
import io
import json
import math
import re
import sys
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from specbench import border
from specbench.border import Unreadable
from specbench.errors import UserError

LARGEST = 512 * 2**20  # bytes, unpacked: more is no log of a benchmark
LARGEST_VALUE = 64 * 2**20  # bytes of one line, or of one JSON value
PIECE = 2**20
HEAD = 2**16  # bytes that tell whether it is JSON
STDIN = "-"
GZIP = b"\x1f\x8b"
BOM = codecs.BOM_UTF8
# A log's line may also begin with '[': '[2026-01-01 10:00:00] Decode batch'.
BEGINS_JSON = re.compile(rb"\s*(\{|\[\s*[{\]\[])")
GAP = re.compile(r"[\s,]*")


@dataclass(frozen=True)
class Value:
    """A JSON object, and the `where` of it: the file, and its line if each line is an object."""

    where: str
    fields: Mapping[str, Any]


class Document:
    """A text file. `lines` and `values` read it from its beginning each time."""

    def __init__(self, path: Path, opened: IO[bytes]) -> None:
        """The document of an open file, which is closed when the document is no longer used."""
        self.path = path
        self._opened = opened
        self._found: dict[bytes, bool] = {}
        self._begin = len(BOM) if self._piece(0, len(BOM)) == BOM else 0
        weakref.finalize(self, opened.close)

    @classmethod
    def read(cls, path: Path) -> "Document":
        """The file, unpacked if it is compressed by gzip; `-` is the standard input.

        Raises UserError if it cannot be read, is no text, or is too large.
        """
        try:
            opened = _spooled(path, sys.stdin.buffer) if str(path) == STDIN else border.open_regular(path)
            if opened.read(len(GZIP)) == GZIP:
                opened.seek(0)
                with opened, gzip.open(opened) as packed:
                    opened = _spooled(path, packed)
            opened.seek(0)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{path}: broken gzip file ({error})") from error
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
        except Unreadable as error:
            raise UserError(f"{path}: {error}") from error
        document = cls(path, opened)
        if opened.seek(0, io.SEEK_END) > LARGEST:
            raise too_large(path)
        first = document._piece(document._begin, PIECE)
        if b"\0" in first:
            raise UserError(f"{path}: not UTF-8 text; specbench read takes logs, metrics and JSON")
        if not document._piece(document._first, 1):
            raise UserError(f"{path}: is empty")
        return document

    @classmethod
    def of_text(cls, path: Path, text: str) -> "Document":
        """A document that is already in memory; `path` is what errors call it."""
        return cls(path, io.BytesIO(text.encode()))

    @property
    def lines(self) -> Iterator[str]:
        """The text's lines. A line that is not UTF-8 is read as Latin-1. Raises UserError if a line is too long."""
        rest = b""
        for piece in self._pieces():
            *whole, rest = (rest + piece).split(b"\n")
            yield from map(_decoded, whole)
            if len(rest) > LARGEST_VALUE:
                raise UserError(f"{self.path}: a line of more than {LARGEST_VALUE // 2**20} MiB")
        if rest:
            yield _decoded(rest)

    @property
    def is_json(self) -> bool:
        return BEGINS_JSON.match(self._piece(self._first, HEAD)) is not None

    @property
    def values(self) -> Iterator[Value]:
        """The text's JSON objects: one for the whole file, the elements of its list, or one per line.

        Raises UserError if the text ends in the middle of an object, or nests too deeply.
        """
        if self._piece(self._first, 1) == b"[":
            return self._of_list()
        return self._by_line() if self._is_line() else self._of_whole()

    def has(self, *marks: str) -> bool:
        """Whether one of `marks` occurs in the text."""
        return any(self._has(mark.encode()) for mark in marks)

    def holds(self, *names: str) -> bool:
        """Whether one of `names` stands in the text as a JSON key."""
        return self.is_json and self.has(*(f'"{name}"' for name in names))

    def holds_all(self, *names: str) -> bool:
        """Whether each of `names` stands in the text as a JSON key."""
        return all(map(self.holds, names))

    def _has(self, mark: bytes) -> bool:
        if mark not in self._found:
            before = b"\n"  # so that a mark that begins with a new line fits the first line
            found = False
            for piece in self._pieces():
                before += piece
                if found := mark in before:
                    break
                before = before[-len(mark) :]
            self._found[mark] = found
        return self._found[mark]

    def _piece(self, start: int, size: int) -> bytes:
        self._opened.seek(start)
        return self._opened.read(size)

    def _pieces(self, start: int | None = None) -> Iterator[bytes]:
        start = self._begin if start is None else start
        while piece := self._piece(start, PIECE):  # seeks each time: two readers of one document are independent
            start += len(piece)
            yield piece

    @cached_property
    def _first(self) -> int:
        """The position of the first character that is not blank."""
        start = self._begin
        for piece in self._pieces():
            if rest := piece.lstrip():
                return start + len(piece) - len(rest)
            start += len(piece)
        return start

    def _is_line(self) -> bool:
        """Whether the first line that is not blank is a JSON value by itself."""
        first = next(line for line in self.lines if line.strip())
        try:
            border.parse(first)
        except Unreadable:
            return False
        return True

    def _by_line(self) -> Iterator[Value]:
        for number, line in enumerate(self.lines, 1):
            if not line.strip():
                continue
            one = self._parsed(line, f", line {number}")
            if isinstance(one, dict):
                yield Value(f"{self.path}, line {number}", one)

    def _of_whole(self) -> Iterator[Value]:
        content = self._piece(self._begin, LARGEST_VALUE + 1)
        if len(content) > LARGEST_VALUE:
            raise self._too_large_value()
        one = self._parsed(_decoded(content))
        if isinstance(one, dict):
            yield Value(str(self.path), one)

    def _of_list(self) -> Iterator[Value]:
        """The objects of a list, of which only one is in memory."""
        decoder, decode = (
            json.JSONDecoder(parse_constant=border.not_json),
            codecs.getincrementaldecoder("utf-8")("replace").decode,
        )
        pieces = self._pieces(self._first + 1)
        text, at = decode(next(pieces, b"")), 0
        while True:
            at = _after_gap(text, at)
            if text.startswith("]", at):
                return
            try:
                one, at = decoder.raw_decode(text, at)
            except RecursionError as error:
                raise self._damaged(error) from error
            except ValueError as error:
                text, at = text[at:], 0
                if len(text) > LARGEST_VALUE:
                    raise self._too_large_value() from error
                more = _several(pieces, max(PIECE, len(text)))
                if not more:
                    raise self._damaged(error) from error
                text += decode(more)
                continue
            try:
                border.check(one)
            except Unreadable as error:
                raise self._damaged(error) from error
            if isinstance(one, dict):
                yield Value(str(self.path), one)

    def _parsed(self, text: str, line: str = "") -> Any:
        """The JSON value of `text`; `line` is where an error is, if that is not its own line of `text`."""
        try:
            return border.parse(text)
        except Unreadable as error:
            cause = error.__cause__
            if not line and isinstance(cause, json.JSONDecodeError):
                line = f", line {cause.lineno}"
            raise self._damaged(cause if isinstance(cause, ValueError | RecursionError) else error, line) from error

    def _damaged(self, error: ValueError | RecursionError, line: str = "") -> UserError:
        if isinstance(error, RecursionError):
            return UserError(f"{self.path}{line}: JSON that nests too deeply to be a log or a response")
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        return UserError(f"{self.path}{line}: JSON that is cut off or damaged ({reason})")

    def _too_large_value(self) -> UserError:
        return UserError(
            f"{self.path}: a JSON value of more than {LARGEST_VALUE // 2**20} MiB; give the part on speculative "
            "decoding"
        )


def too_large(path: Path) -> UserError:
    """The error for a file that is larger than any log of a benchmark."""
    return UserError(f"{path}: larger than {LARGEST // 2**20} MiB unpacked; give the lines on speculative decoding")


def whole_number(value: object, where: str, name: str) -> int:
    """`value` as a count. Raises UserError if it is no count."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        count = int(value)
        if count == value and count >= 0:
            return count
    raise UserError(f"{where}: {name} is {json.dumps(value)}, not a count")


def whole_numbers(fields: Mapping[str, Any], names: Iterable[str], where: str) -> list[int]:
    """The counts under these names. Raises UserError if one is no count."""
    return [whole_number(fields.get(name), where, name) for name in names]


def number(value: object, where: str, name: str) -> float:
    """`value` as a finite number that is not negative. Raises UserError for another value."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value)
    raise UserError(f"{where}: {name} is {json.dumps(value)}, not a number of at least 0")


def counts(value: object, where: str, name: str) -> list[int]:
    """`value` as a list of counts. Raises UserError for another value."""
    if not isinstance(value, list):
        raise UserError(f"{where}: {name} is not a list of counts")
    return [whole_number(one, where, name) for one in value]


def nested(fields: Mapping[str, Any], name: str, depth: int = 4) -> Iterator[Mapping[str, Any]]:
    """Each object of this name in `fields` and in the objects within them, up to `depth` levels down."""
    for key, inner in fields.items():
        if isinstance(inner, dict) and key == name:
            yield inner
        elif isinstance(inner, dict) and depth:
            yield from nested(inner, name, depth - 1)


def _spooled(path: Path, source: Iterable[bytes] | IO[bytes] | gzip.GzipFile) -> IO[bytes]:
    """A temporary file with what a stream holds, which can be read more than once."""
    spool = tempfile.TemporaryFile()  # noqa: SIM115
    try:
        while piece := source.read(PIECE):  # type: ignore[union-attr]
            if spool.tell() + len(piece) > LARGEST:
                raise too_large(path)
            spool.write(piece)
    except BaseException:
        spool.close()
        raise
    spool.seek(0)
    return spool


def _decoded(line: bytes) -> str:
    line = line.removesuffix(b"\r")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")


def _after_gap(text: str, at: int) -> int:
    match = GAP.match(text, at)
    return match.end() if match else at


def _several(pieces: Iterator[bytes], size: int) -> bytes:
    """Pieces of at least `size` bytes together, or what is left."""
    found = bytearray()
    for piece in pieces:
        found += piece
        if len(found) >= size:
            break
    return bytes(found)
