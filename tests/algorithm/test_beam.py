"""Beam search is `generate`'s, text for text and score for score, with a draft and without one, on both families."""

import math
from functools import cache

import pytest
import torch

from specbench.algorithm.beam import IMPOSSIBLE, BeamSettings, Hypothesis, begin, step
from specbench.algorithm.speculative_beam import BeamDraft, BeamTrace, beam_search, draft_beams
from specbench.bench.baselines import beam_search as generate
from specbench.engine.eager.model import EagerModel, PrefixBatch
from specbench.engine.session import Prompt
from tests.support.networks import network
from tests.support.prompts import THREE, prompts

KINDS = ["t5", "gpt2"]
SIZE = 40  # of the head's 64
LONGEST = 16
# Length penalties that draw to longer and to shorter texts, and each way of stopping.
STOPS: list[tuple[float, bool | str]] = [(1.0, False), (0.0, True), (2.0, "never"), (-0.5, False)]


@cache
def model(kind: str, seed: int = 4, layers: int = 2, ends: tuple[int, ...] = (1,)) -> EagerModel:
    made = network(kind, seed, layers)
    made.generation_config.eos_token_id = list(ends)
    return EagerModel(made, SIZE, frozenset(ends))


def draft(kind: str) -> EagerModel:
    return model(kind, seed=2, layers=1)


@cache
def close(kind: str) -> EagerModel:
    """A draft that is often right: the target with a little noise."""
    made = network(kind, 4)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in made.parameters():
            weight += 0.03 * weight.std() * torch.randn_like(weight)
    return EagerModel(made, SIZE, frozenset({1}))


@cache
def ends(kind: str) -> tuple[int, ...]:
    """Two tokens from the middle of the target's own completions, so that beams end throughout the search."""
    texts = [
        plain(model(kind), prompt, BeamSettings(4, LONGEST, frozenset({1}))).hypotheses[0].tokens
        for prompt in prompts(kind, THREE)
    ]
    return tuple(sorted({texts[0][-8], texts[1][-4]}))


def plain(target: EagerModel, prompt: Prompt, settings: BeamSettings) -> BeamTrace:
    return beam_search(PrefixBatch(target, prompt), prompt.prefix, settings)


def drafted(
    target: EagerModel, other: EagerModel, prompt: Prompt, settings: BeamSettings, u: int, gamma: int
) -> BeamTrace:
    beam_draft = BeamDraft(PrefixBatch(other, prompt), u, gamma)
    return beam_search(PrefixBatch(target, prompt), prompt.prefix, settings, beam_draft)


def same(found: list[Hypothesis], theirs: list[Hypothesis]) -> bool:
    scores = zip(found, theirs, strict=True)
    return [one.tokens for one in found] == [one.tokens for one in theirs] and all(
        math.isclose(ours.score, other.score, rel_tol=1e-4, abs_tol=1e-5) for ours, other in scores
    )


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_the_beams_are_transformers_for_every_u_gamma_penalty_and_way_of_stopping(kind: str, width: int) -> None:
    target = model(kind, ends=ends(kind))
    ways = [(close(kind), u, gamma) for u in (width, 2 * width) for gamma in (1, 2, 3, 5)]
    ways.append((draft(kind), width, 3))  # hardly ever right
    lengths, several = set(), 0
    for penalty, early in STOPS:
        settings = BeamSettings(width, LONGEST, target.eos_ids, penalty, early)
        for number, prompt in enumerate(prompts(kind, THREE)):
            theirs = generate(target.network, prompt, settings, SIZE)
            lengths |= {len(one.tokens) - len(prompt.prefix) for one in theirs}
            alone = plain(target, prompt, settings)
            assert same(alone.hypotheses, theirs), (penalty, early)
            steps = len(alone.passes)
            for other, u, gamma in ways[number::3]:  # over the three prompts all of them
                trace = drafted(target, other, prompt, settings, u, gamma)
                assert same(trace.hypotheses, theirs), (u, gamma, penalty, early)
                assert sum(one.steps for one in trace.passes) == steps
                assert all(1 <= one.steps <= one.drafted + 1 <= gamma + 1 for one in trace.passes)
                several += sum(1 < one.steps <= one.drafted for one in trace.passes)
    assert len(lengths) > 3 and min(lengths) < LONGEST  # beams did end, here and there
    assert several  # a pass stopped in the middle of what was drafted


@pytest.mark.parametrize("kind", ["t5-v1_1", "llama", "mistral"])
def test_other_architectures_too(kind: str) -> None:
    target = model(kind)
    settings = BeamSettings(3, LONGEST, target.eos_ids, 0.7, True)
    for prompt in prompts(kind, THREE):
        theirs = generate(target.network, prompt, settings, SIZE)
        assert same(drafted(target, close(kind), prompt, settings, 5, 4).hypotheses, theirs)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_that_is_the_target_is_never_refused(kind: str) -> None:
    target = model(kind, ends=ends(kind))
    for gamma in (1, 2, 3, 5):
        for penalty, early in STOPS[1:3]:
            settings = BeamSettings(3, LONGEST, target.eos_ids, penalty, early)
            for prompt in prompts(kind, THREE)[:2]:
                steps = len(plain(target, prompt, settings).passes)
                trace = drafted(target, target, prompt, settings, settings.width, gamma)
                assert len(trace.passes) == math.ceil(steps / (gamma + 1))
                assert all(one.steps == gamma + 1 for one in trace.passes[:-1])


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_the_length_limit_is_kept_and_nothing_is_drafted_past_it(tokens: int) -> None:
    target = model("gpt2")
    settings = BeamSettings(4, tokens, target.eos_ids)
    for prompt in prompts("gpt2", THREE):
        trace = drafted(target, target, prompt, settings, 4, 5)
        assert same(trace.hypotheses, generate(target.network, prompt, settings, SIZE))
        assert [one.drafted for one in trace.passes] == [tokens - 1]


def only_the_best_is_checked(
    target: EagerModel, other: EagerModel, prompt: Prompt, settings: BeamSettings
) -> list[Hypothesis]:
    """Wrong: a step is taken when the best beam was drafted, and the others are dropped where they were not."""
    ours, beam_draft = PrefixBatch(target, prompt), BeamDraft(PrefixBatch(other, prompt), settings.width, 3)
    beams = begin(prompt.prefix, settings)
    while not beams.finished:
        gamma = min(3, settings.max_new_tokens - beams.written - 1)
        rows = ours.read([*beams.running, *draft_beams(beam_draft, beams, gamma, settings.eos_ids)])
        while not beams.finished and beams.running[0] in rows:
            dropped = dict.fromkeys(beams.running, torch.full((64,), IMPOSSIBLE))
            beams = step(beams, dropped | rows, settings)
    return beams.ended


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_checking_the_best_beam_alone_would_be_caught(kind: str) -> None:
    target, settings = model(kind), BeamSettings(4, LONGEST, frozenset({1}))
    told = [generate(target.network, prompt, settings, SIZE) for prompt in prompts(kind, THREE)]
    wrong = [only_the_best_is_checked(target, close(kind), prompt, settings) for prompt in prompts(kind, THREE)]
    assert not all(same(found, theirs) for found, theirs in zip(wrong, told, strict=True))
    right = [drafted(target, close(kind), prompt, settings, 4, 3).hypotheses for prompt in prompts(kind, THREE)]
    assert all(same(found, theirs) for found, theirs in zip(right, told, strict=True))
