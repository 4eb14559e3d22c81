"""Equal prompts: asked twice they tell little more than once, so they count as one in every interval."""

from collections.abc import Hashable, Sequence

from specbench.records.schema import PromptRecord


def groups_of(prompts: Sequence[PromptRecord]) -> list[int]:
    """A number for each prompt, the same for equal prompts: 0, 1, ... in the order in which they first occur."""
    return group_numbers([(prompt["prompt"], prompt["prompt_tokens"], prompt.get("turn")) for prompt in prompts])


def group_numbers(keys: Sequence[Hashable]) -> list[int]:
    """A number for each key, the same for equal keys: 0, 1, ... in the order in which they first occur."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
