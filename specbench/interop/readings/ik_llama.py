"""ik_llama.cpp: the table of `llama-spec-bench`, a row for each task and kind of draft ('stage').

Its acceptance by position is over all rounds, and rounded to a tenth of a percent.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from specbench.errors import UserError
from specbench.interop.readings.document import Document
from specbench.interop.readings.reading import (
    ACCEPTED,
    DIFFERENT_LENGTHS,
    DRAFTED,
    LENGTH,
    PASSES,
    Reading,
    Tally,
    marginals,
    mean_of_requests,
    together,
    totals,
)

COLUMNS = ("task", "stage", "rounds", "accepted", "a.len", "pos accept")


def is_table(document: Document) -> bool:
    """Whether the document has the table of ik_llama.cpp's `llama-spec-bench`."""
    return not document.is_json and document.has("pos accept") and any(map(_is_head, document.lines))


def read_table(document: Document) -> Reading:
    """The reading of ik_llama.cpp's table: a request for each row, a reading for each kind of draft ('stage')."""
    columns: list[str] = []
    kinds: dict[str, list[tuple[Tally, float]]] = defaultdict(list)
    for number, line in enumerate(document.lines, 1):
        if _is_head(line):
            columns = _cells(line)
        elif columns and len(cells := _cells(line)) == len(columns) and not set(line) <= set("|-: "):
            row = dict(zip(columns, cells, strict=True))
            if "/" in row["accepted"]:  # a row without a draft has none
                kinds[row["stage"]].append(_of_row(row, f"{document.path}, line {number}"))
    if not kinds:
        raise UserError(f"{document.path}: the table of llama-spec-bench has no row with accepted and drafted tokens")
    readings = {name: _of_rows(rows) for name, rows in kinds.items()}
    if len(readings) == 1:
        return next(iter(readings.values()))
    return replace(_of_rows([row for rows in kinds.values() for row in rows]), kinds=readings)


def _is_head(line: str) -> bool:
    return set(COLUMNS) <= set(_cells(line))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if "|" in line else []


def _of_row(row: Mapping[str, str], where: str) -> tuple[Tally, float]:
    """The passes of a row, and its printed mean length."""
    try:
        rounds, length = int(row["rounds"]), float(row["a.len"])
        accepted, drafted = map(int, row["accepted"].split("/"))
        rates = [float(rate) / 100 for rate in re.findall(r"\d+(?:\.\d+)?(?=%)", row["pos accept"])]
    except ValueError as error:
        raise UserError(f"{where}: a row of llama-spec-bench that is cut off or damaged ({error})") from error
    return Tally.of_sums(accepted, drafted, rounds, where, [round(rate * rounds) for rate in rates]), length


def _of_rows(rows: Sequence[tuple[Tally, float]]) -> Reading:
    tallies = [tally for tally, _ in rows]
    tally = together(tallies)
    names = {PASSES: "rounds", DRAFTED: "accepted, after the slash", ACCEPTED: "accepted"}
    printed = [*totals(names, tally, ends="in"), mean_of_requests("a.len", [one for _, one in rows], LENGTH, "in")]
    printed += marginals("pos accept", tally.accepted_at, tally.passes)
    notes = [] if tally.rejections is not None else [DIFFERENT_LENGTHS]
    return Reading(printed, tallies, by_request=True, ends="in", notes=notes)
