"""TensorRT-LLM's iteration statistics: `specDecodingStats` of each iteration, over the requests of its batch.

An iteration of one request is one pass, which says all; of several it gives their sums.
"""

from specbench.errors import UserError
from specbench.readings.base import ACCEPTED, DRAFTED, LENGTH, PASSES, RATE, Known, Printed, Reading, totals
from specbench.readings.document import Document, whole_number
from specbench.readings.tally import Tally, together

KEYS = ("specDecodingStats", "spec_decoding_stats", "specDecStats")
NAMES = {PASSES: "numRequestsWithDraftTokens", DRAFTED: "numDraftTokens", ACCEPTED: "numAcceptedTokens"}


def fits(document: Document) -> bool:
    """Whether the document holds iteration statistics of TensorRT-LLM."""
    return document.holds(*KEYS) or document.holds("inflightBatchingStats")


def read(document: Document, known: Known) -> Reading:
    """The reading of TensorRT-LLM's iteration statistics.

    Raises:
        UserError: a damaged document, or one without speculative decoding.
    """
    tallies, lengths, singles = [], list[float](), list[tuple[int, int]]()
    for value in document.values:
        stats = next((value.fields[key] for key in KEYS if isinstance(value.fields.get(key), dict)), None)
        if stats is None:
            continue
        passes, drafted, accepted = (whole_number(stats.get(name, 0), value.where, name) for name in NAMES.values())
        if not drafted or not passes:
            continue
        tallies.append(Tally.of_sums(accepted, drafted, passes, value.where))
        singles += [(drafted, accepted)] if passes == 1 else []
        lengths.append(float(stats.get("acceptanceLength") or 1 + accepted / passes))
    if not tallies:
        raise UserError(
            f"{document.path}: iterations of TensorRT-LLM without drafted tokens; give a speculative_config, and "
            "enable_iter_perf_stats"
        )
    tally = Tally.of_passes(singles, str(document.path)) if len(singles) == len(tallies) else together(tallies)
    printed = totals(NAMES, tally)
    mean = sum(lengths) / len(lengths)
    printed.append(Printed("acceptanceLength", mean, LENGTH, "mean of windows", bonus="with"))
    printed.append(Printed("numAcceptedTokens / numDraftTokens", tally.rate or 0.0, RATE, bonus="without"))
    notes = [f"{len(tallies)} iterations with drafted tokens"]
    if tally.rejections is None:
        notes.append("iterations of several requests give sums: α is by moments")
    return Reading(printed, [tally], notes=notes)
