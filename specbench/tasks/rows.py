"""Rows from files: JSON lines, plain text, or a folder of either, gzip or not. Errors name the file and the line."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from specbench.errors import UserError

TEXT_FIELD = "text"  # what a line of a plain text file is called


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, or of all files of a folder in the order of their names."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
        if not files:
            raise UserError(f"{path}: the folder holds no file")
        for file in files:
            yield from read_rows(file)
        return
    is_json = ".jsonl" in path.name or ".json" in path.suffixes
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        if not is_json:
            yield {TEXT_FIELD: line.rstrip("\n")}
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {number}: not a JSON object ({error.msg})") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: not a JSON object but {type(row).__name__}")
        yield row


def _lines(path: Path) -> Iterator[str]:
    try:
        with _open(path) as lines:
            yield from lines
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start} of a block: {error.reason})") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: broken gzip file ({error})") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return open(path, encoding="utf-8")
