"""Thinking and answer: which tokens of a completion stand between the tags that a chat template marks thinking with."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from specbench.records.run_record import PromptRecord, RunRecord

THINKING, ANSWER = "thinking", "answer"


class Phases(NamedTuple):
    """The phase of each token in a prompt's two completions."""

    alone: list[str]
    ours: list[str]


def phases_of(record: RunRecord) -> Callable[[PromptRecord], Phases] | None:
    """A function that finds the phases of a prompt's completions; None if the record has no tags of thinking."""
    tags = record.get("thinking")
    if tags is None:
        return None
    opens, closes = tags
    pieces = record["pieces"]

    def found(prompt: PromptRecord) -> Phases:
        inside = prompt.get("thinking", False)
        both = (prompt[way].tokens for way in ("baseline", "speculative"))
        return Phases(*(labels([pieces[str(token)] for token in one], opens, closes, inside) for one in both))

    return found


def labels(pieces: Sequence[str], opens: str, closes: str, inside: bool) -> list[str]:
    """The phase of each token by its first character; the tags belong to the thinking. `inside`: it began before."""
    text, spans, at = "".join(pieces), list[tuple[int, int]](), 0
    while inside or (begin := text.find(opens, at)) >= 0:
        end = text.find(closes, at if inside else begin)
        end = len(text) if end < 0 else end + len(closes)
        spans.append((at if inside else begin, end))
        at, inside = end, False
    found, place = [], 0
    for piece in pieces:
        # A piece may have the space before a tag.
        first = place + len(piece) - len(piece.lstrip())
        found.append(THINKING if any(begin <= first < end for begin, end in spans) else ANSWER)
        place += len(piece)
    return found
