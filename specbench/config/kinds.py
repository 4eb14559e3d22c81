"""The kinds of draft: what the rest of the project must know of each by its name alone."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """`weights`: it is a model, with a folder, a hub id or a shipped one. `text`: it is fitted on training text."""

    weights: bool = False
    text: bool = False


DRAFT_KINDS = {
    "model": Kind(weights=True),
    "unigram": Kind(text=True),
    "bigram": Kind(text=True),
    "random": Kind(),
    "lookup": Kind(),
}
