"""A file as text, as lines, and as JSON values; errors name the file and the line."""

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specbench.errors import UserError

LARGEST = 512 * 2**20  # bytes: more is no log of a benchmark
# A log's line may begin with '[', too: '[2026-01-01 10:00:00] Decode batch'.
BEGINS_JSON = re.compile(r"\s*(\{|\[\s*[{\]\[])")


@dataclass(frozen=True)
class Value:
    """A JSON object, and the `where` of it: the file, and its line where each line is an object."""

    where: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Document:
    """A text file."""

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> "Document":
        """The file, unpacked if it ends in .gz. Raises UserError where it is no text."""
        try:
            if path.is_file() and path.stat().st_size > LARGEST:
                raise UserError(f"{path}: larger than {LARGEST // 2**20} MiB; give the lines on speculative decoding")
            content = path.read_bytes()
            content = gzip.decompress(content) if path.suffix == ".gz" else content
            text = content.decode("utf-8-sig")
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
        except (EOFError, zlib.error) as error:
            raise UserError(f"{path}: broken gzip file ({error})") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not UTF-8 text; specbench read takes logs, metrics and JSON") from error
        if not text.strip():
            raise UserError(f"{path}: is empty")
        return cls(path, text)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def is_json(self) -> bool:
        return BEGINS_JSON.match(self.text) is not None

    @cached_property
    def values(self) -> list[Value]:
        """Its JSON objects: one for the whole file, those of its list, or one a line.

        Raises:
            UserError: the text ends in the middle of an object.
        """
        try:
            whole = json.loads(self.text)
        except json.JSONDecodeError as error:
            return list(self._by_line(error))
        whole = whole if isinstance(whole, list) else [whole]
        return [Value(str(self.path), one) for one in whole if isinstance(one, dict)]

    def _by_line(self, whole: json.JSONDecodeError) -> Iterator[Value]:
        several = False
        for number, line in enumerate(self.lines, 1):
            if not line.strip():
                continue
            try:
                one = json.loads(line)
            except json.JSONDecodeError as error:
                if several:
                    raise UserError(
                        f"{self.path}, line {number}: JSON that is cut off or damaged ({error.msg})"
                    ) from error
                raise UserError(
                    f"{self.path}, line {whole.lineno}: JSON that is cut off or damaged ({whole.msg})"
                ) from error
            several = True
            if isinstance(one, dict):
                yield Value(f"{self.path}, line {number}", one)

    def holds(self, *names: str) -> bool:
        """Whether one of `names` stands in the text as a JSON key."""
        return self.is_json and any(f'"{name}"' in self.text for name in names)


def whole_number(value: object, where: str, name: str) -> int:
    """`value` as a count. Raises UserError where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise UserError(f"{where}: {name} is {json.dumps(value)}, not a count")
    return int(value)


def counts(value: object, where: str, name: str) -> list[int]:
    """`value` as a list of counts. Raises UserError where it is none."""
    if not isinstance(value, list):
        raise UserError(f"{where}: {name} is not a list of counts")
    return [whole_number(one, where, name) for one in value]
