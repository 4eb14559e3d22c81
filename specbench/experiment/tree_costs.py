"""The cost v(n) of verifying n tokens in one pass, and of drafting a level of a tree, in target steps.

The size of a tree is chosen from them. They are timed at one place of a completion, in turn. Steps repeated at one
place are a little faster than in the decoding loop, but all of these equally, and only their ratios count.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from specbench.algorithm.tree_draft import TreeDraft
from specbench.engine.session import Model, Prompt, warm_up_and_capture
from specbench.sampling import Sampling
from specbench.theory.trees import ROOT, TreeShape

SIZES = (2, 4, 8, 16, 32, 64, 128)
REPEATS, WARMUP = 12, 2


@dataclass(frozen=True)
class TreeCosts:
    """Costs in target steps.

    Attributes:
        verify: of verifying n tokens of a tree, the sequence's last token included.
        level: of drafting one level of the timed draft's trees.
    """

    verify: dict[int, float]
    level: float


def tree_costs(
    target: Model,
    draft: TreeDraft,
    prompt: Prompt,
    text: Sequence[int],
    sampling: Sampling,
    sizes: Sequence[int] = SIZES,
    repeats: int = REPEATS,
) -> TreeCosts:
    """Costs half way through `text`, which the target wrote for `prompt`, for sizes that fit into its positions."""
    tokens = [*prompt.prefix, *text[: max(1, len(text) // 2)]]
    session = target.start(prompt)
    drafting = draft.start_on(session, prompt, sampling)
    session.extend(tokens[session.length : -1])
    place = len(tokens) - 1
    generator = torch.Generator(target.device).manual_seed(0)
    fitting = [size for size in sizes if target.longest is None or place + size <= target.longest]

    def verifying(size: int) -> Callable[[], None]:
        parents = [ROOT, *(parent + 1 for parent in binary(size).parents)]
        new = [tokens[-1], *((2 + 3 * node) % target.vocabulary_size for node in range(size - 1))]

        def run() -> None:
            session.extend(new, parents)
            session.rollback(place)

        return run

    def growing() -> None:
        proposal = drafting.propose(tokens, draft.plan.depth, generator)
        if proposal.parents is not None:
            drafting.select([])
        drafting.rollback(place)

    def stepping() -> None:
        session.extend(tokens[-1:])
        session.rollback(place)

    work: dict[int, Callable[[], None]] = {0: growing, 1: stepping} | {size: verifying(size) for size in fitting}
    warm_up_and_capture(target, prompt, place + max(fitting, default=1), work.values())
    for model in draft.models:
        model.get_ready(prompt, place + draft.plan.depth + 1)
    timed: dict[int, list[float]] = {name: [] for name in work}
    for repeat in range(WARMUP + repeats):
        for name, step in work.items():
            began = target.now()
            step()
            if repeat >= WARMUP:
                timed[name].append(target.now() - began)
    seconds = {name: median(times) for name, times in timed.items()}
    return TreeCosts(
        {size: seconds[size] / seconds[1] for size in fitting},
        seconds[0] / seconds[1] / max(1, draft.plan.depth),
    )


def binary(size: int) -> TreeShape:
    """A tree of `size` nodes with its root, with two children per node, level by level."""
    return TreeShape(tuple((node - 1) // 2 if node > 1 else ROOT for node in range(size - 1)))
