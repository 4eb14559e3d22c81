"""A draft's steps as one captured graph: the same tokens as step by step, and one copy to the host a pass."""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import AcceptanceRule, PendingProposal
from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.algorithm.acceptance.rules.exact import AcceptByChance, accept_exact
from specbench.algorithm.acceptance.rules.lenient import lenient
from specbench.algorithm.acceptance.rules.top_beta import TopBeta
from specbench.algorithm.acceptance.rules.typical import Typical
from specbench.algorithm.draft import Draft
from specbench.algorithm.gamma import Constant, Gamma, Heuristic
from specbench.engine import selection as engines
from specbench.engine.cuda.graphs import CudaGraphModel
from specbench.engine.cuda.replayed import Rollout, RolloutGraph
from specbench.engine.session import Prompt
from specbench.methods.cascade.draft import CascadeDraft
from specbench.methods.model.draft import ModelDraft
from specbench.records.decoded import Trace
from specbench.sampling import Sampling, TokenChoice
from tests.support.calls import called
from tests.support.captured import Repeated
from tests.support.decode import speculative
from tests.support.host_reads import HostReads
from tests.support.networks import network
from tests.support.prompts import varied

SIZE = 40
ENDS = frozenset({1, 7, 8, 9, 11, 12, 30})
SAMPLINGS = [
    Sampling(), Sampling(1.0), Sampling(0.7, top_k=9), Sampling(1.3, top_p=0.8), Sampling(1.0, top_k=20, top_p=0.9),
]  # fmt: skip


class StepByStep(CudaGraphModel):
    """The same engine, which captures no rollout."""

    def expect_rollouts(self, choice: TokenChoice, steps: Sequence[int]) -> None:
        """None is captured."""


def pair(
    kind: str, engine: type[CudaGraphModel], ends: frozenset[int], draft_ends: frozenset[int] | None = None
) -> tuple[CudaGraphModel, CudaGraphModel]:
    target, draft = model(CudaGraphModel, kind, 5, 2), model(engine, kind, 6, 1)
    target.eos_ids, draft.eos_ids = ends, ends if draft_ends is None else draft_ends
    return target, draft


@lru_cache
def model(engine: type[CudaGraphModel], kind: str, seed: int, layers: int) -> CudaGraphModel:
    """Made once: capturing takes longer than the texts."""
    return engine(network(kind, seed=seed, layers=layers), SIZE, frozenset(), capture=Repeated)


def texts(
    target: CudaGraphModel, draft: Draft, prompts: Sequence[Prompt], gamma: int | Gamma, sampling: Sampling,
    tokens: int = 24, accept: AcceptanceRule = accept_exact,
) -> tuple[list[Trace], float]:  # fmt: skip
    """The traces, and a number that shows where the generator is afterwards."""
    generator = torch.Generator().manual_seed(3)
    traces = [
        speculative(
            target, draft, prompt, gamma=gamma, sampling=sampling, max_new_tokens=tokens, generator=generator,
            accept=accept,
        )
        for prompt in prompts
    ]  # fmt: skip
    return traces, float(torch.rand(1, generator=generator))


def what(traces: Sequence[Trace]) -> list[Any]:
    return [(trace.tokens, [(one.tokens, one.accepted, one.emitted) for one in trace.passes]) for trace in traces]


@pytest.fixture
def pending(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each proposal had that was left on the device."""
    seen: list[int] = []
    run = RolloutGraph.run

    def watched(self: RolloutGraph, *args: Any) -> tuple[Tensor, Tensor | None]:
        rolled = run(self, *args)
        seen.append(len(rolled[0]))
        return rolled

    monkeypatch.setattr(RolloutGraph, "run", watched)
    return seen


@pytest.mark.full
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_one_graph_drafts_what_its_steps_draft(kind: str, sampling: Sampling, pending: list[int]) -> None:
    """Early ends, texts that are cut off and buffers that grow included; the generator is where it would be, too."""
    prompts = [varied(kind, length) for length in (3, 9, 4, 30)]
    ended = 0
    for ends, draft_ends, gamma in ((frozenset({1}), None, 3), (ENDS, None, 7), (frozenset({1}), ENDS, 5)):
        want, at = texts(*_drafting(pair(kind, StepByStep, ends, draft_ends)), prompts, gamma, sampling)
        pending.clear()
        found, found_at = texts(*_drafting(pair(kind, CudaGraphModel, ends, draft_ends)), prompts, gamma, sampling)
        assert what(found) == what(want)
        assert found_at == at
        passes = [one for trace in found for one in trace.passes]
        assert len(pending) == sum(one.drafted > 0 for one in passes)  # none step by step
        ended += sum(bool(one.tokens) and one.tokens[-1] in (draft_ends or ends) for one in passes)
    assert ended > 3


def _drafting(models: tuple[CudaGraphModel, CudaGraphModel]) -> tuple[CudaGraphModel, ModelDraft]:
    return models[0], ModelDraft(models[1], SIZE)


@pytest.mark.full
@pytest.mark.parametrize("sampling", SAMPLINGS[:2])
def test_buffers_grow(sampling: Sampling, pending: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.engine.cuda.graphs.FIRST_CAPACITY", 8)
    monkeypatch.setattr("specbench.engine.cuda.graphs.GROWTH", 2)
    model.cache_clear()
    prompts = [varied("llama", length) for length in (3, 6)]
    want, _ = texts(*_drafting(pair("llama", StepByStep, frozenset())), prompts, 4, sampling, tokens=50)
    pending.clear()
    found, _ = texts(*_drafting(pair("llama", CudaGraphModel, frozenset())), prompts, 4, sampling, tokens=50)
    assert what(found) == what(want)
    assert len(pending) == sum(one.drafted > 0 for trace in found for one in trace.passes)


RULES: list[tuple[AcceptanceRule, Sampling]] = [
    (accept_exact, Sampling()), (accept_exact, Sampling(1.0, top_p=0.9)), (accept_block, Sampling(1.0, top_k=20)),
    (lenient(0.5, Sampling(1.0)), Sampling(1.0)), (lenient(0.5, Sampling()), Sampling()),
    (AcceptByChance(0.6), Sampling(1.0)), (Typical(0.3, 0.3), Sampling(1.0)), (TopBeta(3, 1.0), Sampling(1.0)),
]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize(("rule", "sampling"), RULES)
def test_the_host_reads_once_a_pass(rule: AcceptanceRule, sampling: Sampling, pending: list[int]) -> None:
    """Drafted tokens and verdict come in one copy, where a proposal ends early, too; and all rules say what they say of
    tokens that the host knows."""
    prompts = [varied("t5", length) for length in (3, 9, 30)]
    want, at = texts(*_drafting(pair("t5", StepByStep, ENDS)), prompts, 4, sampling, accept=rule)
    target, draft = _drafting(pair("t5", CudaGraphModel, ENDS))
    texts(target, draft, prompts, 4, sampling, accept=rule)  # captures
    generator = torch.Generator().manual_seed(3)
    found = []
    for one in prompts:
        with HostReads() as reads:
            found.append(
                speculative(
                    target, draft, one, gamma=4, sampling=sampling, max_new_tokens=24, generator=generator, accept=rule
                )
            )
        passes = found[-1].passes  # one that drafted nothing is read by a C kernel on a CPU, which is not counted
        assert sum(one.drafted > 0 for one in passes) <= reads.total <= len(passes), reads.counts
    assert what(found) == what(want)
    assert float(torch.rand(1, generator=generator)) == at


@pytest.mark.full
def test_step_by_step_the_host_reads_each_token() -> None:
    """What the count would show without a rollout."""
    target, draft = _drafting(pair("t5", StepByStep, frozenset()))
    with HostReads() as reads:
        (trace,), _ = texts(target, draft, [varied("t5")], 4, Sampling(1.0))
    assert reads.total > sum(one.drafted for one in trace.passes)


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (lambda tensor: tensor[0].item(), "item"),
        (lambda tensor: tensor.tolist(), "tolist"),
        (lambda tensor: tensor.cpu(), "cpu"),
        (lambda tensor: tensor.to("cpu"), "to"),
        (lambda tensor: tensor.numpy(), "numpy"),
        (lambda tensor: bool(tensor[0] > 0), "__bool__"),
        (lambda tensor: int(tensor[0]), "__int__"),
        (lambda tensor: tensor[tensor[0]], "__getitem__"),
        (lambda tensor: tensor.nonzero(), "nonzero"),
        (lambda tensor: torch.masked_select(tensor, tensor > 0), "aten.masked_select.default"),
    ],
)  # fmt: skip
def test_every_way_to_the_host_is_counted(read: Any, name: str) -> None:
    with HostReads() as reads:
        read(torch.arange(3))
    assert reads.counts == {name: 1}


@pytest.mark.full
def test_a_shorter_proposal_is_the_beginning_of_a_captured_one(pending: list[int]) -> None:
    """The last passes of a text draft less; nothing is captured for them."""
    target, draft = _drafting(pair("t5", CudaGraphModel, frozenset()))
    sampling = Sampling(0.9)
    (trace,), _ = texts(target, draft, [varied("t5")], 6, sampling, tokens=20)
    assert {one.drafted for one in trace.passes} > {6}
    rollouts = [graph.rollout for graph in draft.model._graphs.values() if isinstance(graph, RolloutGraph)]
    assert {len(one.rows_GV) for one in rollouts if one.choice.sampling == sampling and one.rows_GV is not None} == {6}


NOT_PERMITTED = "operation not permitted when stream is capturing"


class CannotRollOut(Repeated):
    """As a capture of work that has an operation which CUDA graphs do not take."""

    def __init__(self, work: Callable[[], Tensor]) -> None:
        if isinstance(getattr(work, "__self__", None), Rollout):
            raise RuntimeError(NOT_PERMITTED)
        super().__init__(work)


@pytest.mark.full
def test_a_draft_whose_steps_cannot_be_captured_at_once_drafts_step_by_step() -> None:
    target, _ = pair("t5", CudaGraphModel, frozenset({1}))
    small = CudaGraphModel(network("t5", seed=6, layers=1), SIZE, frozenset({1}), capture=CannotRollOut)
    prompts = [varied("t5", 4), varied("t5", 9)]
    with pytest.warns(UserWarning, match=r"not permitted when stream is capturing; it drafts step by step") as warned:
        found, _ = texts(target, ModelDraft(small, SIZE), prompts, 3, Sampling(1.0))
    assert (
        sum("step by step" in str(one.message) for one in warned) <= 2
        and small.report.rollout_fell_back == NOT_PERMITTED
    )
    want, _ = texts(*_drafting(pair("t5", StepByStep, frozenset({1}))), prompts, 3, Sampling(1.0))
    assert what(found) == what(want)


@pytest.fixture
def as_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`engine=auto` is the engine of CUDA graphs, on whose CPU twin no rollout can be captured."""
    monkeypatch.setitem(engines.AUTO, "cpu", ("cudagraph",))
    monkeypatch.setitem(engines.KINDS, "cudagraph", partial(CudaGraphModel, capture=CannotRollOut))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:the draft's steps are no graph")
def test_the_record_says_that_a_draft_fell_back_and_bench_asks_before_it_times_that(
    folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str], as_graphs: None
) -> None:
    words = [
        f"target.path={folders['t5']}", f"draft.path={folders['t5-draft']}", "task=ende",
        f"task.path={folders['rows']}", f"results={tmp_path}", "dtype=float32", "device=cpu", "max_new_tokens=6",
        "limit=1",
    ]  # fmt: skip
    code, _, _, record = called(["run", *words, "gamma=2"], tmp_path, capfd)
    assert code == 0 and record is not None
    assert record["summary"]["rollout_fell_back"] == NOT_PERMITTED and record["summary"]["fell_back"] is None
    timed = [*words, "gammas=[2]", "repeats=1", "parts=e"]
    code, _, said, _ = called(["bench", *timed], tmp_path, capfd)
    assert code == 2 and NOT_PERMITTED in said and "give step_by_step=true to time it" in said
    assert not list((tmp_path / "bench").glob("*.json"))
    code, _, _, _ = called(["bench", *timed, "step_by_step=true"], tmp_path, capfd)
    (written,) = (tmp_path / "bench").glob("*.json")
    assert code == 0 and json.loads(written.read_text())["rollout_fell_back"] == NOT_PERMITTED


def test_of_many_gammas_few_are_captured() -> None:
    small, choice = model(CudaGraphModel, "t5", 6, 1), TokenChoice(Sampling(), SIZE)
    small.expect_rollouts(choice, Heuristic(20).picks)
    assert [small.steps_of_rollout(choice, steps) for steps in (1, 5, 6, 20, 21)] == [5, 5, 10, 20, None]
    small.expect_rollouts(choice, Constant(7).picks)
    assert [small.steps_of_rollout(choice, steps) for steps in (1, 7, 8)] == [7, 7, None]
    small.expect_rollouts(choice, [0])
    assert small.steps_of_rollout(choice, 1) is None


@pytest.mark.full
@pytest.mark.parametrize("sampling", SAMPLINGS[:2])
def test_a_policy_and_a_cascade_draft_the_same(sampling: Sampling, pending: list[int]) -> None:
    prompts = [varied("t5", length) for length in (3, 9)]
    want, _ = texts(*_drafting(pair("t5", StepByStep, frozenset({1}))), prompts, Heuristic(6), sampling)
    found, _ = texts(*_drafting(pair("t5", CudaGraphModel, frozenset({1}))), prompts, Heuristic(6), sampling)
    assert what(found) == what(want)
    pending.clear()
    traces = []
    for engine in (StepByStep, CudaGraphModel):
        target, middle = pair("t5", engine, frozenset({1}))
        inner = model(engine, "t5", 8, 1)
        cascade = CascadeDraft(middle, ModelDraft(inner, SIZE), 2, SIZE)
        traces.append(what(texts(target, cascade, prompts, 5, sampling)[0]))
    assert traces[0] == traces[1] and pending


def test_what_is_not_finite_is_refused() -> None:
    for tokens, ends in (([3, -1, 4], []), ([-1, 3, 4], [3])):
        proposal = PendingProposal(torch.tensor(tokens), None, torch.tensor(ends, dtype=torch.long))
        with pytest.raises(FloatingPointError, match="not finite"):
            proposal.brought()
    after_its_end = PendingProposal(torch.tensor([3, 5, -1]), None, torch.tensor([5]))
    assert after_its_end.brought().tokens == [3, 5]
