"""vLLM: responses that count the accepted tokens of their own request, and the server's log.

The fields of a response are `metrics.speculative_decoding`, and in an export of AIPerf `spec_decode_acceptance`. Both
count tokens after the end of a text as vLLM's counters do, as if the text continued.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specbench.errors import UserError
from specbench.interop.readings.document import Document, counts, whole_number, whole_numbers
from specbench.interop.readings.reading import (
    ACCEPTED,
    DRAFTED,
    LENGTH,
    PASSES,
    RATE,
    Mean,
    Printed,
    Reading,
    Tally,
    gathered,
    marginals,
    mean_of_requests,
    together,
    totals,
)
from specbench.nouns import with_noun

VLLM, AIPERF = "speculative_decoding", "spec_decode_acceptance"
NAMES = {PASSES: "num_spec_steps", DRAFTED: "num_draft_tokens", ACCEPTED: "num_accepted_draft_tokens"}
BY_LENGTH, HISTOGRAM = "acceptance_histogram_by_draft_length", "acceptance_histogram"


def read_requests(key: str, remedy: str, document: Document) -> Reading:
    """The reading of responses that hold their statistics under `key`; `remedy`: what to do if none does."""
    tallies, lengths, rates, rows = [], list[float](), list[float](), 0
    for rows, value in enumerate(document.values, 1):  # noqa: B007
        stats = _statistics(value.fields, key)
        if stats is not None and (tally := _tally_of_request(stats, value.where)).passes:
            tallies.append(tally)
            lengths.append(float(stats.get("mean_acceptance_length", tally.length)))
            rates.append(float(stats.get("draft_acceptance_rate", tally.rate)))
    if not tallies:
        raise UserError(f"{document.path}: no request with {key} in which anything was drafted; {remedy}")
    tally = together(tallies)
    printed = totals(NAMES, tally, ends="in")
    printed.append(mean_of_requests("mean_acceptance_length", lengths, LENGTH, "in"))
    printed.append(mean_of_requests("draft_acceptance_rate", rates, RATE, "in"))
    without = rows - len(tallies)
    notes = [f"{with_noun(without, 'row')} without passes left out"] if without else []
    if tally.rejections is None:
        notes.append("draft lengths are not in the file: α is by moments")
    return Reading(printed, tallies, by_request=True, ends="in", notes=notes)


def _statistics(fields: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """The statistics of a row: at its root, in its `metrics`, or in its `response`."""
    for holder in (fields, fields.get("metrics"), fields.get("response")):
        if isinstance(holder, dict):
            for place in (holder, holder.get("metrics")):
                if isinstance(place, dict) and isinstance(stats := place.get(key), dict):
                    return stats
    return None


def _tally_of_request(stats: Mapping[str, Any], where: str) -> Tally:
    """The passes of one request, from the finest numbers that it has."""
    steps, drafted, accepted = whole_numbers(stats, NAMES.values(), where)
    tally = _most_detailed_tally(stats, steps, drafted, accepted, where)
    # A pass of which no drafted token was valid is a step, and drafted nothing: there may be fewer passes than steps.
    if (tally.accepted, tally.drafted) != (accepted, drafted) or (tally.passes or 0) > steps:
        raise UserError(
            f"{where}: the histogram has {tally.accepted} of {tally.drafted} tokens accepted, and the counts say "
            f"{accepted} of {drafted}; the row is damaged"
        )
    return tally


def _most_detailed_tally(stats: Mapping[str, Any], steps: int, drafted: int, accepted: int, where: str) -> Tally:
    if isinstance(by_length := stats.get(BY_LENGTH), dict):
        pairs = {
            (int(length), accepted): count
            for length, row in by_length.items()
            for accepted, count in enumerate(counts(row, where, BY_LENGTH))
        }
        return Tally.of_histogram(pairs, where)
    if stats.get("per_step_drafted") is not None and stats.get("per_step_accepted") is not None:
        columns = [counts(stats[name], where, name) for name in ("per_step_drafted", "per_step_accepted")]
        if len(columns[0]) != len(columns[1]):
            raise UserError(f"{where}: per_step_drafted and per_step_accepted differ in length; the row is damaged")
        return Tally.of_passes(zip(*columns, strict=True), where)
    histogram = _dense(stats.get(HISTOGRAM), where)
    longest = stats.get("num_spec_tokens")
    if histogram and longest is not None and drafted == steps * longest:
        return Tally.of_histogram({(longest, accepted): count for accepted, count in enumerate(histogram)}, where)
    return Tally.of_sums(accepted, drafted, steps, where)


def _dense(histogram: object, where: str) -> Sequence[int]:
    """A list by accepted tokens, from a list or from a map without its zeros."""
    if isinstance(histogram, dict):
        try:
            places = {int(key): whole_number(count, where, HISTOGRAM) for key, count in histogram.items()}
        except ValueError as error:
            raise UserError(f"{where}: {HISTOGRAM} has a key that is not a count") from error
        return [places.get(place, 0) for place in range(max(places, default=-1) + 1)]
    return [] if histogram is None else counts(histogram, where, HISTOGRAM)


# The log has a line every few seconds, 'SpecDecoding metrics: ...', each of the passes since the line before it. People
# also paste such lines without their beginning, which then lack the mean acceptance length.
MARK, POSITIONS = "SpecDecoding metrics:", "Per-position acceptance rate:"
LENGTH_NAME, RATE_NAME = "Mean acceptance length", "Avg Draft acceptance rate"
NUMBER = r"(\d+(?:\.\d+)?|nan)"
LOG_FIELDS = {
    LENGTH_NAME: re.compile(rf"Mean acceptance length: {NUMBER}"),
    "Accepted": re.compile(r"Accepted: (\d+) tokens"),
    "Drafted": re.compile(r"Drafted: (\d+) tokens"),
    "Per-position acceptance rate": re.compile(r"Per-position acceptance rate: ((?:\d\.\d+(?:, )?)+)"),
    RATE_NAME: re.compile(rf"[Dd]raft acceptance rate: {NUMBER}%"),
}
ROUNDING = 0.0005  # of a rate by position, which is printed with three decimals


def read_log(document: Document) -> Reading:
    """The reading of vLLM's log, from rounded rates."""
    lengths, rates = Mean(), Mean()
    tally = gathered(_windows(document, lengths, rates))
    if not rates.count:
        raise UserError(f"{document.path}: every line says that nothing was drafted")
    printed = totals({DRAFTED: "Drafted", ACCEPTED: "Accepted"}, tally, ends="in")
    if lengths.count:
        printed.append(Printed(LENGTH_NAME, lengths.value, LENGTH, "mean of windows", "in"))
    printed.append(Printed(RATE_NAME, rates.value, RATE, "mean of windows", "in"))
    printed += marginals("Per-position acceptance rate", tally.accepted_at, tally.passes)
    notes = [f"{with_noun(rates.count, 'line')}; passes are counted back from rounded rates"]
    if tally.rejections is None:
        notes.append("passes drafted different numbers of tokens: α is by moments")
    return Reading(printed, [tally], ends="in", notes=notes)


def _windows(document: Document, lengths: Mean, rates: Mean) -> Iterator[Tally]:
    """The tally of each line; its two means are added to `lengths` and `rates`."""
    for number, line in enumerate(document.lines, 1):
        if MARK not in line and POSITIONS not in line:
            continue
        where = f"{document.path}, line {number}"
        found = {name: field.search(line) for name, field in LOG_FIELDS.items()}
        for name, match in found.items():
            if match is None and (MARK in line or name != LENGTH_NAME):
                raise UserError(f"{where}: no '{name}'; the line is cut off, or of another version of vLLM")
        values = {name: match[1] for name, match in found.items() if match is not None}
        accepted, drafted = int(values["Accepted"]), int(values["Drafted"])
        if not drafted:
            continue
        rates.add(float(values[RATE_NAME]) / 100)
        if LENGTH_NAME in values:
            lengths.add(float(values[LENGTH_NAME]))
        yield _tally(accepted, drafted, values, where)


def _tally(accepted: int, drafted: int, values: dict[str, str], where: str) -> Tally:
    """The tally of one line.

    Passes are accepted tokens over the sum of the rates by position, or drafted tokens over positions if that agrees.
    """
    rates = [float(rate) for rate in values["Per-position acceptance rate"].strip(", ").split(", ")]
    gamma, total = len(rates), sum(rates)
    passes = drafted / gamma
    if passes != int(passes) or abs(accepted - passes * total) > passes * gamma * ROUNDING + 0.5:
        if not total or not accepted:
            return Tally(accepted, drafted)
        return Tally(accepted, drafted, max(1, round(accepted / total)))
    at_position = [round(rate * passes) for rate in rates]
    return Tally.of_sums(accepted, drafted, int(passes), where, at_position)


# vLLM's first engine (V0) counts since the server's start, and among the accepted tokens those after a rejection too
# (vllm#9565), so that they and their rate are of no pass. Its emitted tokens are right: one more than accepted a pass.
V0_MARK = "Speculative metrics:"
V0_FIELDS = {
    "Number of speculative tokens": re.compile(r"Number of speculative tokens: (\d+)"),
    "Number of draft tokens": re.compile(r"Number of draft tokens: (\d+)"),
    "Number of emitted tokens": re.compile(r"Number of emitted tokens: (\d+)"),
    "System efficiency": re.compile(rf"System efficiency: {NUMBER}"),
}
V0_NOTE = (
    "vLLM V0 also counts tokens after a rejection as accepted (vllm#9565), so its draft acceptance rate is left out; "
    "accepted tokens are emitted tokens less one for each pass"
)


def read_v0_log(document: Document) -> Reading:
    """The reading of the last line of vLLM's first engine."""
    last: tuple[str, str] | None = None
    for number, line in enumerate(document.lines, 1):
        if V0_MARK in line:
            last = f"{document.path}, line {number}", line
    if last is None:
        raise UserError(f"{document.path}: no line '{V0_MARK}'")
    where, line = last
    values = {}
    for name, field in V0_FIELDS.items():
        if (match := field.search(line)) is None:
            raise UserError(f"{where}: no '{name}'; the line is cut off, or of another version of vLLM")
        values[name] = float(match[1])
    gamma, drafted, emitted = (int(values[name]) for name in list(V0_FIELDS)[:3])
    if not drafted or not gamma:
        raise UserError(f"{where}: nothing was drafted")
    passes = drafted // gamma
    if not passes <= emitted <= passes * (gamma + 1):
        raise UserError(f"{where}: {emitted} tokens of {passes} passes of {gamma}; these counts contradict each other")
    tally = Tally.of_sums(emitted - passes, drafted, passes, where)
    printed = [
        Printed("Number of draft tokens", drafted, DRAFTED, ends="in"),
        Printed("Number of emitted tokens", emitted, "emitted tokens", ends="in"),
        Printed("System efficiency", values["System efficiency"], "emitted / (passes × (γ + 1))", ends="in"),
    ]
    return Reading(printed, [tally], ends="in", notes=[V0_NOTE])
