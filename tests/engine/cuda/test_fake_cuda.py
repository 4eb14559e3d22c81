"""Steps, drafts, rules and captures on CUDA tensors without content: a mixture of devices, or a host that reads where
it must not, fails without a GPU."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError

from specbench import sampling
from specbench.algorithm import decoding
from specbench.algorithm.acceptance.base import AcceptanceRule
from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.algorithm.acceptance.rules.exact import AcceptByChance, accept_exact
from specbench.algorithm.acceptance.rules.lenient import lenient
from specbench.algorithm.acceptance.rules.match import accept_match
from specbench.algorithm.acceptance.rules.top_beta import TopBeta
from specbench.algorithm.acceptance.rules.typical import Typical
from specbench.algorithm.acceptance.verify import VerdictOfLogits
from specbench.algorithm.batching import together
from specbench.algorithm.draft import Draft
from specbench.engine.batch import Batch
from specbench.engine.beside import captured as beside_captured
from specbench.engine.beside.captured import CapturedBeside
from specbench.engine.capture.static import StaticModel
from specbench.engine.cuda.graphs import CudaGraphModel
from specbench.engine.cuda.replayed import FunctionGraph
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import layer_list, return_states
from specbench.engine.reads import Read
from specbench.engine.session import Prompt
from specbench.engine.time_marks import clock_of
from specbench.methods.cascade.draft import CascadeDraft
from specbench.methods.decoder_layer import layer_shape
from specbench.methods.dflash.draft import BlockDraft
from specbench.methods.dflash.network import BlockDrafter
from specbench.methods.dflash.train import shape_for as block_shape
from specbench.methods.dspark.draft import MarkovDraft
from specbench.methods.eagle.draft import EagleDraft
from specbench.methods.eagle.network import Eagle, EagleShape
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.methods.mtp.draft import MtpDraft
from specbench.methods.mtp.network import Mtp
from specbench.methods.ngram.draft import UniformDraft
from specbench.methods.pard.draft import PardDraft
from specbench.methods.peagle.draft import PEagleDraft
from specbench.methods.peagle.network import PEagle, PEagleShape
from specbench.records.decoded import Trace
from specbench.sampling import Sampling
from specbench.text.processed import ProcessedModel
from specbench.text.processors import Processors, Weighing
from specbench.train.recipe_schema import BlockPlan
from tests.support.captured import Repeated
from tests.support.decode import spec_of
from tests.support.fake_cuda import CUDA, FakeGenerator, HostRead, WithoutCuda, fake_cuda, moved
from tests.support.networks import network

SIZE, GAMMA, TOKEN = 40, 3, 5
NUCLEUS = Sampling(0.8, top_k=20, top_p=0.9)
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
graphs = partial(CudaGraphModel, capture=Repeated)


class Told:
    """What the host reads: verdicts and tokens, no end among them. `reads` counts."""

    def __init__(self) -> None:
        self.reads = 0
        self.mode: WithoutCuda

    def __call__(self, tensor: Tensor) -> list[Any]:
        self.reads += 1
        if tensor.dtype.is_floating_point:
            return [1.0] * len(tensor)
        if (drafted := len(tensor) - 3) > 0:  # drafted tokens, how many count, how many are accepted, the next
            return [TOKEN] * drafted + [drafted, self.reads % (drafted + 1), TOKEN]
        return [0, TOKEN] if len(tensor) == 2 else [TOKEN] * len(tensor)


@pytest.fixture
def told() -> Iterator[Told]:
    with fake_cuda(answers := Told()) as answers.mode:
        yield answers


def model(make: Any, kind: str, seed: int = 5) -> Any:
    made = make(moved(network(kind, seed=seed, layers=1)), SIZE, frozenset({1}))
    made.now, made.mark = time.perf_counter, None
    return made


def prompt(kind: str) -> Prompt:
    return Prompt((3, 4, 5), (0,)) if kind == "t5" else Prompt((), (3, 4, 5))


def decoded(
    target: Any, draft: Draft, kind: str, how: Sampling, rule: AcceptanceRule = accept_exact, tokens: int = 4 * GAMMA
) -> Trace:
    spec = spec_of(how, tokens, GAMMA, rule)
    return decoding.speculative(target, draft, prompt(kind), spec, FakeGenerator())  # type: ignore[arg-type]


RULES: list[tuple[AcceptanceRule, Sampling]] = [
    (accept_exact, Sampling()), (accept_exact, NUCLEUS), (accept_block, NUCLEUS), (lenient(0.5, NUCLEUS), NUCLEUS),
    (lenient(0.5, Sampling()), Sampling()), (AcceptByChance(0.6), NUCLEUS), (Typical(0.3, 0.3), NUCLEUS),
    (accept_match, NUCLEUS), (TopBeta(3, 1.0), NUCLEUS),
]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_graphs_drafts_and_rules_are_of_one_device_and_read_once_a_pass(kind: str, told: Told) -> None:
    target, small = model(graphs, kind), model(graphs, kind, seed=6)
    for rule, how in RULES if kind == "gpt2" else RULES[:2]:
        decoded(target, ModelDraft(small, SIZE), kind, how, rule)  # captures
        uploads = []
        for tokens in (4 * GAMMA, 6 * GAMMA):
            told.reads = told.mode.uploads = 0
            passes = decoded(target, ModelDraft(small, SIZE), kind, how, rule, tokens).passes
            undrafted = sum(one.drafted == 0 for one in passes)
            assert told.reads == len(passes) > 3
            uploads.append(told.mode.uploads - undrafted)
        assert uploads[0] == uploads[1]  # a pass copies nothing to the device that the host would wait for
    assert small.captures and target.captures


class FakeEvent:
    """An event of a stream without work: it has happened when it is recorded."""

    recorded = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        FakeEvent.recorded += 1
        self.at = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "FakeEvent") -> float:
        return 1000 * (other.at - self.at)


@pytest.mark.full
@pytest.mark.parametrize("rows", [1, 2])
def test_the_clock_waits_for_the_device_around_a_text_and_not_in_its_passes(
    rows: int, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    target, small = (EagerModel(moved(network("gpt2", seed=seed, layers=1)), SIZE, frozenset()) for seed in (5, 6))
    found = []
    for tokens in (4 * GAMMA, 8 * GAMMA):
        waits.clear()
        FakeEvent.recorded = 0
        spec, draft = spec_of(NUCLEUS, tokens, GAMMA, accept_exact), ModelDraft(small, SIZE)
        if rows == 1:
            traces = [decoding.speculative(target, draft, prompt("gpt2"), spec, FakeGenerator())]  # type: ignore[arg-type]
        else:
            batch = Batch.of(target, rows)
            sequences = [
                decoding.speculate(batch, draft.in_batch(rows), prompt("gpt2"), spec, FakeGenerator())  # type: ignore[arg-type]
                for _ in range(rows - 1)
            ]
            traces = together(sequences, rows, batch)
        passes = traces[0].passes
        assert 3 * len(passes) <= FakeEvent.recorded <= 3 * len(passes) + 3
        times = sum(one.draft_s + one.verify_s + one.accept_s for one in passes)
        assert traces[0].decode_s == pytest.approx(times) and min(one.verify_s for one in passes) > 0
        found.append((len(waits), len(passes)))
    assert found[0][0] == found[1][0] and found[0][1] < found[1][1]
    spec = spec_of(NUCLEUS, 6)
    waits.clear()
    trace = decoding.autoregressive(target, prompt("gpt2"), spec, FakeGenerator())  # type: ignore[arg-type]
    assert len(waits) == 2 and len(trace.steps_s) == 6 and trace.decode_s == pytest.approx(sum(trace.steps_s))


def test_a_model_on_several_gpus_waits_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    spread = SimpleNamespace(device=CUDA, hf_device_map={"encoder": 0, "decoder": "cuda:1"})
    now, mark = clock_of(spread)
    now()
    assert mark is None and {device.index for device in waits} == {0, 1}


@pytest.mark.full
@pytest.mark.parametrize("make", [StaticModel, EagerModel])
@pytest.mark.parametrize("how", [Sampling(), NUCLEUS])
def test_what_the_host_sees_token_by_token_is_of_one_device(make: Any, how: Sampling, told: Told) -> None:
    target, small = model(make, "gpt2"), model(make, "gpt2", seed=6)
    drafts: list[Draft] = [
        ModelDraft(small, SIZE), UniformDraft(SIZE, CUDA), LookupDraft(SIZE, CUDA, 2),
        CascadeDraft(small, UniformDraft(SIZE, CUDA), 2, SIZE),
    ]  # fmt: skip
    for draft in drafts:
        assert decoded(target, draft, "gpt2", how).passes
    spec = spec_of(how, 5)
    assert decoding.autoregressive(target, prompt("gpt2"), spec, FakeGenerator()).tokens  # type: ignore[arg-type]


def unchecked(beside: Any, target: Any, _: Any) -> CapturedBeside:
    return CapturedBeside(beside, target)


@pytest.mark.full
def test_eagles_steps_are_of_one_device(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """As graphs that the target captures between texts."""
    # There is no content to compare.
    monkeypatch.setattr(beside_captured, "checked", unchecked)
    own = moved(network("t5", seed=5, layers=1))
    width = return_states(own, "target")
    target = graphs(own, SIZE, frozenset({1}))
    target.now, target.mark = time.perf_counter, None
    target.state_width, target.states_of_prompt = width, True
    eagle = moved(Eagle(EagleShape(layer_shape(own, "target")))).requires_grad_(False).bind(own)
    draft = EagleDraft(target, eagle)
    assert draft.captured is not None
    for how in (Sampling(), NUCLEUS):
        assert decoded(target, draft, "t5", how).passes
    captures = target.captures
    assert decoded(target, draft, "t5", NUCLEUS).passes and target.captures >= captures > 2


def inside(target_of: Any, kind: str, taps: tuple[int, ...]) -> tuple[Any, Any]:
    """A target that hands over its states, and its network, on the device."""
    own = moved(network(kind, seed=5, layers=1))
    width = return_states(own, "target", taps)
    target = target_of(own, SIZE, frozenset({1}))
    target.now, target.mark, target.states_of_prompt = time.perf_counter, None, True
    target.state_width, target.tap_width, target.tap_depths = width * (1 + len(taps)), width * len(taps), taps
    return target, own


def block_drafter(rank: int) -> tuple[Any, Draft]:
    target, own = inside(graphs, "gpt2", (0,))
    plan = BlockPlan(size=4, taps=[0], mask=2, rank=rank, layers=1)
    drafter = BlockDrafter(block_shape(own, plan), own.get_output_embeddings().weight.shape[0])
    bound = moved(drafter).requires_grad_(False).bind(own)
    return target, (MarkovDraft if rank else BlockDraft)(target, bound, (0,))


def one_depth() -> tuple[Any, Draft]:
    target, own = inside(graphs, "gpt2", ())
    layer = layer_list(network("gpt2", seed=6, layers=1))[-1]
    depth = moved(Mtp(own, layer)).requires_grad_(False).bind(own)
    return target, MtpDraft(target, [depth])


def at_once() -> tuple[Any, Draft]:
    target, own = inside(graphs, "gpt2", (0,))
    shape = PEagleShape(layer_shape(own, "target"), taps=(0,), layers=2, mask=2)
    return target, PEagleDraft(target, moved(PEagle(shape)).requires_grad_(False).bind(own), (0,))


def masked() -> tuple[Any, Draft]:
    return model(graphs, "gpt2"), PardDraft(model(graphs, "gpt2", seed=6), 2, CUDA)


MADE: dict[str, Callable[[], tuple[Any, Draft]]] = {
    "dflash": partial(block_drafter, 0), "dspark": partial(block_drafter, 3), "mtp": one_depth, "peagle": at_once,
    "pard": masked,
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", MADE)
def test_steps_of_other_drafters_are_of_one_device(name: str, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """As graphs that the target, or PARD's own model, captures between texts; none is asked for in the third."""
    monkeypatch.setattr(beside_captured, "checked", unchecked)
    target, draft = MADE[name]()
    capturing = draft.model if name == "pard" else target  # type: ignore[attr-defined]
    assert name == "pard" or draft.captured is not None  # type: ignore[attr-defined]
    for how in (Sampling(), NUCLEUS):
        found = list[int]()
        for _ in range(3):
            told.reads = 0  # the same verdicts
            assert decoded(target, draft, "gpt2", how).passes
            found.append(capturing.uncaptured)
        assert capturing.captures > 2 and found[1] == found[2]


def on_another_device(drawn: Callable[..., Tensor], row_LV: Tensor, uniform_L: Tensor) -> Tensor:
    return drawn(row_LV + torch.zeros(SIZE).sum(-1, keepdim=True), uniform_L)


def read_by_the_host(drawn: Callable[..., Tensor], row_LV: Tensor, uniform_L: Tensor) -> Tensor:
    return drawn(row_LV if row_LV.sum().item() > 0 else row_LV.exp(), uniform_L)


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "raised"), [(on_another_device, FakeTensorDeviceMismatchError), (read_by_the_host, HostRead)]
)
def test_a_planted_fault_is_found(
    fault: Callable[..., Tensor], raised: type[Exception], told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, small = model(graphs, "gpt2"), model(graphs, "gpt2", seed=6)
    assert decoded(target, ModelDraft(small, SIZE), "gpt2", NUCLEUS).passes
    monkeypatch.setattr(sampling, "drawn", partial(fault, sampling.drawn))
    with pytest.raises(raised):
        decoded(target, ModelDraft(small, SIZE), "gpt2", Sampling(1.0))


@pytest.mark.full
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("rule", [accept_exact, accept_block, accept_match])
def test_a_verdict_on_tokens_that_the_host_knows_is_one_graph_too(
    rule: AcceptanceRule, rows: int, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and in a batch: from the logits to the numbers that the host reads, nothing runs beside the graph."""
    monkeypatch.setattr("specbench.engine.capture.static.rows_agree", lambda *_: True)  # it reads numbers
    target, spec = model(graphs, "gpt2"), spec_of(NUCLEUS, 4 * GAMMA, GAMMA, rule)
    read_of_verdicts: list[bool] = []
    own = CudaGraphModel.repeat

    def repeated(self: CudaGraphModel, function: Any, *inputs: Tensor) -> Tensor:
        if isinstance(function, VerdictOfLogits):
            read_of_verdicts.append(isinstance(self._functions.get(_key(function, inputs)), FunctionGraph))
        return own(self, function, *inputs)

    monkeypatch.setattr(CudaGraphModel, "repeat", repeated)
    for _ in range(3):
        read_of_verdicts.clear()
        if rows == 1:
            traces = [decoding.speculative(target, UniformDraft(SIZE, CUDA), prompt("gpt2"), spec, FakeGenerator())]  # type: ignore[arg-type]
        else:
            batch = Batch.of(target, rows)
            each = [
                decoding.speculate(batch, UniformDraft(SIZE, CUDA), prompt("gpt2"), spec, FakeGenerator())  # type: ignore[arg-type]
                for _ in range(rows)
            ]
            traces = together(each, rows, batch)
        drafted = sum(one.drafted > 0 for trace in traces for one in trace.passes)
        assert len(read_of_verdicts) == drafted > 2
    assert all(read_of_verdicts)


@pytest.mark.full
def test_penalties_are_one_graph_and_nothing_of_them_is_read(told: Told) -> None:
    made = model(graphs, "gpt2")
    target = ProcessedModel(made, Processors(SIZE, frozenset({1}), repetition=1.2, presence=0.1, bias=((3, 1.0),)))
    for _ in range(3):
        told.reads = 0
        passes = decoded(target, UniformDraft(SIZE, CUDA), "gpt2", NUCLEUS).passes
        assert told.reads == 2 * len(passes) > 4  # a proposal's tokens and its verdict
    captured = [one for key, one in made._functions.items() if isinstance(key[0], Weighing)]
    assert captured and all(isinstance(one, FunctionGraph) for one in captured)


def _key(function: Any, inputs: tuple[Tensor, ...]) -> Any:
    return (function, *((tensor.shape, tensor.dtype) for tensor in inputs))


@pytest.mark.full
@pytest.mark.parametrize("make", [EagerModel, graphs])
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
@torch.inference_mode()
def test_rows_of_a_batch_are_of_one_device(kind: str, make: Any, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.engine.capture.static.rows_agree", lambda *_: True)  # it reads numbers
    batch = Batch(model(make, kind), 2)
    sessions = [batch.start(prompt(kind)) for _ in range(2)]
    for counts in ((1, 1), (3, 1)):  # as many tokens in each, and padded
        rows = batch.extend_many([Read(one, [TOKEN] * count) for one, count in zip(sessions, counts, strict=True)])
        assert {logits.device.type for logits in rows} == {"cuda"}
