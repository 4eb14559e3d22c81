"""A router chooses a draft before a token is drawn, so that rules stay exact; a choice by the tokens is caught."""

import pytest
import torch

from specbench.algorithm.draft import Draft, DraftSession
from specbench.config.drafts import DRAFT_KINDS
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.methods.lookup.config import LookupConfig
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.methods.ngram.config import BigramConfig
from specbench.methods.router.config import ACCEPTANCE, RouterConfig
from specbench.methods.router.draft import RouterDraft, RouterSession
from specbench.methods.several.config import HorizontalConfig
from specbench.methods.several.draft import HorizontalDraft
from specbench.methods.suffix.config import SuffixConfig
from specbench.methods.suffix.draft import SuffixDraft
from specbench.methods.target_layers.draft import EarlyExitDraft
from specbench.sampling import Sampling
from tests.support import chi
from tests.support.decode import autoregressive, speculative
from tests.support.networks import network
from tests.support.toy import EOS, PROMPT, START, VOCABULARY, ToyModel, random_table

CPU = torch.device("cpu")
WARM = Sampling(1.0)
TARGET, GOOD, OTHER = (ToyModel(random_table(seed)) for seed in (1, 2, 3))
LENGTH, SAMPLES, SIZE = 4, 2000, 40
BY_MATCH, BY_ACCEPTANCE = RouterConfig(least_match=1), RouterConfig(by=ACCEPTANCE)


def routers() -> dict[str, RouterDraft]:
    good, other = ModelDraft(GOOD, VOCABULARY), ModelDraft(OTHER, VOCABULARY)
    lookup, suffix = LookupDraft(VOCABULARY, CPU, 2), SuffixDraft(SuffixConfig(grow=True), VOCABULARY, CPU)
    return {
        "a copy else a model": RouterDraft([lookup, good], BY_MATCH),
        "a suffix else a model": RouterDraft([suffix, good], BY_MATCH),
        "two models": RouterDraft([good, other], BY_ACCEPTANCE),
        "a copy and a model": RouterDraft([lookup, good], BY_ACCEPTANCE),
    }


def p_value(draft: Draft) -> float:
    return chi.speculative_p_value(TARGET, draft, PROMPT, 3, WARM, LENGTH, SAMPLES)[0]


@pytest.mark.covering(most=2)
@pytest.mark.statistical
@pytest.mark.parametrize("name", list(routers()))
def test_the_text_has_the_targets_distribution(name: str) -> None:
    """One false alarm in 10,000 seeds each."""
    assert p_value(routers()[name]) > chi.ALARM


@pytest.mark.full
@pytest.mark.statistical
def test_a_choice_by_the_drawn_tokens_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both draft, and the proposal with the higher first token is verified with its own q."""

    def peeking(self, tokens, gamma, generator):  # type: ignore[no-untyped-def]
        return max((one.propose(tokens, gamma, generator) for one in self.sessions), key=lambda one: one.tokens)
        yield

    monkeypatch.setattr(RouterSession, "proposing", peeking)
    assert p_value(routers()["two models"]) < chi.ALARM


def test_it_copies_where_enough_tokens_match() -> None:
    lookup, model = LookupDraft(VOCABULARY, CPU, 3), ModelDraft(GOOD, VOCABULARY)
    generator, prompt = torch.Generator().manual_seed(0), Prompt((1, 2, 1), (START,))
    for least, texts in {1: 2, 2: 1, 3: 0}.items():
        copied = 0
        for text in ([START, 2], [START, 1, 2]):
            session = RouterDraft([lookup, model], RouterConfig(least_match=least)).start(prompt, WARM)
            proposal = session.propose(text, 3, generator)
            copied += proposal.q_GV is None
            assert proposal.operations == (0.0 if proposal.q_GV is None else len(proposal.tokens))
        assert copied == texts


def test_by_acceptance_it_counts_tested_tokens_and_takes_the_better_draft() -> None:
    good, other = ModelDraft(GOOD, VOCABULARY), ModelDraft(OTHER, VOCABULARY)
    session = RouterDraft([good, other], BY_ACCEPTANCE).start(PROMPT, WARM)
    assert isinstance(session, RouterSession)
    generator = torch.Generator().manual_seed(0)
    drafted = session.propose([START], 3, generator).tokens
    wrong = next(token for token in range(VOCABULARY) if token not in (drafted[0], EOS))
    session.rollback(1)
    session.propose([START, wrong], 3, generator)
    assert (session.seen[0].accepted, session.seen[0].tested, session.seen[1].tested) == (0, 1, 0)
    assert session._last is not None and session._last[0] == 1
    costly = RouterDraft([good, other], RouterConfig(by=ACCEPTANCE, price=3.0)).start(PROMPT, WARM)
    assert isinstance(costly, RouterSession)
    costly.seen[0].tested = 1
    costly.propose([START], 3, generator)
    assert costly._last is not None and costly._last[0] == 0


@pytest.mark.parametrize("name", ["a copy else a model", "a suffix else a model"])
def test_it_scores_with_the_q_of_the_draft_that_would_propose(name: str) -> None:
    """In one part and in several."""
    text = [START, *torch.randint(0, VOCABULARY - 1, (9,), generator=torch.Generator().manual_seed(2)).tolist()]
    text = [token + (token >= EOS) if token == EOS else token for token in text]
    draft = routers()[name]
    whole = list(draft.start(PROMPT, WARM).score_ahead(text, 1, 3))
    parts = draft.start(PROMPT, WARM)
    assert isinstance(parts, RouterSession)
    pieces = [list(parts.score_ahead(text[:5], 1, 3)), list(parts.score_ahead(text, 5, 3))]
    copied = 0
    for at in range(1, len(text)):
        proposal = draft.start(PROMPT, WARM).propose(text[:at], 3, torch.Generator().manual_seed(0))
        q_LV = proposal.q(torch.empty(3, VOCABULARY))
        copied += proposal.q_GV is None
        assert torch.allclose(whole[0][at - 1], q_LV[0])
        if proposal.q_GV is None:
            for place in range(at, min(at + 3, len(text))):
                drafted = proposal.tokens[place - at : place - at + 1]
                assert whole[place - at][place - 1].nonzero().flatten().tolist() == drafted
    assert 0 < copied < len(text) - 1
    for ahead in range(3):
        assert torch.equal(torch.cat([piece[ahead] for piece in pieces])[ahead:], whole[ahead][ahead:])


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_the_greedy_text_is_the_targets_own(kind: str) -> None:
    ends = frozenset({1})
    target, small = (EagerModel(network(kind, seed, layers=layers), SIZE, ends) for seed, layers in ((4, 2), (3, 1)))
    copying, model = LookupDraft(SIZE, CPU, 3), ModelDraft(small, SIZE)
    drafts = [
        RouterDraft([copying, model], BY_MATCH),
        RouterDraft([copying, EarlyExitDraft(target, 1)], BY_MATCH),
        RouterDraft([model, EarlyExitDraft(target, 1)], BY_ACCEPTANCE),
    ]
    for source in ((5, 9, 12, 30, 1), (17, 3, 22, 1)):
        prompt = Prompt(source, (0,)) if kind == "t5" else Prompt((), source[:-1])
        told = {"sampling": Sampling(0.0), "max_new_tokens": 20}
        own = autoregressive(target, prompt, generator=torch.Generator(), **told).tokens  # type: ignore[arg-type]
        for draft in drafts:
            for gamma in (1, 3):
                text = speculative(target, draft, prompt, gamma=gamma, generator=torch.Generator(), **told).tokens  # type: ignore[arg-type]
                assert text == own


class Following(ModelDraft):
    """A draft that follows the target, and where it was in each pass."""

    def start(self, prompt: Prompt, sampling: Sampling) -> DraftSession:
        session = super().start(prompt, sampling)
        self.passes: list[int] = []
        session.follow = lambda tokens: self.passes.append(len(tokens))  # type: ignore[attr-defined]
        return session


def test_a_draft_inside_a_part_follows_passes_in_which_another_proposes() -> None:
    good, other = Following(GOOD, VOCABULARY), ModelDraft(OTHER, VOCABULARY)
    inner = HorizontalDraft([good, other], (1,), VOCABULARY, frozenset({EOS}), CPU)
    session = RouterDraft([LookupDraft(VOCABULARY, CPU, 3), inner], BY_MATCH).start(Prompt((1, 2, 1), (START,)), WARM)
    for length in (2, 3):
        proposal = session.propose([START, 1, 2][:length], 3, torch.Generator().manual_seed(0))
        assert proposal.q_GV is None  # copied
    assert good.passes == [2, 3]


def test_what_its_drafts_are_it_is() -> None:
    """Heads read the target's state after the text, inside a router too."""
    config = RouterConfig(first=LookupConfig(), second=DRAFT_KINDS["eagle"](shipped="somewhere"))
    assert config.inside_target and config.first_alone
    with pytest.raises(UserError, match="so it can only be draft.first"):
        HorizontalConfig(first=BigramConfig(), second=config, lengths=[1]).check("draft")


def test_the_store_of_its_copy_grows() -> None:
    assert len(routers()["a suffix else a model"].stores()) == 1 and routers()["two models"].stores() == []


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "draft.second is not set: a router chooses between two drafts; give draft@draft.second=NAME"),
        ({"second": BigramConfig(), "first": BigramConfig()}, "draft.first=bigram: by=match requires a draft"),
        ({"second": BigramConfig(), "third": BigramConfig()}, "draft.third=bigram: a router chooses between"),
        ({"second": BigramConfig(), "by": "luck"}, "draft.by=luck: must be match | acceptance"),
        ({"second": BigramConfig(), "least_match": 0}, "draft.least_match=0: must be from 1 to 64"),
    ],
)  # fmt: skip
def test_errors_name_the_key(keys: dict[str, object], message: str) -> None:
    kind = DRAFT_KINDS["router"]
    with pytest.raises(UserError) as raised:
        kind(**({"first": LookupConfig()} | keys)).check("draft")
    assert str(raised.value).startswith(message)


def test_its_name_tells_how_it_chooses() -> None:
    parts = {"first": LookupConfig(), "second": BigramConfig()}
    assert RouterConfig(**parts).label() == "router-lookup-bigram"  # type: ignore[arg-type]
    assert RouterConfig(by=ACCEPTANCE, **parts).label() == "router-acceptance-lookup-bigram"  # type: ignore[arg-type]
