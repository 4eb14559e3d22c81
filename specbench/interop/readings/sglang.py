"""SGLang: `meta_info` of responses, also as the log of requests prints it, and the log's 'Decode batch' lines.

The end of a text cuts the tokens accepted after it, so that its last pass looks like one that ended in a rejection.
`spec_accept_length` is tokens written over passes, and the first token of a text comes from no pass of verification, so
that it is a little above 1 + accepted / passes in short texts. `spec_accept_rate` divides by the tokens of a pass less
one, which for a tree is its size, not its depth.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from specbench.errors import UserError
from specbench.interop.readings.document import Document, counts, whole_number
from specbench.interop.readings.reading import (
    ACCEPTED,
    DRAFTED,
    LAST_PASSES,
    LENGTH,
    PASSES,
    RATE,
    Mean,
    Printed,
    Reading,
    Tally,
    mean_of_requests,
    together,
    totals,
)

ACCEPTED_NAMES = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
DRAFTED_NAMES = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
HISTOGRAM_NAMES = ("spec_correct_drafts_histogram", "spec_accept_histogram")
STEPS = "spec_verify_ct"
LINE = re.compile(r"accept len: (\d+(?:\.\d+)?)(?:, accept rate: (\d+(?:\.\d+)?))?")


# The request log (--log-requests) prints a response as Python does, with objects that are no literals.
REQUEST_MARK = "'meta_info': {"
LOGGED_NUMBER = re.compile(r"'(\w+)': (-?\d+(?:\.\d+)?(?:e-?\d+)?)(?=[,}])")
LOGGED_COUNTS = re.compile(r"'(\w+)': \[([\d, ]*)\]")


def read(document: Document) -> Reading:
    """The reading of SGLang's responses."""
    return _of_requests(
        document, ((value.where, meta) for value in document.values for meta in _metas(value.fields) if STEPS in meta)
    )


def is_request_log(document: Document) -> bool:
    """Whether the document is the server's log of requests."""
    return not document.is_json and document.has(REQUEST_MARK) and document.has("Finish: obj=", f"'{STEPS}'")


def read_request_log(document: Document) -> Reading:
    """The reading of SGLang's log of requests."""
    return _of_requests(document, _logged(document))


def _logged(document: Document) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(document.lines, 1):
        _, mark, rest = line.partition(REQUEST_MARK)
        if mark and f"'{STEPS}'" in rest:
            meta: dict[str, Any] = {name: float(value) for name, value in LOGGED_NUMBER.findall(rest)}
            lists = LOGGED_COUNTS.findall(rest)
            meta |= {name: [int(one) for one in values.split(",") if one.strip()] for name, values in lists}
            yield f"{document.path}, line {number}", meta


def _of_requests(document: Document, requests: Iterable[tuple[str, Mapping[str, Any]]]) -> Reading:
    """The reading of the `meta_info` of requests, each with its place."""
    tallies, lengths, rates, notes = [], list[float](), list[float](), list[str]()
    names = {PASSES: STEPS, DRAFTED: DRAFTED_NAMES[0], ACCEPTED: ACCEPTED_NAMES[0]}
    for where, meta in requests:
        if not (steps := whole_number(meta[STEPS], where, STEPS)):
            continue
        names |= {DRAFTED: _name(meta, DRAFTED_NAMES), ACCEPTED: _name(meta, ACCEPTED_NAMES)}
        tallies.append(_tally(meta, steps, where))
        lengths.append(float(meta.get("spec_accept_length") or meta.get("completion_tokens", 0) / steps))
        rates.append(float(meta.get("spec_accept_rate") or 0))
    if not tallies:
        raise UserError(
            f"{document.path}: no meta_info with {STEPS}; start the server with --speculative-algorithm, and keep "
            "whole responses"
        )
    tally = together(tallies)
    printed = totals(names, tally, ends="out")
    for name, values, meaning in (("spec_accept_length", lengths, LENGTH), ("spec_accept_rate", rates, RATE)):
        if any(values):
            printed.append(mean_of_requests(name, values, meaning, "out"))
    notes = [LAST_PASSES]
    if tally.rejections is None:
        notes.append("no histogram: α is by moments" if tally.drafted else "tokens drafted are not in it: give --gamma")
    return Reading(printed, tallies, by_request=True, ends="out", notes=notes)


def read_log(document: Document) -> Reading:
    """The reading of SGLang's log: means of the last interval, no counts."""
    lengths, rates = Mean(), Mean()
    for line in document.lines:
        if "Decode batch" in line and (match := LINE.search(line)):
            lengths.add(float(match[1]))
            if match[2]:
                rates.add(float(match[2]))
    if not lengths.count:
        raise UserError(
            f"{document.path}: 'Decode batch' lines of SGLang without 'accept len'; start the server with "
            "--speculative-algorithm"
        )
    printed = [Printed("accept len", lengths.value, LENGTH, "mean of windows", "out")]
    if rates.count:
        printed.append(Printed("accept rate", rates.value, RATE, "mean of windows", "out"))
    return Reading(printed, notes=[f"{lengths.count} lines, without counts: for α read meta_info of responses"])


def _metas(fields: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Each `meta_info` of a row: its own, or its choices'."""
    choices = fields.get("choices")
    for holder in (fields, *(choices if isinstance(choices, list) else ())):
        if isinstance(holder, dict) and isinstance(meta := holder.get("meta_info"), dict):
            yield meta


def _tally(meta: Mapping[str, Any], steps: int, where: str) -> Tally:
    drafted_name, accepted_name = _name(meta, DRAFTED_NAMES), _name(meta, ACCEPTED_NAMES)
    drafted = whole_number(meta[drafted_name], where, drafted_name) if drafted_name in meta else None
    histogram = next((counts(meta[name], where, name) for name in HISTOGRAM_NAMES if meta.get(name)), [])
    if accepted_name in meta:
        accepted = whole_number(meta[accepted_name], where, accepted_name)
    elif histogram:
        accepted = sum(place * count for place, count in enumerate(histogram))
    else:  # of older servers: each pass adds a token to what was accepted, and the prompt's own pass wrote the first
        accepted = max(0, whole_number(meta.get("completion_tokens"), where, "completion_tokens") - 1 - steps)
    if histogram and drafted and drafted % steps == 0:
        if sum(histogram) != steps:
            raise UserError(
                f"{where}: {sum(histogram)} passes in the histogram and {STEPS}={steps}; the row is damaged"
            )
        gamma = drafted // steps
        return Tally.of_histogram({(gamma, place): count for place, count in enumerate(histogram)}, where)
    return Tally.of_sums(accepted, drafted, steps, where)


def _name(meta: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((name for name in names if name in meta), names[0])
