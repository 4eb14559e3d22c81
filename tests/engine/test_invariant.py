"""Invariant numerics: logits at a position are the same to the bit, however many positions are read at once."""

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from specbench.config.paths import shipped
from specbench.engine.capture import invariant as kernels
from specbench.engine.capture.invariance_check import differing_operation, first_difference, make_invariant
from specbench.engine.capture.lower import lower
from specbench.engine.capture.static import StaticModel
from specbench.engine.layout import path_to
from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt, Session
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling
from specbench.theory.trees import ROOT
from tests.support.captured import graphs
from tests.support.decode import autoregressive, speculative
from tests.support.networks import network

KINDS = ["t5", "t5-v1_1", "gpt2", "llama", "mistral"]
# Every kind in the dtype whose rounding is coarse; the kernels are the same in the other.
IN_BOTH = [*((kind, torch.bfloat16) for kind in KINDS), ("t5", torch.float32), ("llama", torch.float32)]
SOURCE = (5, 9, 12, 30, 1)
SIZE, ENDS = 40, frozenset({1})
TEXT = [2 + (7 * i + i * i // 3) % 38 for i in range(200)]
GREEDY: Any = {"sampling": Sampling(0.0), "max_new_tokens": 40, "generator": torch.Generator()}
SHORTEST = 3  # tokens of the prompt


@cache
def model_of(kind: str, dtype: torch.dtype, rows: int = 1, layers: int = 2) -> StaticModel:
    model = StaticModel(network(kind, seed=5, layers=layers).to(dtype), SIZE, ENDS, invariant=True)
    model.set_least_rows(rows)
    return model


def begun(model: StaticModel) -> Session:
    source = SOURCE if model.is_encoder_decoder else ()
    return model.start(Prompt(source, tuple(TEXT[:SHORTEST])))


@cache
def by_steps(model: StaticModel, count: int = 120) -> Tensor:
    """Logits after each token of TEXT from the prompt's last on, read one by one."""
    session = begun(model)
    return torch.cat([session.extend([token]) for token in TEXT[SHORTEST - 1 : SHORTEST - 1 + count]])


def same_in_blocks(model: StaticModel, blocks: Sequence[tuple[int, int]]) -> None:
    """Blocks of so many tokens, after each of which so many are forgotten, give the logits of single steps."""
    session = begun(model)
    for count, forgotten in blocks:
        first = session.length - (SHORTEST - 1)
        count = min(count, 120 - first)
        if count > 0:
            read = session.extend(TEXT[session.length : session.length + count])
            assert torch.equal(read, by_steps(model)[first : first + count])
        session.rollback(max(SHORTEST - 1, session.length - forgotten))


WALKS = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 9)), min_size=1, max_size=14)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "dtype"), IN_BOTH, ids=str)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(walk=WALKS)
def test_blocks_of_any_size_at_any_length(kind: str, dtype: torch.dtype, walk: list[tuple[int, int]]) -> None:
    same_in_blocks(model_of(kind, dtype), walk)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["t5", "llama"])
@settings(max_examples=6, deadline=None, derandomize=True)
@given(walk=WALKS)
def test_steps_that_are_filled_up_to_a_fixed_number_of_rows(kind: str, walk: list[tuple[int, int]]) -> None:
    same_in_blocks(model_of(kind, torch.float32, 16), walk)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "dtype"), IN_BOTH, ids=str)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(0, 90), st.integers(2, 40), st.randoms(use_true_random=False))
def test_nodes_of_a_tree_and_what_follows_a_path(
    kind: str, dtype: torch.dtype, read: int, size: int, choice: random.Random
) -> None:
    model = model_of(kind, dtype)
    size = min(size, 124 - read - SHORTEST)
    parents = [choice.randint(max(ROOT, node - 9), node - 1) for node in range(size)]
    nodes = [choice.randint(2, SIZE - 1) for _ in range(size)]
    session, alone = begun(model), begun(model)
    for each in (session, alone) if read else ():
        each.extend(TEXT[:read])
    length = alone.length
    logits_NV = session.extend(nodes, parents)
    for leaf in choice.sample(range(size), min(size, 4)):
        path = path_to(parents, leaf)
        alone.rollback(length)
        assert torch.equal(logits_NV[path], torch.cat([alone.extend([nodes[node]]) for node in path]))
    session.select(path)
    assert torch.equal(session.extend(TEXT[:2]), torch.cat([alone.extend([token]) for token in TEXT[:2]]))


@pytest.mark.full
def test_a_tree_across_the_end_of_a_sum() -> None:
    model = model_of("t5", torch.bfloat16)
    parents = [ROOT, 0, 0, ROOT, 1, 2, 3, 1, 6, 8, 9, 10]
    session, alone = begun(model), begun(model)
    for each in (session, alone):
        each.extend(TEXT[: kernels.SLOTS - 6])
    length, nodes = alone.length, TEXT[20:32]
    logits_NV = session.extend(nodes, parents)
    for leaf in (11, 7, 4, 5):
        alone.rollback(length)
        path = path_to(parents, leaf)
        assert torch.equal(logits_NV[path], torch.cat([alone.extend([nodes[node]]) for node in path]))


@pytest.mark.covering(most=1)
@pytest.mark.parametrize(("kind", "dtype"), IN_BOTH, ids=str)
def test_the_proof_at_start(kind: str, dtype: torch.dtype) -> None:
    made = with_engine("static", network(kind, seed=5).to(dtype), SIZE, ENDS, "invariant")
    assert made.invariant and made.report.not_invariant is None


@pytest.mark.full
def test_the_proof_names_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = StaticModel(network("t5", seed=5), SIZE, ENDS)
    assert "linear of [1, 13, 32]" in differing_operation(fast) or "attend of" in differing_operation(fast)
    assert first_difference(fast) is not None

    monkeypatch.setattr("specbench.engine.selection.make_invariant", lambda model: "a kernel of that machine")
    fallen = with_engine("static", network("t5", seed=5), SIZE, ENDS, "invariant")
    assert fallen.engine == "static" and not fallen.invariant
    assert fallen.report.not_invariant == "a kernel of that machine"


@pytest.mark.full
def test_rows_are_filled_up_where_few_rows_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def differs_below_four(model: StaticModel) -> str | None:
        tried.append(model.rows)
        return None if model.rows >= 4 else "a kernel"

    monkeypatch.setattr("specbench.engine.capture.invariance_check.first_difference", differs_below_four)
    model = StaticModel(network("llama", seed=5), SIZE, ENDS, invariant=True)
    assert make_invariant(model) is None and tried == [1, 4] and model.rows == 4
    monkeypatch.undo()
    assert first_difference(model) is None


@pytest.mark.full
@pytest.mark.parametrize("engine", ["eager", "compile"])
def test_engines_that_choose_their_kernels_themselves_say_so(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "specbench.engine.capture.static.CompiledModel.lowering", staticmethod(lower)
    )  # no minute of compiling
    made = with_engine(engine, network("gpt2", seed=5), SIZE, ENDS, "invariant")
    assert not made.invariant and made.report.not_invariant == f"engine={engine} does not control its kernels"


@pytest.mark.full
def test_captured_graphs_of_a_fixed_number_of_rows() -> None:
    made = graphs(network("llama", seed=5), SIZE, ENDS, invariant=True)
    made.set_least_rows(16)  # as on a GPU
    assert first_difference(made) is None
    counts = {key[1] for key in made._graphs}
    assert {count for count in counts if count <= 20} == {16}  # one shape of step; prompts are longer


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("gamma", [1, 3, 8])
@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_greedy_texts_are_the_targets_own_in_bf16(kind: str, gamma: int) -> None:
    target = model_of(kind, torch.bfloat16)
    draft = ModelDraft(StaticModel(network(kind, 5, layers=1).to(torch.bfloat16), SIZE, ENDS), SIZE)
    for first in range(6):
        prompt = Prompt(SOURCE[first % 3 :], (0,)) if kind == "t5" else Prompt((), tuple(TEXT[first : first + 4]))
        own = autoregressive(target, prompt, **GREEDY)
        assert speculative(target, draft, prompt, gamma=gamma, **GREEDY).tokens == own.tokens


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["static", "cudagraph"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_proof_on_a_gpu(kind: str, engine: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    made = with_engine(engine, network(kind, seed=5).to("cuda", torch.bfloat16), SIZE, ENDS, "invariant")
    assert made.invariant, made.report.not_invariant


@pytest.mark.slow
def test_a_thousand_texts_of_the_pairs_that_ship() -> None:
    """bf16, both families, gamma 1 to 8 in turn, by a model and by copies."""
    differing = []
    for target_name, draft_name, loader in (
        ("t5-mini", "t5-nano", AutoModelForSeq2SeqLM),
        ("gpt-mini", "gpt-nano", AutoModelForCausalLM),
    ):
        networks = [
            loader.from_pretrained(shipped("models", name), dtype=torch.bfloat16) for name in (target_name, draft_name)
        ]
        size = networks[0].config.vocab_size
        target = with_engine("static", networks[0], size, ENDS, "invariant")
        assert target.invariant, target.report.not_invariant
        drafts = [ModelDraft(with_engine("static", networks[1], size, ENDS), size), LookupDraft(size, target.device, 2)]
        generator = torch.Generator().manual_seed(0)
        for index in range(500):
            tokens = torch.randint(3, size, (4 + index % 40,), generator=generator).tolist()
            prompt = Prompt(tuple(tokens), (0,)) if target.is_encoder_decoder else Prompt((), tuple(tokens))
            own = autoregressive(target, prompt, **GREEDY).tokens
            for draft in drafts:
                if speculative(target, draft, prompt, gamma=1 + index % 8, **GREEDY).tokens != own:
                    differing.append((target_name, index))
    assert differing == []
