"""Decoded completions, for drafts that add them to their store (`drafts.base.Grows`)."""

from collections.abc import Iterable, Sequence

from specbench.drafts import growing
from specbench.records.schema import PromptRecord
from specbench.runs.build import Parts

Decoded = tuple[int, list[int]]  # the place of a prompt, and the tokens of its text


def decoded(places: Iterable[int], prompts: Iterable[PromptRecord]) -> list[Decoded]:
    """The speculative completions of the prompts at `places`."""
    return [(place, prompt["speculative"]["tokens"]) for place, prompt in zip(places, prompts, strict=True)]


def hand_over(parts: Parts, texts: Sequence[Decoded]) -> None:
    """Add `texts` to the draft's store, in this order."""
    for draft in growing(parts.draft):
        draft.add_texts([(parts.prompts[place], tokens) for place, tokens in texts])
