"""Greedy identity in fp32, on real architectures: ours with `transformers.generate`, and speculative with ours."""

from collections.abc import Iterator
from functools import cache

import pytest
import torch

from specbench.algorithm.draft import Draft
from specbench.algorithm.gamma import Adaptive, Gamma
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.methods.from_text import gather
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.methods.ngram.counts import fit
from specbench.methods.ngram.draft import NgramDraft, UniformDraft
from specbench.methods.suffix.config import SuffixConfig
from specbench.methods.suffix.draft import SuffixDraft
from specbench.records.decoded import Trace
from specbench.sampling import Sampling
from tests.support.decode import autoregressive, speculative
from tests.support.networks import network
from tests.support.prompts import THREE, prompts

KINDS = ["t5", "t5-v1_1", "gpt2", "llama", "mistral"]
SIZE = 40
GREEDY = Sampling(0.0)


@cache
def target_of(kind: str) -> EagerModel:
    return EagerModel(network(kind, 4), SIZE, frozenset({1}))


def drafts(kind: str) -> dict[str, Draft]:
    counts = fit(gather([(4, 7, 9, 12, 1), (4, 7, 30, 1)], 0), SIZE, 3)
    cpu = torch.device("cpu")
    return {
        "other weights": ModelDraft(EagerModel(network(kind, 2, layers=1), SIZE, frozenset({1})), SIZE),
        "the target itself": ModelDraft(target_of(kind), SIZE),
        "unigram": NgramDraft(counts, 1, 0.75, cpu),
        "bigram": NgramDraft(counts, 2, 0.75, cpu),
        "3-gram": NgramDraft(counts, 3, 0.75, cpu),
        "random": UniformDraft(SIZE, cpu),
        "lookup": LookupDraft(SIZE, cpu, match=3),
        "suffix": SuffixDraft(SuffixConfig(), SIZE, cpu),
    }


def baseline(kind: str, prompt: Prompt, tokens: int = 24) -> list[int]:
    generator = torch.Generator().manual_seed(0)
    trace = autoregressive(target_of(kind), prompt, sampling=GREEDY, max_new_tokens=tokens, generator=generator)
    assert len(trace.steps_s) == len(trace.tokens)
    return trace.tokens


def identical_traces(kind: str, gamma: int | Gamma) -> Iterator[tuple[str, Trace]]:
    """Each draft's name with its trace of each prompt, whose text is asserted to be the baseline's."""
    for name, draft in drafts(kind).items():
        for prompt in prompts(kind, THREE):
            trace = speculative(
                target_of(kind), draft, prompt,
                gamma=gamma, sampling=GREEDY, max_new_tokens=24, generator=torch.Generator().manual_seed(3),
            )  # fmt: skip
            assert trace.tokens == baseline(kind, prompt), name
            yield name, trace


@pytest.mark.parametrize("kind", KINDS)
def test_the_baseline_is_transformers_greedy_search(kind: str) -> None:
    seen = set()
    for prompt in prompts(kind, THREE):
        ids = prompt.source or prompt.prefix
        with torch.inference_mode():
            theirs = target_of(kind).network.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                max_new_tokens=24,
                do_sample=False,
                # The head is wider than the tokenizer; ours never picks from the padding.
                suppress_tokens=list(range(SIZE, 64)),
            )[0]
        skipped = 1 if prompt.source else len(ids)
        assert baseline(kind, prompt) == theirs[skipped:].tolist()
        seen |= set(theirs[skipped:].tolist())
    assert len(seen) > 4  # a constant text would prove little


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("gamma", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_speculative_is_the_baseline_for_every_draft_and_gamma(kind: str, gamma: int) -> None:
    for name, trace in identical_traces(kind, gamma):
        assert sum(p.emitted for p in trace.passes) == len(trace.tokens)
        if name == "the target itself":
            assert all(p.accepted == p.drafted for p in trace.passes)


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("kind", KINDS)
def test_an_adaptive_gamma_writes_the_same_text(kind: str) -> None:
    adaptive = Adaptive(alpha=0.6, prices={gamma: 1 + 0.2 * gamma for gamma in range(1, 9)}, weight=2.0)
    used = set()
    for _, trace in identical_traces(kind, adaptive):
        used |= {a_pass.drafted for a_pass in trace.passes}
    assert len(used) > 2  # it did adapt


@pytest.mark.parametrize("tokens", [1, 2, 5, 6, 7])
def test_the_length_limit_is_kept_exactly(tokens: int) -> None:
    for prompt in prompts("gpt2", THREE):
        full = baseline("gpt2", prompt)
        trace = speculative(
            target_of("gpt2"), drafts("gpt2")["the target itself"], prompt,
            gamma=5, sampling=GREEDY, max_new_tokens=tokens, generator=torch.Generator(),
        )  # fmt: skip
        assert trace.tokens == full[:tokens]


def test_the_text_ends_at_the_first_end_inside_an_accepted_block() -> None:
    prompt = prompts("gpt2", THREE)[0]
    full = baseline("gpt2", prompt)
    end = full[6]
    first = full.index(end)
    ending = EagerModel(target_of("gpt2").network, SIZE, frozenset({end}))
    for draft in (ModelDraft(ending, SIZE), ModelDraft(target_of("gpt2"), SIZE)):
        trace = speculative(
            ending, draft, prompt, gamma=8, sampling=GREEDY, max_new_tokens=24, generator=torch.Generator()
        )
        assert trace.tokens == full[: first + 1]
        assert trace.passes[-1].emitted <= trace.passes[-1].accepted + 1


def test_a_prompt_does_not_depend_on_its_neighbours() -> None:
    target, draft = target_of("llama"), drafts("llama")["other weights"]

    def sample(order: list[int]) -> dict[int, list[int]]:
        return {
            i: speculative(
                target, draft, prompts("llama", THREE)[i],
                gamma=3, sampling=Sampling(1.0), max_new_tokens=12, generator=torch.Generator().manual_seed(i),
            ).tokens
            for i in order
        }  # fmt: skip

    assert sample([0, 1, 2]) == sample([2, 1, 0])
