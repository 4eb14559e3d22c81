"""vLLM's log: a line every few seconds, 'SpecDecoding metrics: ...', each of the passes since the line before it."""

import re
from collections.abc import Iterator

from specbench.errors import UserError
from specbench.interop.readings.base import (
    ACCEPTED,
    DRAFTED,
    LENGTH,
    MARGINAL,
    RATE,
    Known,
    Mean,
    Printed,
    Reading,
    totals,
)
from specbench.interop.readings.document import Document
from specbench.interop.readings.tally import Tally, gathered

MARK = "SpecDecoding metrics:"
LENGTH_NAME, RATE_NAME = "Mean acceptance length", "Avg Draft acceptance rate"
NUMBER = r"(\d+(?:\.\d+)?|nan)"
FIELDS = {
    LENGTH_NAME: re.compile(rf"Mean acceptance length: {NUMBER}"),
    "Accepted": re.compile(r"Accepted: (\d+) tokens"),
    "Drafted": re.compile(r"Drafted: (\d+) tokens"),
    "Per-position acceptance rate": re.compile(r"Per-position acceptance rate: ((?:\d\.\d+(?:, )?)+)"),
    RATE_NAME: re.compile(rf"[Dd]raft acceptance rate: {NUMBER}%"),
}
ROUNDING = 0.0005  # of a rate by position, which is printed with three decimals


def fits(document: Document) -> bool:
    """Whether the document is the log of vLLM."""
    return document.has(MARK)


def read(document: Document, known: Known) -> Reading:
    """The reading of vLLM's log, from rounded rates.

    Raises:
        UserError: a damaged document, or one without speculative decoding.
    """
    lengths, rates = Mean(), Mean()
    tally = gathered(_windows(document, lengths, rates))
    if not lengths.count:
        raise UserError(f"{document.path}: every line says that nothing was drafted")
    printed = totals({DRAFTED: "Drafted", ACCEPTED: "Accepted"}, tally, ends="in")
    printed.append(Printed(LENGTH_NAME, lengths.value, LENGTH, "mean of windows", "in", "with"))
    printed.append(Printed(RATE_NAME, rates.value, RATE, "mean of windows", "in", "without"))
    printed += [
        Printed("Per-position acceptance rate", kept / tally.passes, MARGINAL.format(place), "pooled", "in")
        for place, kept in enumerate(tally.kept, 1)
        if tally.passes
    ]
    notes = [f"{lengths.count} lines; passes are counted back from rounded rates"]
    if tally.rejections is None:
        notes.append("passes drafted different numbers of tokens: α is by moments")
    return Reading(printed, [tally], ends="in", notes=notes)


def _windows(document: Document, lengths: Mean, rates: Mean) -> Iterator[Tally]:
    """The tally of each line; its two means are added to `lengths` and `rates`."""
    for number, line in enumerate(document.lines, 1):
        if MARK not in line:
            continue
        where = f"{document.path}, line {number}"
        found = {name: field.search(line) for name, field in FIELDS.items()}
        for name, match in found.items():
            if match is None:
                raise UserError(f"{where}: no '{name}'; the line is cut off, or of another version of vLLM")
        values = {name: match[1] for name, match in found.items() if match is not None}
        accepted, drafted = int(values["Accepted"]), int(values["Drafted"])
        if not drafted:
            continue
        lengths.add(float(values[LENGTH_NAME]))
        rates.add(float(values[RATE_NAME]) / 100)
        yield _tally(accepted, drafted, values, where)


def _tally(accepted: int, drafted: int, values: dict[str, str], where: str) -> Tally:
    """The tally of one line.

    Passes are accepted tokens over the sum of the rates by position, or drafted tokens over positions if that agrees.
    """
    rates = [float(rate) for rate in values["Per-position acceptance rate"].strip(", ").split(", ")]
    gamma, total = len(rates), sum(rates)
    passes = drafted / gamma
    if passes != int(passes) or abs(accepted - passes * total) > passes * gamma * ROUNDING + 0.5:
        mean = float(values[LENGTH_NAME]) - 1
        if not total or not mean:
            return Tally(accepted, drafted)
        return Tally(accepted, drafted, max(1, round(accepted / total)))
    at_position = [round(rate * passes) for rate in rates]
    return Tally.of_sums(accepted, drafted, int(passes), where, at_position)
