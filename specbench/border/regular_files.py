"""Bytes and text that others wrote: of regular files, within limits, unpacked if they are packed."""

import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

LARGEST = 512 * 2**20  # bytes of a file, unpacked
LARGEST_DICTIONARY = 64 * 2**20  # bytes of memory in which a .xz is unpacked
LONGEST_LINE = 64 * 2**20  # bytes or characters
DENSEST = 200  # bytes of text for one of its compressed file; prose has 3 to 10, and what is made to unpack has 1,000
KINDS = (
    (stat.S_ISFIFO, "a pipe"), (stat.S_ISDIR, "a folder"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)  # fmt: skip


class Unreadable(ValueError):
    """Input is not as it should be, or could not be read; the message says why, on one line."""


@contextmanager
def opened(file: Path, most: int | None = LARGEST) -> Iterator[IO[bytes]]:
    """A regular file to read, unpacked if its name ends in .gz or .xz; a link is followed to one.

    Raises Unreadable, also for what the block reads, if it cannot be read, is damaged, or is or unpacks to more than
    `most` bytes. None is for files of any size that are read line by line; of these it refuses only what is packed more
    densely than `DENSEST`.
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
