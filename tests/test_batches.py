"""Batches: every row's greedy text is the text that it has alone, whoever shares the batch with it."""

from collections.abc import Sequence

import pytest
import torch
from decode import spec_of
from networks import network

from specbench.decoding import DecodingSpec, Trace, autoregress, autoregressive, speculate, speculative, together
from specbench.drafts import CascadeDraft, Draft, LookupDraft, ModelDraft, UniformDraft, in_batch
from specbench.gamma import Heuristic
from specbench.models import Batch, Prompt
from specbench.models.eager import EagerModel
from specbench.models.static import StaticModel
from specbench.sampling import Sampling

SIZE = 43  # tokens of the networks
CPU = torch.device("cpu")
ENGINES = {"eager": EagerModel, "static": StaticModel}
KINDS = ("t5", "gpt2", "llama")
LENGTHS = (1, 40, 3, 17, 8, 2, 29)


def prompts_of(kind: str, lengths: Sequence[int] = LENGTHS) -> list[Prompt]:
    generator = torch.Generator().manual_seed(7)
    texts = [tuple(torch.randint(2, SIZE, (length,), generator=generator).tolist()) for length in lengths]
    return [Prompt(text, (0,)) if kind.startswith("t5") else Prompt((), text) for text in texts]


def drafts_of(kind: str, engine: str, target: EagerModel) -> dict[str, Draft]:
    small, smaller = (ENGINES[engine](network(kind, seed, layers=1), SIZE, frozenset({1})) for seed in (2, 3))
    lookup = LookupDraft(SIZE, CPU, 2)
    return {
        "model": ModelDraft(small, SIZE),
        "the target": ModelDraft(target, SIZE),
        "sure": ModelDraft(small, SIZE, confidence=0.5),
        "lookup": lookup,
        "uniform": UniformDraft(SIZE, CPU),
        "cascade": CascadeDraft(small, ModelDraft(smaller, SIZE), 2, SIZE),
        "cascade of copies": CascadeDraft(small, lookup, 3, SIZE),
    }


def generator(index: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + index)


def alone(target: EagerModel, draft: Draft, prompts: list[Prompt], spec: DecodingSpec) -> list[Trace]:
    return [speculative(target, draft, prompt, spec, generator(index)) for index, prompt in enumerate(prompts)]


def in_rows(target: EagerModel, draft: Draft, prompts: list[Prompt], spec: DecodingSpec, rows: int) -> list[Trace]:
    batch, draft = Batch(target, rows), in_batch(draft, rows)
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


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_row_writes_what_it_writes_alone(kind: str, engine: str) -> None:
    target = ENGINES[engine](network(kind, 1), SIZE, frozenset({1}))
    prompts = prompts_of(kind)
    for draft in drafts_of(kind, engine, target).values():
        for gamma in (3, Heuristic(8)):
            spec = spec_of(Sampling(0.0), 24, gamma)
            same(in_rows(target, draft, prompts, spec, 3), alone(target, draft, prompts, spec))
    spec = spec_of(Sampling(0.0), 24)
    batch = Batch(target, 4)
    ours = together((autoregress(batch, prompt, spec, generator(0)) for prompt in prompts), 4, batch)
    assert [one.tokens for one in ours] == [
        autoregressive(target, prompt, spec, generator(0)).tokens for prompt in prompts
    ]
