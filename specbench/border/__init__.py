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

from specbench.border.regular_files import (
    LARGEST,
    LONGEST_LINE,
    PACKED,
    Unreadable,
    lines_of,
    open_regular,
    opened,
    read_bytes,
    read_text,
    require_regular,
)
from specbench.border.typed_json import DEEPEST, LARGEST_INTEGER, check, not_json, parse, shown

__all__ = [
    "DEEPEST",
    "LARGEST",
    "LARGEST_INTEGER",
    "LONGEST_LINE",
    "PACKED",
    "Unreadable",
    "check",
    "lines_of",
    "not_json",
    "open_regular",
    "opened",
    "parse",
    "read_bytes",
    "read_text",
    "require_regular",
    "shown",
]
