"""The kinds of draft: what the rest of the project must know of each by its name alone."""

from collections.abc import Iterator
from dataclasses import dataclass

from specbench.config.schema import DraftConfig


@dataclass(frozen=True)
class Kind:
    """`weights`: it is a model, with a folder, a hub id or a shipped one. `text`: it is fitted on training text.
    `inside`: it works inside the target, on its layers or states. `falls`: it agrees less the further ahead it drafts,
    for a whole proposal comes from one place, so that one alpha does not describe it."""

    weights: bool = False
    text: bool = False
    inside: bool = False
    falls: bool = False
    paper: bool = True  # the paper measures such drafts


DRAFT_KINDS = {
    "model": Kind(weights=True),
    "unigram": Kind(text=True),
    "bigram": Kind(text=True),
    "ngram": Kind(text=True, paper=False),
    "random": Kind(),
    "lookup": Kind(falls=True, paper=False),
    "retrieval": Kind(text=True, falls=True, paper=False),
    "cascade": Kind(paper=False),
    "early-exit": Kind(inside=True, paper=False),
    "blockwise": Kind(weights=True, inside=True, falls=True, paper=False),
}


def beyond_the_paper(name: str) -> bool:
    """Whether a draft that tables call `name` (`run.identity`) is of a kind that the paper does not measure."""
    kinds = [kind for kind, facts in DRAFT_KINDS.items() if not facts.paper]
    return name.endswith("-gram") or any(name == kind or name.startswith(f"{kind}-") for kind in kinds)


def levels(draft: DraftConfig) -> Iterator[DraftConfig]:
    """The draft, and the drafts that it is made of."""
    yield draft
    for part in (draft.via, draft.inner):
        if part is not None:
            yield from levels(part)


def ngram_order(draft: DraftConfig) -> int:
    """The tokens of the longest n-gram that an n-gram draft counts."""
    return {"unigram": 1, "bigram": 2}.get(draft.kind, draft.order)
