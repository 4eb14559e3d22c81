"""Equal prompts: asked twice they tell little more than once, so they count as one in every interval."""

from collections.abc import Sequence

from specbench.records.schema import PromptRecord


def groups_of(prompts: Sequence[PromptRecord]) -> list[int]:
    """A number for each prompt, the same for equal prompts: 0, 1, ... in the order in which they first occur."""
    numbers: dict[tuple[object, ...], int] = {}
    keys = [(prompt["prompt"], prompt["prompt_tokens"], prompt.get("turn")) for prompt in prompts]
    return [numbers.setdefault(key, len(numbers)) for key in keys]
