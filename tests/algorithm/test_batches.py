"""Batches: every row's greedy text is the text that it has alone, whoever shares the batch with it."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.algorithm.acceptance.rules.lenient import lenient
from specbench.algorithm.acceptance.rules.typical import Typical
from specbench.algorithm.batching import together
from specbench.algorithm.decoding import autoregress, autoregressive, speculate, speculative
from specbench.algorithm.draft import Draft
from specbench.algorithm.gamma import Heuristic
from specbench.algorithm.tree_draft import TreeDraft
from specbench.engine.batch import Batch, read_together
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.native.native_model import NativeModel
from specbench.engine.reads import Read
from specbench.engine.session import Prompt
from specbench.kernels import is_available
from specbench.methods.cascade.draft import CascadeDraft
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.methods.ngram.draft import UniformDraft
from specbench.sampling import Sampling, before_argmax
from specbench.theory.trees import ByConfidence, TreeShape
from tests.support import chi
from tests.support.batch_rows import LENGTHS, alone, generator, in_rows, prompts_of, same
from tests.support.decode import spec_of
from tests.support.networks import network
from tests.support.toy import PROMPT, VOCABULARY, ToyModel, exact, random_table

pytestmark = pytest.mark.usefixtures("captured_once")
SIZE = 43  # tokens of the networks
CPU = torch.device("cpu")
ENGINES = {"eager": EagerModel, "static": StaticModel} | ({"native": NativeModel} if is_available() else {})
KINDS = ("t5", "gpt2", "llama")


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


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_writes_what_it_writes_alone(kind: str, engine: str) -> None:
    target = ENGINES[engine](network(kind, 1), SIZE, frozenset({1}))
    prompts = prompts_of(kind)
    for place, draft in enumerate(drafts_of(kind, engine, target).values()):
        # Each draft with both: one on one engine, the other on the other.
        gamma = Heuristic(8) if (place + (engine == "static")) % 2 else 3
        spec = spec_of(Sampling(0.0), 24, gamma)
        same(in_rows(target, draft, prompts, spec, 3), alone(target, draft, prompts, spec))
    spec = spec_of(Sampling(0.0), 24)
    batch = Batch.of(target, 4)
    ours = together((autoregress(batch, prompt, spec, generator(0)) for prompt in prompts), 4, batch)
    assert [one.tokens for one in ours] == [
        autoregressive(target, prompt, spec, generator(0)).tokens for prompt in prompts
    ]


@pytest.mark.full
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", ["block", "lenient", "typical"])
def test_a_row_under_another_rule_writes_what_it_writes_alone(rule: str, temperature: float) -> None:
    target, small = (StaticModel(network("t5", seed, layers=1), SIZE, frozenset({1})) for seed in (1, 2))
    sampling = Sampling(temperature)
    compared = before_argmax(sampling)
    accept = {"block": accept_block, "lenient": lenient(0.5, sampling), "typical": Typical(0.3, 0.5)}[rule]
    spec = spec_of(sampling, 14, 3, accept, sampling if rule == "block" else compared)
    prompts, draft = prompts_of("t5", LENGTHS[:4]), ModelDraft(small, SIZE)
    same(in_rows(target, draft, prompts, spec, 3), alone(target, draft, prompts, spec))


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_a_row_with_trees_writes_what_it_writes_alone(kind: str, engine: str) -> None:
    """Trees of other shapes in each row, since an end of sequence has no children and the room ends."""
    target, small = (ENGINES[engine](network(kind, seed, layers=2), SIZE, frozenset({1})) for seed in (1, 2))
    prompts = prompts_of(kind, LENGTHS[:4])
    for plan in (TreeShape.of_widths([3, 2, 1]), ByConfidence(size=7, top=2, depth=4)):
        draft = TreeDraft(ModelDraft(small, SIZE), plan, "fixed", frozenset({1}))
        spec = spec_of(Sampling(0.0), 20, plan.depth)
        ours, theirs = in_rows(target, draft, prompts, spec, 3), alone(target, draft, prompts, spec)
        same(ours, theirs)
        assert [[one.path for one in trace.passes] for trace in ours] == [
            [one.path for one in trace.passes] for trace in theirs
        ]


FORK = [-1, -1, 0, 0, 2]  # parents of a tree's nodes
BESIDE = {  # what other rows of a tree's run may read: tokens and parents; nothing where a row does not take part
    "one token": ([5], None),
    "some tokens": ([5, 6, 7], None),
    "as many tokens": ([5, 6, 7, 8, 9], None),
    "more tokens": ([5, 6, 7, 8, 9, 10, 11], None),
    "a root alone": ([5], [-1]),
    "a path": ([5, 6, 7], [-1, 0, 1]),
    "a smaller tree": ([5, 6, 7], [-1, -1, 1]),
    "nothing": None,
}


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_run_read_a_tree_a_chain_or_nothing_each_as_alone(kind: str, engine: str) -> None:
    """Logits of that run, and of the steps after it, which see what it has left in the cache."""
    target = ENGINES[engine](network(kind, 1), SIZE, frozenset())
    exact = EagerModel(network(kind, 1), SIZE, frozenset())
    prompts = prompts_of(kind, (4, 9, 1, 17, 3, 6, 12, 5, 8))
    reads = [([3, 4, 5, 6, 7], FORK), *BESIDE.values()]
    tolerance = 1e-2 if kind == "t5" else 1e-4  # logits of 30, and scores that are not scaled: rounding comes to .001
    batch = Batch.of(target, len(prompts))
    rows, alone = [batch.start(prompt) for prompt in prompts], [exact.start(prompt) for prompt in prompts]

    def read(due: dict[int, tuple[list[int], list[int] | None]]) -> None:
        found = read_together([Read(rows[place], *one) for place, one in due.items()])
        for logits, (place, one) in zip(found, due.items(), strict=True):
            torch.testing.assert_close(logits, alone[place].extend(*one), rtol=tolerance, atol=tolerance)

    read({place: ([3, 4], None) for place in range(len(rows))})
    read({place: one for place, one in enumerate(reads) if one is not None})
    for place, one in enumerate(reads):
        if one is not None and one[1] is not None:
            for session in (rows[place], alone[place]):
                session.select([0, 2] if place == 0 else [0])
    read({place: ([8, 9], None) for place in range(len(rows))})


class Watched(Batch):
    """Counts the rows of each run."""

    def extend_many(self, reads):  # type: ignore[no-untyped-def]
        self.runs.append(len(reads))
        return super().extend_many(reads)


def test_reads_are_gathered_and_rows_that_end_make_room() -> None:
    target = EagerModel(network("gpt2", 1), SIZE, frozenset({1}))
    batch = Watched(target, 3)
    batch.runs = []  # type: ignore[attr-defined]
    prompts = prompts_of("gpt2", (*LENGTHS, 2, 29))  # many more than rows
    spec = spec_of(Sampling(0.0), 20, 3)
    traces = together((speculate(batch, UniformDraft(SIZE, CPU), p, spec, generator(0)) for p in prompts), 3, batch)
    assert sum(batch.runs) == sum(len(trace.passes) for trace in traces)  # type: ignore[attr-defined]
    rows = [number for trace in traces for number in trace.rows or []]
    assert sum(1 / number for number in rows) == pytest.approx(len(batch.runs))  # type: ignore[attr-defined]
    assert batch.runs.count(3) > len(batch.runs) / 2  # type: ignore[attr-defined]


def test_a_row_that_leaves_is_filled_by_the_last_one() -> None:
    target = EagerModel(network("llama", 1), SIZE, frozenset())
    batch, prompts = Batch(target, 4), prompts_of("llama")
    sessions = [batch.start(prompt) for prompt in prompts[:4]]
    alone = [target.start(prompt) for prompt in prompts[:4]]
    del sessions[1]
    del alone[1]
    for _ in range(2):
        ours = read_together([Read(session, [3, 4]) for session in sessions])
        assert [session.row for session in sessions] == [0, 2, 1]
        for logits, session in zip(ours, alone, strict=True):
            torch.testing.assert_close(logits, session.extend([3, 4]), rtol=1e-4, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_more_sessions_than_rows_are_a_fault_of_the_caller(engine: str) -> None:
    batch = Batch.of(ENGINES[engine](network("gpt2", 1), SIZE, frozenset()), 1)
    held = batch.start(Prompt((), (3, 4)))
    with pytest.raises(ValueError, match="none of 1 is free"):
        batch.start(Prompt((), (3, 4)))
    del held
    batch.start(Prompt((), (3, 4)))


@given(st.data())
@settings(max_examples=25)
def test_any_schedule_of_ends_joins_and_gammas_gives_the_text_alone(data: st.DataObject) -> None:
    """Exact tables, T = 1: each row makes the draws that it makes alone."""
    target, small = (ToyModel(random_table(seed)) for seed in data.draw(st.tuples(*[st.integers(0, 5)] * 2)))
    draft = data.draw(st.sampled_from([ModelDraft(small, VOCABULARY), UniformDraft(VOCABULARY, CPU)]))
    rows = data.draw(st.integers(1, 4))
    specs = [
        spec_of(Sampling(data.draw(st.sampled_from([0.0, 1.0]))), data.draw(st.integers(1, 9)), gamma)
        for gamma in data.draw(st.lists(st.sampled_from([1, 2, 5, Heuristic(4)]), min_size=1, max_size=7))
    ]
    ours = together(
        (speculate(target, draft, PROMPT, spec, generator(index)) for index, spec in enumerate(specs)), rows, target
    )
    same(ours, [speculative(target, draft, PROMPT, spec, generator(i)) for i, spec in enumerate(specs)])
    assert all(1 <= number <= rows for trace in ours for number in trace.rows or [])


@pytest.mark.full
@settings(max_examples=12)
@given(st.data())
def test_any_schedule_over_one_cache_gives_the_text_alone(data: st.DataObject) -> None:
    """Caches: rows of other lengths and limits join and leave, and grow the buffers for all."""
    target, small = cached()
    lengths = data.draw(st.lists(st.integers(1, 70), min_size=1, max_size=6))
    prompts, rows = prompts_of("llama", lengths), data.draw(st.integers(2, 4))
    batch, draft = Batch(target, rows), ModelDraft(small, SIZE)
    specs = [
        spec_of(Sampling(0.0), data.draw(st.integers(1, 30)), data.draw(st.sampled_from([1, 4, Heuristic(6)])))
        for _ in prompts
    ]
    inside = draft.in_batch(rows)
    ours = together(
        (speculate(batch, inside, *one, generator(0)) for one in zip(prompts, specs, strict=True)), rows, batch
    )
    same(ours, [speculative(target, draft, *one, generator(0)) for one in zip(prompts, specs, strict=True)])


@cache
def cached() -> list[EagerModel]:
    return [EagerModel(network("llama", seed), SIZE, frozenset({1})) for seed in (1, 2)]


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("name", ["model", "uniform"])
def test_rows_have_the_targets_distribution(name: str) -> None:
    """Rows of one batch, four at a time, with draws of their own."""
    target, small = ToyModel(random_table(1)), ToyModel(random_table(2))
    draft: Draft = ModelDraft(small, VOCABULARY) if name == "model" else UniformDraft(VOCABULARY, CPU)
    spec, drawn = spec_of(Sampling(1.0), 3, 3), list[list[int]]()

    def decode(source: torch.Generator) -> list[int]:
        if not drawn:
            seeds = torch.randint(2**40, (64,), generator=source).tolist()
            drawn.extend(
                trace.tokens
                for trace in together(
                    (speculate(target, draft, PROMPT, spec, torch.Generator().manual_seed(seed)) for seed in seeds),
                    4,
                    target,
                )
            )
        return drawn.pop()

    assert chi.p_value(decode, exact(target, Sampling(1.0), 3), 4000) > chi.ALARM
