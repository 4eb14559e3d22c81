"""A record of `specbench run`, to stand beside another engine's numbers on the same definitions.

Where a text ends among the accepted tokens, no more of that pass was reached, and none of it rejected.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from specbench.errors import UserError
from specbench.interop.readings.base import LENGTH, PASSES, RATE, Bonus, Known, Printed, Reading
from specbench.interop.readings.document import Document
from specbench.interop.readings.tally import Tally

PRINTED: Mapping[str, tuple[str, Bonus]] = {
    "passes": (PASSES, ""),
    "accepted_per_drafted": (RATE, "without"),
    "tokens_per_pass": (LENGTH, "with"),
    "alpha": ("α, mean of β over the target's own completions (Cor 3.6)", ""),
}


def fits(document: Document) -> bool:
    """Whether the document is a record of specbench."""
    return document.holds("run_id") and document.holds("speculative")


def read(document: Document, known: Known) -> Reading:
    """The passes and alpha of a record.

    Raises:
        UserError: a damaged record, one without prompts, or one of token trees.
    """
    values = list(islice(document.values, 2))
    if len(values) != 1 or not values[0].fields.get("prompts"):
        raise UserError(f"{document.path}: a record without its prompts; read the file in results/runs or results/kept")
    record = values[0].fields
    where = str(document.path)
    try:
        summary = record["summary"]
        if summary.get("tree"):
            raise UserError(f"{where}: a record of token trees, whose passes are no chains; read one of tree=none")
        requests = [_request(prompt["speculative"]["passes"], where) for prompt in record["prompts"]]
        printed = [
            Printed(name, float(value), meaning, ends="out", bonus=bonus)
            for name, (meaning, bonus) in PRINTED.items()
            if (value := summary.get(name)) is not None
        ]
    except (KeyError, TypeError) as error:
        raise UserError(f"{where}: not a record of specbench, or damaged ({error})") from error
    return Reading(printed, [one for one in requests if one.passes], by_request=True, ends="censored")


def _request(passes: list[Mapping[str, Any]], where: str) -> Tally:
    """A pass that ended a text drafted, for this purpose, what came before the end."""
    return Tally.of_passes([_pass(one) for one in passes], where)


def _pass(one: Mapping[str, Any]) -> tuple[int, int]:
    ended = one["emitted"] <= one["accepted"]
    accepted = min(one["accepted"], one["emitted"])
    return (accepted if ended else one["drafted"]), accepted
