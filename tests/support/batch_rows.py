"""Prompts decoded alone and as rows of a batch."""

from collections.abc import Sequence

import torch

from specbench.algorithm.batching import together
from specbench.algorithm.decoding import DecodingSpec, speculate, speculative
from specbench.algorithm.draft import Draft
from specbench.engine.batch import Batch
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.records.decoded import Trace

LENGTHS = (1, 40, 3, 17, 8)


def prompts_of(kind: str, lengths: Sequence[int] = LENGTHS) -> list[Prompt]:
    generator = torch.Generator().manual_seed(7)
    texts = [tuple(torch.randint(2, 40, (length,), generator=generator).tolist()) for length in lengths]
    return [Prompt(text, (0,)) if kind.startswith("t5") else Prompt((), text) for text in texts]


def generator(index: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + index)


def alone(target: EagerModel, draft: Draft, prompts: list[Prompt], spec: DecodingSpec) -> list[Trace]:
    return [speculative(target, draft, prompt, spec, generator(index)) for index, prompt in enumerate(prompts)]


def in_rows(target: EagerModel, draft: Draft, prompts: list[Prompt], spec: DecodingSpec, rows: int) -> list[Trace]:
    batch, draft = Batch.of(target, rows), draft.in_batch(rows)
    return together(
        (speculate(batch, draft, prompt, spec, generator(index)) for index, prompt in enumerate(prompts)), rows, batch
    )


def same(ours: list[Trace], theirs: list[Trace]) -> None:
    """The texts, and the passes by which they came about."""
    for one, other in zip(ours, theirs, strict=True):
        assert one.tokens == other.tokens
        assert [(p.drafted, p.accepted, p.emitted, p.tokens) for p in one.passes] == [
            (p.drafted, p.accepted, p.emitted, p.tokens) for p in other.passes
        ]
