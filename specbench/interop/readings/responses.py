"""Responses that count the accepted tokens of their own request: vLLM's, and AIPerf's, which has the same fields.

They are `metrics.speculative_decoding` and `spec_decode_acceptance`. Both count tokens after the end of a text as
vLLM's counters do, as if the text continued.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specbench.errors import UserError
from specbench.interop.readings.base import (
    ACCEPTED,
    DRAFTED,
    LENGTH,
    PASSES,
    RATE,
    Known,
    Printed,
    Reading,
    bonus_of,
    of_requests,
    totals,
)
from specbench.interop.readings.document import Document, Value, counts, whole_number
from specbench.interop.readings.tally import Tally, together

VLLM, AIPERF = "speculative_decoding", "spec_decode_acceptance"
NAMES = {PASSES: "num_spec_steps", DRAFTED: "num_draft_tokens", ACCEPTED: "num_accepted_draft_tokens"}
BY_LENGTH, HISTOGRAM = "acceptance_histogram_by_draft_length", "acceptance_histogram"


def fits_vllm(document: Document) -> bool:
    """Whether the document holds responses of vLLM."""
    return document.holds(VLLM) and document.holds(NAMES[PASSES])


def fits_aiperf(document: Document) -> bool:
    """Whether the document is an export of AIPerf."""
    return document.holds(AIPERF) or (document.holds("metadata") and document.holds("x_request_id", "benchmark_phase"))


def read_vllm(document: Document, known: Known) -> Reading:
    """The reading of vLLM's responses.

    Raises:
        UserError: a damaged document, or one without speculative decoding.
    """
    return _read(document, VLLM, "start the server with --per-request-spec-decode-metrics summary")


def read_aiperf(document: Document, known: Known) -> Reading:
    """The reading of AIPerf's export.

    Raises:
        UserError: a damaged document, or one without speculative decoding.
    """
    return _read(document, AIPERF, "the server must report acceptance by request, as vLLM does on request")


def _read(document: Document, key: str, way_out: str) -> Reading:
    tallies, lengths, rates, rows = [], list[float](), list[float](), 0
    for rows, value in enumerate(document.values, 1):  # noqa: B007
        for stats in _inside(value, key):
            tally = _request(stats, value.where)
            if tally.passes:
                tallies.append(tally)
                lengths.append(float(stats.get("mean_acceptance_length", tally.length)))
                rates.append(float(stats.get("draft_acceptance_rate", tally.rate)))
    if not tallies:
        raise UserError(f"{document.path}: no request with {key} in which anything was drafted; {way_out}")
    tally = together(tallies)
    printed = totals(NAMES, tally, ends="in")
    for name, values, meaning in (("mean_acceptance_length", lengths, LENGTH), ("draft_acceptance_rate", rates, RATE)):
        mean = sum(values) / len(values)
        printed.append(Printed(name, mean, meaning, of_requests(len(tallies)), "in", bonus_of(meaning)))
    without = rows - len(tallies)
    notes = [f"{without} rows without passes left out"] if without else []
    if tally.rejections is None:
        notes.append("draft lengths are not in the file: α is by moments")
    return Reading(printed, tallies, by_request=True, ends="in", notes=notes)


def _inside(value: Value, key: str) -> Iterator[Mapping[str, Any]]:
    """The statistics of a row: at its root, in its `metrics`, or in its `response`."""
    for holder in (value.fields, value.fields.get("metrics"), value.fields.get("response")):
        if isinstance(holder, dict):
            if isinstance(stats := holder.get(key), dict):
                yield stats
                return
            inner = holder.get("metrics")
            if isinstance(inner, dict) and isinstance(stats := inner.get(key), dict):
                yield stats
                return


def _request(stats: Mapping[str, Any], where: str) -> Tally:
    """The passes of one request, from the finest numbers that it has."""
    sums = {name: whole_number(stats.get(name), where, name) for name in NAMES.values()}
    steps, drafted, accepted = sums.values()
    tally = _finest(stats, steps, drafted, accepted, where)
    if (tally.accepted, tally.drafted, tally.passes) != (accepted, drafted, steps):
        # A pass of which no drafted token was valid is a step, and drafted nothing.
        if (tally.accepted, tally.drafted) == (accepted, drafted) and (tally.passes or 0) <= steps:
            return tally
        raise UserError(
            f"{where}: the histogram has {tally.accepted} of {tally.drafted} tokens accepted, and the counts say "
            f"{accepted} of {drafted}; the row is damaged"
        )
    return tally


def _finest(stats: Mapping[str, Any], steps: int, drafted: int, accepted: int, where: str) -> Tally:
    if isinstance(by_length := stats.get(BY_LENGTH), dict):
        pairs = {
            (int(length), kept): count
            for length, row in by_length.items()
            for kept, count in enumerate(counts(row, where, BY_LENGTH))
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
        return Tally.of_histogram({(longest, kept): count for kept, count in enumerate(histogram)}, where)
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
