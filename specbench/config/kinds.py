"""The kinds of draft: what the rest of the project must know of each by its name alone."""

from collections.abc import Iterator
from dataclasses import dataclass

from specbench.config.schema import DraftConfig


@dataclass(frozen=True)
class Kind:
    """`weights`: it is a model, with a folder, a hub id or a shipped one. `text`: it is fitted on training text.
    `inside`: it works inside the target, on its layers or states."""

    weights: bool = False
    text: bool = False
    inside: bool = False


DRAFT_KINDS = {
    "model": Kind(weights=True),
    "unigram": Kind(text=True),
    "bigram": Kind(text=True),
    "ngram": Kind(text=True),
    "random": Kind(),
    "lookup": Kind(),
    "retrieval": Kind(text=True),
    "cascade": Kind(),
    "early-exit": Kind(inside=True),
    "blockwise": Kind(weights=True, inside=True),
}


def levels(draft: DraftConfig) -> Iterator[DraftConfig]:
    """The draft, and the drafts that it is made of."""
    yield draft
    for part in (draft.via, draft.inner):
        if part is not None:
            yield from levels(part)


def ngram_order(draft: DraftConfig) -> int:
    """The tokens of the longest n-gram that an n-gram draft counts."""
    return {"unigram": 1, "bigram": 2}.get(draft.kind, draft.order)
