"""Cascades: a draft that drafts with a cheaper one leaves the target's distribution as it is, and hands out the middle
model's q."""

import chi
import pytest
import torch
from decode import autoregressive, speculative
from networks import network
from test_predict import predictions
from toy import EOS, PROMPT, START, VOCABULARY, ToyModel, exact, random_table

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.draft import Draft, DraftSession, start_draft
from specbench.analysis.acceptance.agreement import agreements
from specbench.choose.passes import InnerRanking, of_cascades
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt, Session
from specbench.methods.cascade.draft import CascadeDraft, CascadeSession
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.methods.ngram.draft import UniformDraft
from specbench.methods.target_layers.draft import EarlyExitDraft
from specbench.sampling import Sampling

CPU = torch.device("cpu")
WARM = Sampling(1.0)
TARGET, MIDDLE, INNER = (ToyModel(random_table(seed)) for seed in (1, 2, 3))
LENGTH, SAMPLES = 4, 2000
SIZE = 40  # tokens of the networks


def inner_drafts() -> dict[str, Draft]:
    return {
        "model": ModelDraft(INNER, VOCABULARY),
        "the middle itself": ModelDraft(MIDDLE, VOCABULARY),
        "uniform": UniformDraft(VOCABULARY, CPU),
        "lookup": LookupDraft(VOCABULARY, CPU, 2),
        "cascade": CascadeDraft(INNER, UniformDraft(VOCABULARY, CPU), 1, VOCABULARY),
    }


def p_value(draft: Draft, sampling: Sampling, gamma: int = 3) -> float:
    return chi.speculative_p_value(TARGET, draft, PROMPT, gamma, sampling, LENGTH, SAMPLES)[0]


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("name", list(inner_drafts()))
def test_the_text_has_the_targets_distribution(name: str) -> None:
    assert p_value(CascadeDraft(MIDDLE, inner_drafts()[name], 2, VOCABULARY), WARM) > chi.ALARM


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("inner_gamma", [1, 3])
def test_with_every_setting_of_the_distribution(inner_gamma: int) -> None:
    sampling = Sampling(1.3, top_k=3, top_p=0.9)
    draft = CascadeDraft(MIDDLE, inner_drafts()["model"], inner_gamma, VOCABULARY)
    assert p_value(draft, sampling, gamma=4) > chi.ALARM


@pytest.mark.statistical
def test_what_is_drafted_has_the_middle_models_distribution() -> None:
    """Both tokens of a proposal, whichever of them the inner draft wrote."""
    draft = CascadeDraft(MIDDLE, inner_drafts()["model"], 2, VOCABULARY)

    def propose(generator: torch.Generator) -> list[int]:
        return draft.start(PROMPT, WARM).propose([START], 2, generator).tokens

    assert chi.p_value(propose, exact(MIDDLE, WARM, 2), SAMPLES) > chi.ALARM


class InnerQ(CascadeDraft):
    """Hands out the inner draft's q: the distribution that tokens were first drawn from, and not what came through."""

    def start(self, prompt: Prompt, sampling: Sampling) -> CascadeSession:
        return InnerQSession(self, prompt, sampling)


class InnerQSession(CascadeSession):
    def proposing(self, tokens, gamma, generator):  # type: ignore[no-untyped-def]
        proposal = yield from super().proposing(tokens, gamma, generator)
        inner = self.draft.inner.start(PROMPT, self.sampling)
        return Proposal(proposal.tokens, inner.score([*tokens, *proposal.tokens], len(tokens)))


@pytest.mark.statistical
def test_q_taken_from_the_inner_draft_is_caught() -> None:
    assert p_value(InnerQ(MIDDLE, inner_drafts()["model"], 2, VOCABULARY), WARM) < chi.ALARM


def test_q_is_the_middle_models_row_at_each_token() -> None:
    draft, alone = CascadeDraft(MIDDLE, inner_drafts()["model"], 2, VOCABULARY), ModelDraft(MIDDLE, VOCABULARY)
    generator = torch.Generator().manual_seed(3)
    for gamma in range(1, 9):
        session = draft.start(PROMPT, WARM)
        proposal = session.propose([START], gamma, generator)
        assert len(proposal.tokens) == gamma or (len(proposal.tokens) < gamma and proposal.tokens[-1] == EOS)
        assert EOS not in proposal.tokens[:-1]
        expected = alone.start(PROMPT, WARM).score([START, *proposal.tokens], 1)
        assert proposal.q_GV is not None and torch.allclose(proposal.q_GV, expected)
        assert torch.allclose(draft.start(PROMPT, WARM).score([START, *proposal.tokens], 1), expected)


class AsIfFresh:
    """A draft whose every greedy proposal must be that of a session which has seen the present text alone."""

    operations = 0.0

    def __init__(self, draft: Draft, prompt: Prompt) -> None:
        self.draft, self.prompt, self.proposals = draft, prompt, 0

    def start(self, prompt: Prompt, sampling: Sampling) -> DraftSession:
        raise NotImplementedError

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> DraftSession:
        self.session = start_draft(session, self.draft, prompt, sampling)
        self.rollback, self.score = self.session.rollback, self.session.score
        return self

    def propose(self, tokens, gamma, generator):  # type: ignore[no-untyped-def]
        proposal = self.session.propose(tokens, gamma, generator)
        fresh = self.draft.start(self.prompt, Sampling(0.0))
        assert proposal.tokens == fresh.propose(tokens, gamma, generator).tokens
        self.proposals += 1
        return proposal


@pytest.mark.parametrize("name", ["lookup", "model", "early exit"])
def test_the_inner_draft_forgets_what_the_target_rejected(name: str) -> None:
    target, middle, small = (
        EagerModel(network("gpt2", seed, layers=layers), SIZE, frozenset()) for seed, layers in ((4, 2), (2, 2), (3, 1))
    )
    drafts: dict[str, Draft] = {
        "lookup": LookupDraft(SIZE, CPU, 2), "model": ModelDraft(small, SIZE), "early exit": EarlyExitDraft(middle, 1)
    }  # fmt: skip
    prompt = Prompt((), (5, 9, 12, 30))
    inner = AsIfFresh(drafts[name], prompt)
    trace = speculative(
        target, CascadeDraft(middle, inner, 2, SIZE), prompt,
        gamma=4, sampling=Sampling(0.0), max_new_tokens=24, generator=torch.Generator(),
    )  # fmt: skip
    assert any(a_pass.accepted < a_pass.drafted for a_pass in trace.passes) and inner.proposals > 20


def test_operations_are_counted_in_the_proposal() -> None:
    """With an inner draft that is always right each pass of the middle model gives inner_gamma + 1 tokens; what was
    drafted before changes nothing."""
    draft = CascadeDraft(MIDDLE, ModelDraft(MIDDLE, VOCABULARY), 2, VOCABULARY)
    generator, counted = torch.Generator().manual_seed(0), set()
    for _ in range(20):
        proposal = draft.start(PROMPT, WARM).propose([START], 3, generator)
        if len(proposal.tokens) == 3:  # no end of sequence cut it
            counted.add(proposal.operations)
        assert draft.operations == 3 * 1.0 + 2 * 1.0  # a token, as if it were never right
    assert counted == {3 * 1.0 + 2 * 1.0}


def test_operations_of_a_cascade_inside_a_cascade_add_up() -> None:
    """Inner drafts that are always right: 3 positions of the middle for 3 tokens, drafted by 2 positions of the inner
    cascade's model, which 1 of its own inner draft wrote."""
    inner = CascadeDraft(MIDDLE, ModelDraft(MIDDLE, VOCABULARY), 1, VOCABULARY)
    draft = CascadeDraft(MIDDLE, inner, 2, VOCABULARY)
    proposals = (
        draft.start(PROMPT, WARM).propose([START], 3, torch.Generator().manual_seed(seed)) for seed in range(20)
    )
    assert {one.operations for one in proposals if len(one.tokens) == 3} == {3.0 + 2.0 + 1.0}


SOURCES = [(5, 9, 12, 30, 1), (17, 3, 22, 1)]


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_the_greedy_text_is_the_targets_own(kind: str) -> None:
    ends = frozenset({1})
    target, middle, small = (
        EagerModel(network(kind, seed, layers=layers), SIZE, ends) for seed, layers in ((4, 2), (2, 1), (3, 1))
    )
    inner: dict[str, Draft] = {"small": ModelDraft(small, SIZE), "lookup": LookupDraft(SIZE, CPU, 3)}
    drafts = {name: CascadeDraft(middle, one, 2, SIZE) for name, one in inner.items()}
    drafts["early exit"] = CascadeDraft(target, EarlyExitDraft(target, 1), 2, SIZE)
    drafts["the target itself"] = CascadeDraft(target, inner["small"], 3, SIZE)
    for source in SOURCES:
        prompt = Prompt(source, (0,)) if kind == "t5" else Prompt((), source[:-1])
        told = {"sampling": Sampling(0.0), "max_new_tokens": 20}
        own = autoregressive(target, prompt, generator=torch.Generator(), **told).tokens  # type: ignore[arg-type]
        for name, draft in drafts.items():
            for gamma in (1, 2, 3, 5, 8):
                trace = speculative(target, draft, prompt, gamma=gamma, generator=torch.Generator(), **told)  # type: ignore[arg-type]
                assert trace.tokens == own, (name, gamma)
                if name == "the target itself":
                    assert all(a_pass.accepted == a_pass.drafted for a_pass in trace.passes)
        alone, cascade = agreements(target, [ModelDraft(middle, SIZE), drafts["small"]], prompt, own, Sampling(0.0))
        assert alone == cascade  # alpha is the middle model's


def test_a_recommendation_names_the_lengths_of_a_cascade() -> None:
    """The best inner length is the gamma of Theorem 3.8 inside; its speedup divides c outside."""
    table, inner = predictions({"cascade": 0.8}, {"cascade": 0.25}), predictions({"cheap": 0.6}, {"cheap": 0.01})
    (line,) = of_cascades(table, {"cascade": InnerRanking(5, inner), "of another name": InnerRanking(2, inner)})
    speedups = {one.gamma: one.calibrated for one in inner.ranked}
    best = max(speedups, key=lambda gamma: speedups[gamma])
    c = 0.25 * speedups[5] / speedups[best]
    assert f"best draft.inner_gamma={best} gamma=" in line and f"with c={c:.3f} (c=0.250 measured" in line
    useless = predictions({"bad": 0.05}, {"bad": 0.5})
    (line,) = of_cascades(table, {"cascade": InnerRanking(2, useless)})
    assert line.endswith("no inner draft helps: draft with the middle model alone")
