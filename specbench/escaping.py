"""Text that others wrote, made safe for a file's name, a terminal, a cell of CSV and a cell of Markdown."""

import re

MOST_BYTES = 230  # of an id, in UTF-8; with '.json.xz' and the ending of an unfinished file it stays below 255
SEPARATORS = re.compile(r"[/\\\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# All control characters but the line feed and the tab, and halves of surrogate pairs, which no encoding has.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
FORMULA = ("=", "@", "+", "-", "\t")
TAG = re.compile(r"<(?=[A-Za-z/!?])")


def file_name(names: str, end: str = "") -> str:
    """`names` and `end` as the name of a file of one folder; unchanged if it is one already.

    Separators and control characters become '-', dots at the start are dropped, and `names` is cut to `MOST_BYTES`
    together with `end`. The caller's `end` holds a digest of the full names if two of them must not be one file.
    """
    whole = SEPARATORS.sub("-", names)
    if whole.startswith("."):
        whole = whole.lstrip(".-")
    room = MOST_BYTES - len(end.encode())
    return whole.encode()[:room].decode(errors="ignore") + end


def printable(text: str) -> str:
    """`text` without control characters, so that it cannot move a terminal's cursor, hide lines or set colours."""
    return CONTROL.sub("", text)


def one_line(text: str) -> str:
    """`text` for a cell of a table on a terminal: printable, without line feeds and tabs."""
    return re.sub(r"[\n\t]+", " ", printable(text))


def csv_cell(value: object) -> object:
    """`value` for CSV: a text that a spreadsheet would compute as a formula begins with an apostrophe.

    Numbers remain as they are, also as text ('-0.5').
    """
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(FORMULA) and not _is_number(text) else text


def markdown_cell(value: object) -> str:
    """`value` for a cell of a Markdown table: one line, with no column and no HTML tag of its own."""
    return TAG.sub("&lt;", one_line(str(value))).replace("|", r"\|")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
