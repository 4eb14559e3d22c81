"""Rows from files: JSON lines or a JSON array, CSV, parquet, what `datasets` saved, plain text; or a folder of these.

Text may be gzip. Errors name file and line.
"""

import csv
import io
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench import border
from specbench.border import Unreadable
from specbench.errors import UserError, first_line

TEXT_FIELD = "text"  # what a line of a plain text file is called
# The first bytes of files that are no rows.
FOREIGN = {
    b"%PDF": "a PDF", b"PK\x03\x04": "a zip archive (as .docx and .xlsx are)", b"GGUF": "a model in GGUF",
    b"\x89PNG": "a picture", b"\xff\xd8\xff": "a picture",
    b"BZh91AY&": "compressed by bzip2", b"(\xb5/\xfd": "compressed by zstandard",
}  # fmt: skip
PACKERS = {b"\x1f\x8b": ("gzip", ".gz"), b"\xfd7zXZ": ("xz", ".xz")}  # what is unpacked, by the end of its name
JSON, CSV, PARQUET = (".json", ".jsonl", ".ndjson"), (".csv", ".tsv"), ".parquet"
MODEL = "config.json", "adapter_config.json"  # one of these describes the weights in its folder
SAVED = "state.json", "dataset_dict.json"  # what `save_to_disk` of `datasets` puts beside a split, and beside splits


@dataclass(frozen=True)
class Row:
    """The fields of a row, and `where` it stands: the file and its line."""

    where: str
    fields: dict[str, object]

    def text(self, name: str, way_out: str) -> str:
        """The text in the field `name`. Raises UserError, which ends in `way_out`, if there is no text in it."""
        value = self.fields.get(name)
        if isinstance(value, str):
            return value
        if name in self.fields:
            raise UserError(f"{self.where}: field '{name}' holds {_described(value)}, not text; {way_out}")
        raise UserError(f"{self.where}: no field '{name}' (it has {', '.join(sorted(self.fields))}); {way_out}")


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, or of all files of a folder in the order of their names.

    The suffix gives the format: .jsonl, .json or .ndjson is an object a line, or one array of objects; .csv or .tsv
    names its fields in the first line; .parquet is a table; in any other file each line is a row with the field `text`.
    A folder may also be one that `datasets` saved. A byte order mark is left out. Raises UserError for no file, no row,
    or a row that cannot be read; the message names file and line.
    """
    if any((path / name).is_file() for name in SAVED):
        yield from _saved_rows(path)
        return
    if path.is_dir():
        if any((path / name).is_file() for name in MODEL):
            raise UserError(f"{path}: is the folder of a model, not rows of text; as a model give target={path}")
        files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
        if not files:
            raise UserError(f"{path}: the folder holds no file")
        for file in files:
            yield from read_rows(file)
        return
    suffixes = path.suffixes
    _require_rows(path)
    if any(suffix in JSON for suffix in suffixes):
        yield from _json_rows(path)
    elif path.suffix == PARQUET:
        yield from _parquet_rows(path)
    elif any(suffix in CSV for suffix in suffixes):
        yield from _csv_rows(path, is_tsv=".tsv" in suffixes)
    else:
        for number, line in enumerate(_lines(path), start=1):
            if line.strip():
                yield Row(f"{path}, line {number}", {TEXT_FIELD: line.rstrip("\n")})


def _require_rows(path: Path) -> None:
    """Raises UserError if a file begins as one of another kind does, whose bytes would be read as prompts."""
    try:
        with border.open_regular(path) as opened:
            start = opened.read(8)
    except (OSError, Unreadable):
        return  # the reader of the format says why
    for mark, (packer, ending) in PACKERS.items():
        if start.startswith(mark) and path.suffix != ending:
            raise UserError(f"{path}: is compressed by {packer}; give it a name that ends in {ending}")
    if (kind := next((kind for mark, kind in FOREIGN.items() if start.startswith(mark)), None)) is not None:
        raise UserError(f"{path}: is {kind}, not rows of text; give .jsonl, .json, .csv, .tsv, .parquet or plain text")


def _saved_rows(path: Path) -> Iterator[Row]:
    """The rows of a folder that `save_to_disk` of `datasets` wrote."""
    if not (path / SAVED[0]).is_file():
        splits = sorted(one.name for one in path.iterdir() if (one / SAVED[0]).is_file())
        raise UserError(f"{path}: holds several splits ({', '.join(splits)}); name one of them, {path}/{splits[0]}")
    import datasets  # seconds of import

    try:
        yield from _numbered(path, datasets.load_from_disk(str(path)))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a data set that was saved ({first_line(error)})") from error


def _parquet_rows(path: Path) -> Iterator[Row]:
    from pyarrow import ArrowException, parquet  # type: ignore[import-untyped]

    try:
        with border.open_regular(path) as opened:
            groups = (batch.to_pylist() for batch in parquet.ParquetFile(opened).iter_batches())
            yield from _numbered(path, itertools.chain.from_iterable(groups))
    except Unreadable as error:
        raise UserError(f"{path}: {error}") from error
    except (ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read as parquet ({first_line(error)})") from error


def _numbered(path: Path, rows: Iterable[object]) -> Iterator[Row]:
    """Rows of a file without lines."""
    for number, fields in enumerate(rows, start=1):
        where = f"{path}, row {number}"
        if not isinstance(fields, dict):
            raise _no_object(where, fields)
        yield Row(where, fields)


def _no_object(where: str, found: object) -> UserError:
    said = f"not a JSON object but {_described(found)}"
    return UserError(f'{where}: {said}; write a row as {{"prompt": "…"}}, or with the fields that the task reads')


def _is_array(path: Path) -> bool:
    """Whether a JSON file is one array, not an object a line."""
    first = next((line.strip() for line in _lines(path) if line.strip()), "")
    return first.startswith("[")


def _json_rows(path: Path) -> Iterator[Row]:
    if _is_array(path):
        try:
            array = border.parse("".join(_lines(path, most=border.LARGEST)))
        except Unreadable as error:
            cause = error.__cause__
            at = f", line {cause.lineno}" if isinstance(cause, json.JSONDecodeError) else ""
            reason = cause.msg.removesuffix(" at") if isinstance(cause, json.JSONDecodeError) else error
            raise UserError(f"{path}{at}: not a JSON array ({reason})") from error
        yield from _numbered(path, array)
        return
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            fields = border.parse(line)
        except Unreadable as error:
            cause = error.__cause__
            # Not the whole message of `json`, which counts lines within this one.
            fault: object = error
            if isinstance(cause, json.JSONDecodeError):
                fault = f"{cause.msg.removesuffix(' at')}, character {cause.pos + 1}"
            raise UserError(f"{where}: not a JSON object on one line ({fault})") from error
        if not isinstance(fields, dict):
            raise _no_object(where, fields)
        yield Row(where, fields)


def _csv_rows(path: Path, is_tsv: bool) -> Iterator[Row]:
    lines = _lines(path, newline="")
    first = next(lines, "")
    # Spreadsheets write semicolons where the comma is the decimal sign.
    delimiter = "\t" if is_tsv else ";" if ";" in first and "," not in first else ","
    csv.field_size_limit(sys.maxsize)  # an article may be longer than the module's 131,072 characters
    reader = csv.reader(itertools.chain([first], lines), delimiter=delimiter, strict=True)
    try:
        names = next(reader, [])
        named = names[1:] if len(names) > 1 else names  # the first may be the index that pandas writes, without a name
        if len(set(names)) < len(names) or not all(named):
            raise UserError(f"{path}, line 1: must name the fields, each differently (it has {', '.join(names)})")
        for values in reader:
            where = f"{path}, line {reader.line_num}"
            if values and len(values) != len(names):
                raise UserError(
                    f"{where}: {len(values)} values, and line 1 names {len(names)} fields ({', '.join(names)}); "
                    f"put text that holds {delimiter!r} in double quotes"
                )
            if values:
                yield Row(where, dict(zip(names, values, strict=True)))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not CSV ({error})") from error


def _lines(path: Path, newline: str | None = None, most: int | None = None) -> Iterator[str]:
    try:
        with border.opened(path, most) as packed:
            yield from border.lines_of(io.TextIOWrapper(packed, encoding="utf-8-sig", newline=newline))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason}); save it as UTF-8") from error
    except Unreadable as error:
        raise UserError(f"{path}: {error}") from error


def _described(value: Any) -> str:
    """'the number 3', 'a list': what a JSON value is."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return f"the number {value}"
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else "a string"


PROMPT_IDS = ("prompt_token_ids", "prompt_tokens", "prompt_ids")  # fields with a prompt's token ids
TEXT_IDS = ("prompt",)  # fields that may hold them in place of text


def prompt_ids_of(row: Row) -> list[int] | None:
    """The prompt as token ids, as servers log it; None if the row has none.

    A list of messages or turns in a field that may hold text is a conversation. Raises UserError for a list of anything
    else.
    """
    name = next((name for name in (*PROMPT_IDS, *TEXT_IDS) if isinstance(row.fields.get(name), list)), None)
    if name is None:
        return None
    values = row.fields[name]
    is_conversation = name in TEXT_IDS and isinstance(values, list) and all(isinstance(v, dict | str) for v in values)
    return None if is_conversation else token_ids(row, name)


def token_ids(row: Row, name: str) -> list[int]:
    """The list of token ids in the field `name`. Raises UserError for any other element."""
    values = row.fields[name]
    assert isinstance(values, list)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(f"{row.where}: field '{name}' holds {value!r}, not a token id")
    return list(values)


# A row's conversation is {"messages": [{"role": "user", "content": "…"}, …]}, as chat models are given it.
MESSAGES_FIELD = "messages"
Message = dict[str, str]  # 'role' and 'content'


def messages_of(row: Row, field: str) -> list[Message] | None:
    """The messages in `field`, or in `messages` if the row lacks it; None if there is text instead.

    Raises UserError if a message has no role or no text.
    """
    found = row.fields.get(field if field in row.fields else MESSAGES_FIELD)
    if not isinstance(found, list) or (found and all(isinstance(turn, str) for turn in found)):
        return None
    if not found:
        raise UserError(f"{row.where}: the conversation is empty")
    return [_message(row, number, message) for number, message in enumerate(found, start=1)]


def _message(row: Row, number: int, message: object) -> Message:
    role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
    if not isinstance(role, str) or not isinstance(content, str):
        raise UserError(f'{row.where}: message {number} is not {{"role": "…", "content": "…"}} with text in both')
    return {"role": role, "content": content}


def split_answer(messages: Sequence[Message]) -> tuple[list[Message], str | None]:
    """The messages to answer, and the answer if the last message is the assistant's."""
    if messages[-1]["role"] == "assistant":
        return list(messages[:-1]), messages[-1]["content"]
    return list(messages), None


def interleaved(questions: Sequence[str], answers: Sequence[str]) -> list[Message]:
    """A conversation of the user's `questions`, all but the last of them answered."""
    messages = [{"role": "user", "content": questions[0]}]
    for answer, question in zip(answers, questions[1:], strict=True):
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
    return messages


def transcript(messages: Sequence[Message]) -> str:
    """The conversation for a reader, a line for each message."""
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)
