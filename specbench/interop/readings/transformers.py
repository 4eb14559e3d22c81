"""`transformers`' assisted generation: a line for each pass, {"request": 0, "drafted": 5, "accepted": 3}.

It prints nothing itself: docs/acceptance.md has the lines that write it from its candidate generator. The end of a text
cuts the tokens accepted after it, and replaces the bonus token: a last pass that accepted the end of a text counts one
accepted token fewer (`generation/utils.py`, 5.23).
"""

from collections import Counter, defaultdict

from specbench.errors import UserError
from specbench.interop.readings.base import ACCEPTED, LENGTH, RATE, Known, Printed, Reading, totals
from specbench.interop.readings.document import Document, whole_number
from specbench.interop.readings.tally import Tally, together

FIELDS = ("request", "drafted", "accepted")


def fits(document: Document) -> bool:
    """Whether the document holds lines of passes of `transformers`."""
    return all(document.holds(name) for name in FIELDS) and not document.holds("run_id")


def read(document: Document, known: Known) -> Reading:
    """The reading of a line a pass of `transformers`.

    Raises:
        UserError: a damaged document, or one without speculative decoding.
    """
    requests: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    for value in document.values:
        request, drafted, accepted = (whole_number(value.fields.get(name), value.where, name) for name in FIELDS)
        Tally.of_passes([(drafted, accepted)], value.where)  # an error names the line
        requests[request][drafted, accepted] += 1
    tallies = [Tally.of_histogram(passes, str(document.path)) for passes in requests.values()]
    tallies = [one for one in tallies if one.passes]
    if not tallies:
        raise UserError(f"{document.path}: no pass that drafted a token")
    tally = together(tallies)
    printed = totals({ACCEPTED: "n_matches, summed"}, tally, ends="out")
    printed.append(Printed("n_matches / candidates", tally.rate or 0.0, RATE, ends="out", bonus="without"))
    printed.append(Printed("mean n_matches + 1", tally.length or 1.0, LENGTH, ends="out", bonus="with"))
    notes = ["the last pass of a completion counts as a rejection: α of short completions is too low"]
    return Reading(printed, tallies, by_request=True, ends="out", notes=notes)
