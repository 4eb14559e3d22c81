"""Files that list every pass: a record of `specbench run`, and the lines of `transformers`' assisted generation.

In a record, if a text ends among the accepted tokens, later tokens of that pass were neither reached nor rejected.

`transformers` prints nothing itself: docs/acceptance.md has the lines that write {"request": 0, "drafted": 5,
"accepted": 3} for each pass from its candidate generator. The end of a text cuts the tokens accepted after it, and
replaces the bonus token: a last pass that accepted the end of a text counts one accepted token fewer
(`generation/utils.py`, 5.23).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import islice
from typing import Any

from specbench.errors import UserError
from specbench.interop.readings.document import Document, whole_numbers
from specbench.interop.readings.reading import (
    ACCEPTED,
    LAST_PASSES,
    LENGTH,
    PASSES,
    RATE,
    Printed,
    Reading,
    Tally,
    together,
    totals,
)

PRINTED = {
    "passes": PASSES,
    "accepted_per_drafted": RATE,
    "tokens_per_pass": LENGTH,
    "alpha": "α, mean of β over the target's own completions (Cor 3.6)",
}


def read(document: Document) -> Reading:
    """The passes and alpha of a record."""
    values = list(islice(document.values, 2))
    if len(values) != 1 or not values[0].fields.get("prompts"):
        raise UserError(f"{document.path}: a record without its prompts; read the file in results/runs or results/kept")
    record = values[0].fields
    where = str(document.path)
    try:
        summary = record["summary"]
        if summary.get("tree"):
            raise UserError(f"{where}: a record of token trees, whose passes are no chains; read one of tree=none")
        requests = tallies(record, where)
        printed = [
            Printed(name, float(value), meaning, ends="out")
            for name, meaning in PRINTED.items()
            if (value := summary.get(name)) is not None
        ]
    except (KeyError, TypeError) as error:
        raise UserError(f"{where}: not a record of specbench, or damaged ({error})") from error
    return Reading(printed, [one for one in requests if one.passes], by_request=True, ends="censored")


def tallies(record: Mapping[str, Any], where: str) -> list[Tally]:
    """The passes of each prompt of a record."""
    return [Tally.of_passes(map(_pass, prompt["speculative"]["passes"]), where) for prompt in record["prompts"]]


def _pass(one: Mapping[str, Any]) -> tuple[int, int]:
    """Drafted and accepted tokens; a pass that ended a text drafted, for this purpose, what came before the end."""
    ended = one["emitted"] <= one["accepted"]
    accepted = min(one["accepted"], one["emitted"])
    return (accepted if ended else one["drafted"]), accepted


FIELDS = ("request", "drafted", "accepted")


def read_lines(document: Document) -> Reading:
    """The reading of lines of `transformers`, one line per pass."""
    requests: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    for value in document.values:
        request, drafted, accepted = whole_numbers(value.fields, FIELDS, value.where)
        Tally.of_passes([(drafted, accepted)], value.where)  # an error names the line
        requests[request][drafted, accepted] += 1
    tallies = [Tally.of_histogram(passes, str(document.path)) for passes in requests.values()]
    tallies = [one for one in tallies if one.passes]
    if not tallies:
        raise UserError(f"{document.path}: no pass that drafted a token")
    tally = together(tallies)
    printed = totals({ACCEPTED: "n_matches, summed"}, tally, ends="out")
    printed.append(Printed("n_matches / candidates", tally.rate or 0.0, RATE, ends="out"))
    printed.append(Printed("mean n_matches + 1", tally.length or 1.0, LENGTH, ends="out"))
    return Reading(printed, tallies, by_request=True, ends="out", notes=[LAST_PASSES])
