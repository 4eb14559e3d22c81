"""Cascades: a draft that drafts with a cheaper one leaves the target's distribution as it is, and hands out the middle
model's q."""

from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.algorithm.acceptance.base import PendingProposal, Proposal
from specbench.algorithm.draft import Draft, DraftSession
from specbench.algorithm.tree_draft import TreeDraft
from specbench.analysis.acceptance.agreement import agreements
from specbench.choose.inner_drafts import InnerRanking, of_cascades
from specbench.cli import main
from specbench.config.drafts import DRAFT_KINDS
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt, Session
from specbench.engine.weights.load import round_weights
from specbench.errors import UserError
from specbench.loading.model_loader import ModelRequest
from specbench.methods.cascade.config import CascadeConfig
from specbench.methods.cascade.draft import CascadeDraft, CascadeSession
from specbench.methods.lookup.config import LookupConfig
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft, ModelDraftSession
from specbench.methods.ngram.config import BigramConfig
from specbench.methods.ngram.draft import UniformDraft
from specbench.methods.pard.draft import PardDraft
from specbench.methods.quantised import draft as quantised
from specbench.methods.router.config import RouterConfig
from specbench.methods.router.draft import RouterDraft
from specbench.methods.several.draft import HorizontalDraft
from specbench.methods.suffix.config import SuffixConfig
from specbench.methods.suffix.draft import SuffixDraft
from specbench.methods.target_layers.draft import EarlyExitDraft
from specbench.sampling import Sampling
from specbench.theory.trees import TreeShape
from tests.support import block_checkpoints as checkpoints
from tests.support import block_drafts as blocks
from tests.support import chi
from tests.support import peagle_files as peagle
from tests.support.batch_rows import alone, in_rows, same
from tests.support.calls import newest, refusal, small
from tests.support.decode import autoregressive, spec_of, speculative
from tests.support.mtp_checkpoints import started
from tests.support.networks import network
from tests.support.predictions import predictions
from tests.support.prompts import SOURCES
from tests.support.toy import EOS, PROMPT, START, VOCABULARY, ToyModel, exact, random_table

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
        "suffix": SuffixDraft(SuffixConfig(depth=3), VOCABULARY, CPU),
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
        return InnerQSession(self, self.model.start(prompt), prompt, sampling)


class InnerQSession(CascadeSession):
    def proposing(self, tokens, gamma, generator):  # type: ignore[no-untyped-def]
        proposal = yield from super().proposing(tokens, gamma, generator)
        inner = self.draft.inner.start(PROMPT, self.sampling)
        return Proposal(proposal.tokens, inner.score([*tokens, *proposal.tokens], len(tokens)))


@pytest.mark.statistical
def test_q_taken_from_the_inner_draft_is_caught() -> None:
    assert p_value(InnerQ(MIDDLE, inner_drafts()["model"], 2, VOCABULARY), WARM) < chi.ALARM


class StaysOnDevice(ModelDraft):
    """As where its steps are one graph: the host does not know its tokens before the verdict."""

    def start(self, prompt: Prompt, sampling: Sampling) -> "StayingSession":
        return StayingSession(self.model, self.model.start(prompt), sampling, self.vocabulary_size)


class StayingSession(ModelDraftSession):
    def proposing(self, tokens, gamma, generator):  # type: ignore[no-untyped-def]
        proposal = yield from super().proposing(tokens, gamma, generator)
        if not proposal.tokens:
            return proposal
        return PendingProposal(torch.tensor(proposal.tokens), proposal.q_GV, self._ends_E)


@pytest.mark.parametrize("inner", [ModelDraft(INNER, VOCABULARY), StaysOnDevice(INNER, VOCABULARY)])
def test_q_is_the_middle_models_row_at_each_token(inner: Draft) -> None:
    draft, alone = CascadeDraft(MIDDLE, inner, 2, VOCABULARY), ModelDraft(MIDDLE, VOCABULARY)
    generator = torch.Generator().manual_seed(3)
    for gamma in range(1, 9):
        session = draft.start(PROMPT, WARM)
        proposal = session.propose([START], gamma, generator)
        assert len(proposal.tokens) == gamma or (len(proposal.tokens) < gamma and proposal.tokens[-1] == EOS)
        assert EOS not in proposal.tokens[:-1]
        expected = alone.start(PROMPT, WARM).score([START, *proposal.tokens], 1)
        assert proposal.q_GV is not None and torch.allclose(proposal.q_GV, expected)
        assert torch.allclose(draft.start(PROMPT, WARM).score([START, *proposal.tokens], 1), expected)


class AsIfFresh(Draft, DraftSession):
    """A draft whose every greedy proposal must be that of a session which has seen the present text alone."""

    operations = 0.0

    def __init__(self, draft: Draft, prompt: Prompt) -> None:
        self.draft, self.prompt, self.proposals = draft, prompt, 0

    def start(self, prompt: Prompt, sampling: Sampling) -> DraftSession:
        raise NotImplementedError

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> DraftSession:
        self.session = self.draft.start_on(session, prompt, sampling)
        return self

    def rollback(self, length: int) -> None:
        self.session.rollback(length)

    def score(self, tokens, prefix_length):  # type: ignore[no-untyped-def]
        return self.session.score(tokens, prefix_length)

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


# Drafts inside the middle model, beside it and of it; their networks, so that a target is like the middle model.
OTHERS = {
    "mtp": ("gpt2", 2), "dflash": ("llama", 3), "dspark": ("llama", 3), "peagle": ("llama", 7), "pard": ("llama", 2),
    "suffix": ("llama", 2), "quantised": ("llama", 2), "router": ("llama", 3),
}  # fmt: skip
SHORT = Prompt((), (5, 9, 12, 30))


def middle_with(name: str, folder: Path, size: int = SIZE, end: int = 1) -> tuple[EagerModel, Draft]:
    """A middle model, and a draft of this kind for it."""
    ends, (kind, layers) = frozenset({end}), OTHERS[name]
    if name == "mtp":
        return started(EagerModel, size, end)
    if name in blocks.KINDS:
        return blocks.made(folder, name, size, end)
    if name == "peagle":
        middle, draft = peagle.made("EAGLE-3's own", folder, size, end)
        if size == VOCABULARY:
            draft.eagle.draft_vocabulary.copy_(torch.arange(len(draft.eagle.draft_vocabulary)))
        return middle, draft
    suffix = SuffixDraft(SuffixConfig(depth=4), size, CPU)
    if name == "router":
        middle, inside = blocks.made(folder, "dflash", size, end)
        return middle, RouterDraft([suffix, inside], RouterConfig(least_match=1))
    middle, other = (EagerModel(network(kind, seed, layers), size, ends) for seed in (4, 5))
    if name == "suffix":
        return middle, suffix
    if name == "pard":
        return middle, PardDraft(other, 50, CPU)
    small = network(kind, 4, layers)
    round_weights(small, 4)
    return middle, ModelDraft(EagerModel(small, size, ends), size)


def like_the_middle(name: str, size: int = SIZE, end: int = 1, noise: float = 0.01) -> EagerModel:
    """A target that accepts some of the middle model's tokens."""
    kind, layers = OTHERS[name]
    own = network(kind, 4, layers)
    with torch.no_grad():
        for weight in own.parameters():
            weight.add_(torch.randn_like(weight), alpha=noise)
    return EagerModel(own, size, frozenset({end}))


@pytest.mark.parametrize("name", OTHERS)
def test_other_drafts_inside_a_cascade(name: str, tmp_path: Path) -> None:
    """The greedy text is the target's own, as a chain and as a tree, and the inner draft forgets what was rejected."""
    target, (middle, draft) = like_the_middle(name), middle_with(name, tmp_path)
    told: dict[str, Any] = {"sampling": Sampling(0.0), "max_new_tokens": 24, "generator": torch.Generator()}
    own, shares = autoregressive(target, SHORT, **told).tokens, set()
    for gamma in (2, 5):
        inner = AsIfFresh(draft, SHORT)
        trace = speculative(target, CascadeDraft(middle, inner, 2, SIZE), SHORT, gamma=gamma, **told)
        assert trace.tokens == own and inner.proposals > 4
        shares |= {a_pass.accepted == a_pass.drafted for a_pass in trace.passes[:-1]}
    assert shares == {False, True}  # after which the middle model has, and has not, read all but the newest token
    tree, shape = CascadeDraft(middle, draft, 2, SIZE, CPU), TreeShape.of_widths([2, 2, 1])
    trace = speculative(target, TreeDraft(tree, shape, "fixed", target.eos_ids), SHORT, gamma=shape.depth, **told)
    assert trace.tokens == own and any(a_pass.parents for a_pass in trace.passes)


@pytest.mark.statistical
@pytest.mark.covering(most=1)
@pytest.mark.parametrize("name", OTHERS)
def test_texts_with_other_drafts_inside_have_the_targets_distribution(name: str, tmp_path: Path) -> None:
    middle, draft = middle_with(name, tmp_path, VOCABULARY, EOS)
    target, cascade = like_the_middle(name, VOCABULARY, EOS, 0.02), CascadeDraft(middle, draft, 2, VOCABULARY)
    found, rejected = chi.speculative_p_value(target, cascade, PROMPT, 3, Sampling(2.0), 3, 200)
    assert found > chi.ALARM and rejected > 10


@pytest.mark.parametrize("name", ["dflash", "pard"])
def test_a_row_of_a_batch_writes_what_it_writes_alone(name: str, tmp_path: Path) -> None:
    target, (middle, draft) = like_the_middle(name), middle_with(name, tmp_path)
    cascade, spec = CascadeDraft(middle, draft, 2, SIZE), spec_of(Sampling(0.0), 10, 3)
    prompts = [Prompt((), prefix) for prefix in ((5, 9), (17, 3, 22, 8), (4, 4, 30))]
    same(in_rows(target, cascade, prompts, spec, 2), alone(target, cascade, prompts, spec))


def test_a_cascade_inside_other_drafts(tmp_path: Path) -> None:
    """As the second of a router, and after a block of the target's own drafter."""
    target, first = blocks.made(tmp_path, "dflash")
    middle, inner = middle_with("pard", tmp_path)
    cascade = CascadeDraft(middle, inner, 2, SIZE)
    told: dict[str, Any] = {"sampling": Sampling(0.0), "max_new_tokens": 20, "generator": torch.Generator()}
    own = autoregressive(target, SHORT, **told).tokens
    for draft in (
        RouterDraft([SuffixDraft(SuffixConfig(), SIZE, CPU), cascade], RouterConfig()),
        HorizontalDraft([first, cascade], (2,), SIZE, target.eos_ids, CPU),
    ):
        assert speculative(target, draft, SHORT, gamma=5, **told).tokens == own


@pytest.mark.parametrize("kind", sorted(OTHERS.keys() - {"quantised"}))
def test_only_a_model_verifies_inside(kind: str) -> None:
    made = DRAFT_KINDS[kind]
    via = RouterConfig(first=LookupConfig(), second=BigramConfig()) if kind == "router" else made()
    if "shipped" in vars(via):
        via.shipped = "somewhere"  # type: ignore[attr-defined]
    with pytest.raises(UserError) as raised:
        CascadeConfig(via=via, inner=BigramConfig()).check("draft")
    assert str(raised.value) == f"draft.via.kind={kind}: must be model | quantised: the target checks its distribution"


def argv(folders: dict[str, Path], kind: str, results: Path, *more: str) -> list[str]:
    """A run of a cascade whose target has one layer and whose middle model two."""
    own = ("draft=cascade", f"draft.via.path={folders[kind]}", "max_new_tokens=8", "limit=3", "gamma=3")
    return ["run", *small(folders, results, *own, *more, kind=f"{kind}-draft")]


def test_a_run_with_a_block_drafter_inside(folders: dict[str, Path], tmp_path: Path) -> None:
    told = checkpoints.config("dflash", num_target_layers=2)
    told["dflash_config"]["target_layer_ids"] = [-1, 0]
    folder = checkpoints.write(tmp_path / "own", told, checkpoints.state("dflash", blocks.network()))
    more = "draft@draft.inner=dflash", f"draft.inner.path={folder}"
    assert main(argv(folders, "llama", tmp_path / "results", *more)) == 0
    summary = newest(tmp_path / "results")["summary"]
    assert (summary["draft"], summary["identical"]) == ("cascade-dflash-own-llama", 1.0)


def test_what_is_quantised_inside_is_the_middle_model(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Any]()

    def noted(*given: Any, **told: Any) -> ModelRequest:
        asked.append(given[0])
        return ModelRequest(*given, **told)

    monkeypatch.setattr(quantised, "ModelRequest", noted)
    assert main(argv(folders, "llama", tmp_path, "draft@draft.inner=quantised")) == 0
    assert newest(tmp_path)["summary"]["identical"] == 1.0
    assert [one.path for one in asked] == [str(folders["llama"])]


@pytest.mark.parametrize("inner", ["dflash", "mtp"])
def test_a_middle_model_that_an_inner_draft_does_not_support_is_named(
    inner: str, folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told = checkpoints.config("dflash")
    folder = checkpoints.write(tmp_path / "own", told, checkpoints.state("dflash", blocks.network()))
    more = f"draft@draft.inner={inner}", f"draft.inner.path={folder}"
    said = refusal(argv(folders, "t5", tmp_path / "results", *more), capfd)
    assert said.startswith("specbench: draft.inner") and "is for decoder-only targets" in said


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
    assert line.endswith("no inner draft helps: draft with only the middle model")
