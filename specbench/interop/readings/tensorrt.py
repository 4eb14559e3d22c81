"""TensorRT-LLM: `specDecodingStats` of each iteration over the requests of its batch, and counts of each request.

An iteration of one request is one pass, which says all; for several requests it gives their sums.
"""

from collections import Counter
from collections.abc import Iterator

from specbench.errors import UserError
from specbench.interop.readings.document import Document, nested, number, whole_number, whole_numbers
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
    mean_of_requests,
    together,
    totals,
)

KEYS = ("specDecodingStats", "spec_decoding_stats", "specDecStats")
NAMES = {PASSES: "numRequestsWithDraftTokens", DRAFTED: "numDraftTokens", ACCEPTED: "numAcceptedTokens"}
OF_REQUEST = {DRAFTED: "total_draft_tokens", ACCEPTED: "total_accepted_draft_tokens"}


def read(document: Document) -> Reading:
    """The reading of TensorRT-LLM's iteration statistics."""
    lengths, singles = Mean(), Counter[tuple[int, int]]()
    tally = gathered(_iterations(document, lengths, singles))
    if not lengths.count:
        raise UserError(
            f"{document.path}: iterations of TensorRT-LLM without drafted tokens; give a speculative_config, and "
            "enable_iter_perf_stats"
        )
    if singles.total() == lengths.count:
        tally = Tally.of_histogram(singles, str(document.path))
    printed = totals(NAMES, tally)
    printed.append(Printed("acceptanceLength", lengths.value, LENGTH, "mean of windows"))
    printed.append(Printed("numAcceptedTokens / numDraftTokens", tally.rate or 0.0, RATE))
    notes = [f"{lengths.count} iterations with drafted tokens"]
    if tally.rejections is None:
        notes.append("iterations of several requests give sums: α is by moments")
    return Reading(printed, [tally], notes=notes)


def _iterations(document: Document, lengths: Mean, singles: Counter[tuple[int, int]]) -> Iterator[Tally]:
    """The tally of each iteration; passes of one request are counted in `singles`, mean lengths added to `lengths`."""
    for value in document.values:
        stats = next((value.fields[key] for key in KEYS if isinstance(value.fields.get(key), dict)), None)
        if stats is None:
            continue
        passes, drafted, accepted = (whole_number(stats.get(name, 0), value.where, name) for name in NAMES.values())
        if not drafted or not passes:
            continue
        if passes == 1:
            singles[drafted, accepted] += 1
        lengths.add(float(stats.get("acceptanceLength") or 1 + accepted / passes))
        yield Tally.of_sums(accepted, drafted, passes, value.where)


def read_requests(document: Document) -> Reading:
    """The reading of `speculative_decoding` of each request: drafted and accepted tokens, no passes."""
    tallies, rates = [], list[float]()
    for value in document.values:
        for stats in nested(value.fields, "speculative_decoding"):  # of its metrics, or of a phase of them
            drafted, accepted = whole_numbers(stats, OF_REQUEST.values(), value.where)
            if drafted:
                tallies.append(Tally.of_sums(accepted, drafted, None, value.where))
                rates.append(number(stats.get("acceptance_rate", accepted / drafted), value.where, "acceptance_rate"))
    if not tallies:
        raise UserError(
            f"{document.path}: no request of TensorRT-LLM with drafted tokens; give a speculative_config, and "
            "return_perf_metrics"
        )
    tally = together(tallies)
    printed = totals(OF_REQUEST, tally)
    printed.append(mean_of_requests("acceptance_rate", rates, RATE))
    notes = ["passes are not in it: give --gamma for α"]
    return Reading(printed, tallies, by_request=True, notes=notes)
