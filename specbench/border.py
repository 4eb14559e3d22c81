"""Input that others wrote, read once at the border: bytes of a regular file, text, JSON, and JSON of a declared type.

Every reader of a file or an answer that this process did not write just now goes through here, so that each has the
same limits: no pipe, device or folder is opened as a file (a pipe would block for ever), nothing unpacks to more than
`LARGEST`, JSON nests at most `DEEPEST` levels, its integers have 64 bits, its numbers are finite, its strings are
Unicode. Each failure is an `Unreadable`, whose message the reader prints after the file's name.

The types come from `records.run_record` and `records.documents`, as they stand: `parse(text, RunRecord)` compares a
value with a TypedDict or a dataclass (`recorded`), and the code after it may rely on what the type says. msgspec or
pydantic would be a compiled dependency that does the same for what is a page below, would not refuse half surrogate
pairs, and the same types also make the JSON Schema of `specbench results --schema`.
"""

import functools
import gzip
import io
import json
import math
import os
import stat
import types
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NotRequired, Required, Union, cast, get_args, get_origin, is_typeddict

from specbench.recorded import hints_of, is_recorded, required_of

LARGEST = 512 * 2**20  # bytes of a file, unpacked
LARGEST_DICTIONARY = 64 * 2**20  # bytes of memory in which a .xz is unpacked
LONGEST_LINE = 64 * 2**20  # bytes or characters
DENSEST = 200  # bytes of text for one of its compressed file; prose has 3 to 10, and what is made to unpack has 1,000
DEEPEST = 64  # levels of lists and objects
LARGEST_INTEGER = 2**63
SHOWN = 60  # characters of a value in a message
KINDS = (
    (stat.S_ISFIFO, "a pipe"), (stat.S_ISDIR, "a folder"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)  # fmt: skip


class Unreadable(ValueError):
    """Input is not as it should be, or could not be read; the message says why, on one line."""


# Bytes and text.


@contextmanager
def opened(file: Path, most: int | None = LARGEST) -> Iterator[IO[bytes]]:
    """A regular file to read, unpacked if its name ends in .gz or .xz; a link is followed to one.

    Raises Unreadable, also for what the block reads, if it cannot be read, is damaged, or is or unpacks to more than
    `most` bytes. None is for files that may be of any size, and are read line by line: only what is packed more than
    `DENSEST` is refused then.
    """
    try:
        with open_regular(file) as raw:
            size = os.fstat(raw.fileno()).st_size
            if most is not None and size > most:
                raise Unreadable(f"larger than {_size(most)}")
            unpacked = max(LARGEST, DENSEST * size) if most is None else most
            yield bounded(PACKED[file.suffix](raw), unpacked) if file.suffix in PACKED else raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Unreadable(f"broken gzip file: {error}") from error
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror or error})") from error


def read_bytes(file: Path, most: int = LARGEST) -> bytes:
    """The content of a file, unpacked if its name ends in .gz or .xz. Raises Unreadable as `opened`."""
    with opened(file, most) as stream:
        return stream.read()


def read_text(file: Path, most: int = LARGEST) -> str:
    """The text of a file. Raises Unreadable as `opened` does, and if it is not UTF-8."""
    return decoded(read_bytes(file, most))


def decoded(content: bytes) -> str:
    """`content` as text. Raises Unreadable if it is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8 text: byte {error.start}, {error.reason}") from error


def lines_of(stream: Any) -> Iterator[Any]:
    """The lines of a stream of bytes or text. Raises Unreadable for one of more than `LONGEST_LINE`."""
    while line := stream.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise Unreadable(f"a line of more than {_size(LONGEST_LINE)}")
        yield line


def open_regular(file: Path) -> IO[bytes]:
    """A regular file, open to read. Raises Unreadable for a pipe, a device or a folder, and OSError."""
    # Without O_NONBLOCK the opening of a pipe waits for a writer.
    number = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        require_regular(number)
        return open(number, "rb")
    except BaseException:
        os.close(number)
        raise


def require_regular(number: int) -> None:
    """Raises Unreadable if an open file is a pipe, a device or a folder."""
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in KINDS if is_kind(mode)), "no file")
        raise Unreadable(f"{kind}, not a regular file")


class _Bounded(io.RawIOBase):
    """A stream that raises Unreadable after `most` bytes."""

    def __init__(self, source: IO[bytes], most: int) -> None:
        self._source, self._most, self._left = source, most, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, as streams do."""
        piece = self._source.read(len(buffer))
        self._left -= len(piece)
        if self._left < 0:
            raise Unreadable(f"unpacks to more than {_size(self._most)}")
        buffer[: len(piece)] = piece
        return len(piece)


class _Xz:
    """The unpacked stream of a .xz file. Its dictionary, whose size the file sets, has at most 64 MiB."""

    def __init__(self, source: IO[bytes]) -> None:
        try:
            import lzma
        except ImportError as error:
            raise Unreadable("this Python was built without lzma, which unpacks .xz") from error
        self._source, self._unpacker = source, lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=LARGEST_DICTIONARY)
        self._broken = lzma.LZMAError

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end. Raises Unreadable if the file is damaged or cut short."""
        unpacked = b""
        while not unpacked and not self._unpacker.eof:
            more = self._source.read(2**16) if self._unpacker.needs_input else b""
            if self._unpacker.needs_input and not more:
                raise Unreadable("broken xz file: it is cut short")
            try:
                unpacked = self._unpacker.decompress(more, size)
            except self._broken as error:
                raise Unreadable(f"broken xz file: {error}") from error
        return unpacked


def _gz(source: IO[bytes]) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=source)


PACKED: Mapping[str, Callable[[IO[bytes]], Any]] = {".gz": _gz, ".xz": _Xz}  # what unpacks files of these endings


def bounded(source: Any, most: int) -> IO[bytes]:
    """A stream of `source` that raises Unreadable after `most` bytes."""
    return cast(IO[bytes], io.BufferedReader(_Bounded(source, most), 2**16))


def _size(count: int) -> str:
    return f"{count // 2**20} MiB" if count >= 2**20 else f"{count:,} bytes"


# JSON.


def parse(text: str | bytes, kind: Any = object, finite: bool = True) -> Any:
    """The JSON value of `text`, of the type `kind` (`object`: any).

    `kind` is made of TypedDict, dataclass, list, dict, Mapping, tuple, Literal, unions and plain types. Keys that a
    TypedDict or a dataclass does not name are allowed, as another version may have written them. Without `finite`,
    numbers may be NaN or infinite, as Python writes them. Raises Unreadable.
    """
    constant = not_json if finite else None
    try:
        value = json.loads(decoded(text) if isinstance(text, bytes) else text, parse_constant=constant)
    except RecursionError as error:
        raise Unreadable("it nests too deeply") from error
    except json.JSONDecodeError as error:
        raise Unreadable(f"not JSON: {error}") from error
    except Unreadable:
        raise
    except ValueError as error:  # of Python's own limit of digits
        raise Unreadable("an integer of thousands of digits") from error
    check(value, kind, finite)
    return value


def check(value: object, kind: Any = object, finite: bool = True) -> None:
    """Raises Unreadable if a value that JSON may hold is not of the type `kind`, or beyond the limits above."""
    _check(kind, finite)(value, "it", 0)


def not_json(name: str) -> Any:
    """Raises Unreadable for NaN and Infinity, which Python's JSON has."""
    raise Unreadable(f"not JSON: {name}")


Check = Callable[[Any, str, int], None]  # a value, its place for a message, and how deep it lies


@functools.cache
def _check(hint: Any, finite: bool) -> Check:
    """A function that compares a value with a type; built once for each type."""
    plain = PLAIN if finite else PLAIN | {float: _any_number, Any: _anything, object: _anything}
    if hint in plain:
        return plain[hint]
    if is_typeddict(hint) or is_recorded(hint):
        return _keyed(hint, finite)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Annotated, NotRequired, Required):
        return _check(arguments[0], finite)
    if origin in (Union, types.UnionType):
        return _union([_check(one, finite) for one in arguments], type(None) in arguments)
    if origin is Literal:
        return _literal(arguments)
    if origin is list:
        return _list(_check(arguments[0], finite))
    if origin is tuple:
        return _tuple([_check(one, finite) for one in arguments])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(_check(arguments[1], finite))
    raise TypeError(f"{hint}: no type of JSON")


def _wrong(value: object, at: str, wanted: str) -> Unreadable:
    return Unreadable(f"{at} is {shown(value)}, not {wanted}")


def shown(value: object) -> str:
    """A JSON value in a message: whole if it is short."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
        return "an integer beyond 64 bits"
    text = json.dumps(value)  # ASCII, so that half a surrogate pair is shown as it is escaped
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _of_any_kind(number: Check) -> Check:
    """Any value, whose numbers `number` compares."""

    def compare(value: Any, at: str, depth: int) -> None:
        if depth > DEEPEST:
            raise Unreadable(f"it nests more than {DEEPEST} levels deep")
        if isinstance(value, dict):
            for key, item in value.items():
                _string(key, f"a key of {at}", depth)
                compare(item, at, depth + 1)
        elif isinstance(value, list):
            for item in value:
                compare(item, at, depth + 1)
        elif isinstance(value, str):
            _string(value, at, depth)
        elif value is not None and not isinstance(value, bool):
            number(value, at, depth)

    return compare


def _string(value: Any, at: str, depth: int) -> None:
    if not isinstance(value, str):
        raise _wrong(value, at, "text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Unreadable(f"{at} holds half a surrogate pair, which is no character") from error


def _integer(value: Any, at: str, depth: int) -> None:
    if type(value) is not int or not -LARGEST_INTEGER <= value < LARGEST_INTEGER:
        raise _wrong(value, at, "a whole number of 64 bits")


def _any_number(value: Any, at: str, depth: int) -> None:
    if type(value) is not float:
        if type(value) is not int:
            raise _wrong(value, at, "a number")
        _integer(value, at, depth)


def _number(value: Any, at: str, depth: int) -> None:
    _any_number(value, at, depth)
    if not math.isfinite(value):
        raise Unreadable(f"{at} is too large a number")


def _boolean(value: Any, at: str, depth: int) -> None:
    if not isinstance(value, bool):
        raise _wrong(value, at, "true or false")


def _null(value: Any, at: str, depth: int) -> None:
    if value is not None:
        raise _wrong(value, at, "null")


_finite, _anything = _of_any_kind(_number), _of_any_kind(_any_number)
PLAIN: dict[Any, Check] = {
    Any: _finite, object: _finite, str: _string, int: _integer, float: _number, bool: _boolean, type(None): _null,
}  # fmt: skip


def _keyed(record: Any, finite: bool) -> Check:
    required = required_of(record)
    checks = {key: _check(hint, finite) for key, hint in hints_of(record).items()}
    unnamed = _check(object, finite)

    def compare(value: Any, at: str, depth: int) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, at, "an object")
        if lacking := required - value.keys():
            raise Unreadable(f"{at} has no {min(lacking)}")
        for key, item in value.items():
            if (one := checks.get(key, unnamed)) is unnamed:
                _string(key, f"a key of {at}", depth)
            one(item, key if at == "it" else f"{at}.{key}", depth + 1)

    return compare


def _mapping(item: Check) -> Check:
    def compare(value: Any, at: str, depth: int) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, at, "an object")
        for key, one in value.items():
            _string(key, f"a key of {at}", depth)
            item(one, at, depth + 1)

    return compare


def _list(item: Check) -> Check:
    def compare(value: Any, at: str, depth: int) -> None:
        if not isinstance(value, list):
            raise _wrong(value, at, "a list")
        for one in value:
            item(one, at, depth + 1)

    return compare


def _tuple(items: list[Check]) -> Check:
    def compare(value: Any, at: str, depth: int) -> None:
        if not isinstance(value, list) or len(value) != len(items):
            raise _wrong(value, at, f"a list of {len(items)}")
        for item, one in zip(items, value, strict=True):
            item(one, at, depth + 1)

    return compare


def _literal(values: tuple[object, ...]) -> Check:
    def compare(value: Any, at: str, depth: int) -> None:
        if not any(value == one and type(value) is type(one) for one in values):
            raise _wrong(value, at, " or ".join(map(shown, values)))

    return compare


def _union(parts: list[Check], optional: bool) -> Check:
    def compare(value: Any, at: str, depth: int) -> None:
        if value is None and optional:
            return
        first: Unreadable | None = None
        for part in parts:
            try:
                part(value, at, depth)
                return
            except Unreadable as error:
                first = first or error
        assert first is not None
        raise first

    return compare
