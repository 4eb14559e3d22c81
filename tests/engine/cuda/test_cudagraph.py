"""Graphs are captured before timing starts, and few of them: nothing that is timed holds a capture."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.algorithm.draft import Draft
from specbench.algorithm.tree_draft import TreeDraft
from specbench.bench import parts
from specbench.bench.timing import medians
from specbench.engine.cuda.graphs import COUNTS, MOST_GRAPHS, CudaGraphModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.operations import kernels
from specbench.experiment.tree_costs import tree_costs
from specbench.methods.cascade.draft import CascadeDraft
from specbench.methods.model.draft import ModelDraft
from specbench.methods.ngram.draft import UniformDraft
from specbench.methods.target_layers.draft import EarlyExitDraft
from specbench.sampling import Sampling
from specbench.theory.trees import TreeShape
from tests.support.captured import Recording, Repeated, graphs_before_the_clock
from tests.support.decode import autoregressive, speculative
from tests.support.networks import network
from tests.support.prompts import varied

GREEDY: dict[str, Any] = {"sampling": Sampling(), "generator": torch.Generator()}


class Watched(Repeated):
    """A capture that says when it happens."""

    running = False
    timed = made = 0

    def __init__(self, work: Callable[[], Tensor]) -> None:
        super().__init__(work)
        Watched.made += 1
        Watched.timed += Watched.running


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    """The clock of a text runs from where `speculate` starts its session to the end of the text."""
    Watched.running, Watched.timed, Watched.made = False, 0, 0
    own, within = CudaGraphModel.get_ready, []  # a model makes its first layers ready, too

    def ready(*args: Any) -> None:
        Watched.running = False
        within.append(1)
        own(*args)
        within.pop()
        Watched.running = not within

    monkeypatch.setattr(CudaGraphModel, "get_ready", ready)
    return Watched


def drafts(kind: str, target: CudaGraphModel) -> list[Draft]:
    small = CudaGraphModel(network(kind, seed=6, layers=1), 40, frozenset(), capture=Watched)
    return [
        ModelDraft(small, 40),
        EarlyExitDraft(target, 1),
        CascadeDraft(small, UniformDraft(40, torch.device("cpu")), 2, 40),
    ]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_no_capture_falls_into_a_timed_text(kind: str, watch: type[Watched]) -> None:
    target = CudaGraphModel(network(kind, seed=5), 40, frozenset(), capture=Watched)
    exact = EagerModel(network(kind, seed=5), 40, frozenset())
    for length in (3, 9, 30, 4, 12):
        want = autoregressive(exact, varied(kind, length), max_new_tokens=12, **GREEDY).tokens
        assert autoregressive(target, varied(kind, length), max_new_tokens=12, **GREEDY).tokens == want
        for draft in drafts(kind, target):
            for gamma in (1, 3, 7):
                found = speculative(target, draft, varied(kind, length), gamma=gamma, max_new_tokens=12, **GREEDY)
                assert found.tokens == want
    assert watch.made > 0
    assert watch.timed == 0


@pytest.mark.full
def test_what_is_usual_is_captured_before_the_first_text() -> None:
    target = graphs_before_the_clock(network("t5", seed=5))
    autoregressive(target, varied("t5"), max_new_tokens=20, **GREEDY)
    assert target.captures == sum(count <= 8 for count in COUNTS)
    before = target.uncaptured
    speculative(target, UniformDraft(40, torch.device("cpu")), varied("t5"), gamma=7, max_new_tokens=20, **GREEDY)
    assert target.uncaptured == before


@pytest.mark.full
def test_a_longer_step_runs_uncaptured_once_and_is_captured_for_the_next_text() -> None:
    target, guess = graphs_before_the_clock(network("t5", seed=5)), UniformDraft(40, torch.device("cpu"))
    texts = []
    uncaptured = []
    for _ in range(2):
        before = target.uncaptured
        texts.append(speculative(target, guess, varied("t5"), gamma=12, max_new_tokens=20, **GREEDY).tokens)
        uncaptured.append(target.uncaptured - before)
    assert texts[0] == texts[1]
    assert uncaptured[0] > 0
    assert uncaptured[1] == 0


@pytest.mark.full
def test_no_more_graphs_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.engine.cuda.graphs.MOST_GRAPHS", 6)
    target = graphs_before_the_clock(network("t5", seed=5))
    exact = EagerModel(network("t5", seed=5), 40, frozenset({1}))
    for length in (3, 70, 300, 3):  # three sizes of source buffers, each with four graphs
        want = autoregressive(exact, varied("t5", length), max_new_tokens=8, **GREEDY).tokens
        assert autoregressive(target, varied("t5", length), max_new_tokens=8, **GREEDY).tokens == want
        assert len(target._graphs) <= 6


@pytest.mark.full
def test_forty_graphs_are_enough_for_texts_of_all_lengths() -> None:
    target = graphs_before_the_clock(network("t5", seed=5))
    for length in range(1, 500, 37):
        autoregressive(target, varied("t5", length), max_new_tokens=1, **GREEDY)
    assert target.captures == len(target._graphs) < MOST_GRAPHS


@pytest.mark.full
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_growth_is_timed_on_captured_steps(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = graphs_before_the_clock(network(kind, seed=5))
    uncaptured = []

    def watched(ways: dict[str, Callable[[], object]], now: Callable[[], float], repeats: int) -> dict[str, float]:
        before = target.uncaptured
        timed = medians(ways, now, 1)
        uncaptured.append(target.uncaptured - before)
        return timed

    monkeypatch.setattr("specbench.bench.parts.medians", watched)
    monkeypatch.setattr("specbench.bench.parts.LENGTHS", (16, 20))
    with torch.inference_mode():
        parts.over_tokens(target, varied(kind))
        parts.over_lengths(target, varied(kind))
    assert uncaptured == [0, 0, 0]


@pytest.mark.full
def test_costs_of_trees_are_timed_on_captured_steps() -> None:
    target = graphs_before_the_clock(network("gpt2", seed=5))
    small = ModelDraft(graphs_before_the_clock(network("gpt2", seed=6, layers=1)), 40)
    draft = TreeDraft(small, TreeShape.of_widths([2, 2]), "distinct", frozenset())
    with torch.inference_mode():
        tree_costs(target, draft, varied("gpt2"), list(range(2, 12)), Sampling(), (2, 4, 12), repeats=1)
        before = target.uncaptured
        tree_costs(target, draft, varied("gpt2"), list(range(2, 12)), Sampling(), (2, 4, 12), repeats=1)
    # Only the runs before the clock met steps of a new shape; in a second call none does.
    assert target.uncaptured == before


@pytest.mark.full
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["t5", "t5-v1_1", "gpt2", "llama"])
def test_what_a_graph_reads_lives_as_long_as_the_graph(kind: str, temperature: float) -> None:
    """A CUDA graph owns none of the tensors that it reads: layouts, sizes, position biases, buffers, weights."""
    Recording.freed()
    family = "t5" if kind.startswith("t5") else "gpt2"
    target = CudaGraphModel(network(kind, seed=5), 40, frozenset(), capture=Recording)
    small = CudaGraphModel(network(kind, seed=6, layers=1), 40, frozenset(), capture=Recording)
    given: dict[str, Any] = {"sampling": Sampling(temperature), "generator": torch.Generator().manual_seed(0)}
    guess = UniformDraft(40, torch.device("cpu"))
    drafts = [ModelDraft(small, 40), EarlyExitDraft(target, 1), CascadeDraft(small, guess, 2, 40)]
    for draft in drafts:
        for _ in range(2):  # what was met in the first text is captured before the second
            speculative(target, draft, varied(family), gamma=3, max_new_tokens=6, **given)
    assert Recording.captures
    assert Recording.freed() == []


@pytest.mark.parametrize("key_heads", [2, 4])
def test_attention_in_the_memory_layout_of_a_gpus_kernels(key_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused kernels leave a token's heads side by side; grouped queries could not be viewed in that layout (H100)."""
    plain = kernels.functional.scaled_dot_product_attention

    def as_on_a_gpu(*inputs: Any, **options: Any) -> Tensor:
        return plain(*inputs, **options).transpose(1, 2).contiguous().transpose(1, 2)

    query, key, value = torch.randn(1, 4, 3, 8), *torch.randn(2, 1, key_heads, 10, 8)
    wanted = kernels.attend(query, key, value, None, 0.5)
    monkeypatch.setattr(kernels.functional, "scaled_dot_product_attention", as_on_a_gpu)
    assert torch.equal(kernels.attend(query, key, value, None, 0.5), wanted)


@dataclass
class Unfrozen:
    """What a plug-in may write as a rule: equal to another of its values, and without a hash."""

    added: float

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.added


def test_a_function_without_a_hash_runs_as_it_is() -> None:
    target = CudaGraphModel(network("t5", seed=5), 40, frozenset(), capture=Repeated)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Unfrozen(1.0))
    for added in (1.0, 2.0):
        assert target.repeat(Unfrozen(added), torch.zeros(2)).tolist() == [added, added]
        target.capture_repeated()
