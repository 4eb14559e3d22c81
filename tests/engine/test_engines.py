"""Engines: a captured step gives what the model itself gives, in every family, through any walk of extending."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.engine.capture.program import ROUNDING
from specbench.engine.capture.static import StaticModel
from specbench.engine.capture.static_sessions import StaticSession
from specbench.engine.eager.model import EagerModel
from specbench.engine.native.native_model import NativeModel
from specbench.engine.native.native_sessions import NativeSession
from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.kernels import NotCompiled, is_available, library
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling
from tests.support.captured import graphs
from tests.support.decode import autoregressive, speculative
from tests.support.networks import PADDED, network
from tests.support.prompts import prompt

KINDS = ["t5", "t5-v1_1", "gpt2", "llama"]
ENDS = frozenset({1})
NEAR = 1e-5  # of the largest logit


def calm(kind: str) -> Any:
    """Random weights that do not amplify rounding: attention that all but ties would turn 1e-7 into 1e-3."""
    made = network(kind, seed=5)
    if kind.startswith("t5"):
        with torch.no_grad():
            for weight in made.decoder.block.parameters():
                weight.mul_(0.1)
    return made


def static(network: Any) -> StaticModel:
    return StaticModel(network, 40, ENDS)


def native(network: Any) -> StaticModel:
    try:
        library()
    except NotCompiled as reason:
        pytest.skip(str(reason))
    return NativeModel(network, 40, ENDS)


PAIRS = [*((kind, made) for kind in KINDS for made in (static, native)), ("t5", graphs), ("llama", graphs)]


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest) -> tuple[str, EagerModel, StaticModel]:
    kind, made = request.param
    # Two networks of the same weights: capturing must not need, nor change, the eager one.
    return kind, EagerModel(calm(kind), 40, ENDS), made(calm(kind))


@pytest.mark.covering(most=3)
@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_any_walk_of_extending_and_rolling_back(
    pair: tuple[str, EagerModel, StaticModel], walk: list[tuple[int, int]]
) -> None:
    kind, eager, static = pair
    ours, theirs = static.start(prompt(kind)), eager.start(prompt(kind))
    assert ours.length == theirs.length
    generator = torch.Generator().manual_seed(len(walk))
    for fed, forgotten in walk:
        new = torch.randint(2, 40, (fed,), generator=generator).tolist()
        logits, exact = ours.extend(new), theirs.extend(new)
        assert logits.shape == (fed, PADDED)
        assert (logits - exact).abs().max() < NEAR * exact.abs().max()
        kept = max(len(prompt(kind).prefix) - 1, ours.length - forgotten)
        ours.rollback(kept)
        theirs.rollback(kept)
        assert ours.length == theirs.length == kept


def test_a_cache_that_grows_keeps_what_it_read(pair: tuple[str, EagerModel, StaticModel]) -> None:
    kind, eager, static = pair
    ours, theirs = static.start(prompt(kind)), eager.start(prompt(kind))
    for start in range(0, 110, 10):  # past 64, where the first buffers end
        tokens = [2 + (start * 7 + i * 3) % 38 for i in range(10)]
        logits, exact = ours.extend(tokens), theirs.extend(tokens)
        assert (logits - exact).abs().max() < NEAR * exact.abs().max()


def test_sources_of_other_lengths_and_sessions_side_by_side(pair: tuple[str, EagerModel, StaticModel]) -> None:
    kind, eager, static = pair
    for length in (1, 2, 15, 16, 17, 40):
        tokens = tuple(2 + (length * 5 + i * 3) % 38 for i in range(length))
        one = Prompt(tokens, (0,)) if kind.startswith("t5") else Prompt((), tokens)
        ours, again, theirs = static.start(one), static.start(one), eager.start(one)
        again.extend([7, 8, 9])
        for new in ([4], [5, 6, 7], [8]):
            logits, exact = ours.extend(new), theirs.extend(new)
            assert (logits - exact).abs().max() < NEAR * exact.abs().max()


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "made"), [("t5", static), ("llama", static), ("gpt2", graphs), *((kind, native) for kind in KINDS)]
)
def test_same_tokens(kind: str, made: Callable[[Any], StaticModel]) -> None:
    texts = []
    for of in (lambda one: EagerModel(one, 40, ENDS), made):
        target, small = of(network(kind, seed=5)), of(network(kind, seed=6, layers=1))
        draft = ModelDraft(small, 40)
        settings = {"sampling": Sampling(), "max_new_tokens": 30, "generator": torch.Generator()}
        texts.append(autoregressive(target, prompt(kind), **settings).tokens)  # type: ignore[arg-type]
        for gamma in (1, 2, 4, 7):
            texts.append(speculative(target, draft, prompt(kind), gamma=gamma, **settings).tokens)  # type: ignore[arg-type]
    assert all(text == texts[0] for text in texts)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ["static", "cudagraph"])
def test_on_a_gpu(kind: str, engine: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    device = torch.device("cuda")
    eager = EagerModel(calm(kind).to(device), 40, ENDS)
    captured = with_engine(engine, calm(kind).to(device), 40, ENDS)
    assert captured.engine == engine
    ours, theirs = captured.start(prompt(kind)), eager.start(prompt(kind))
    for fed, forgotten in [(1, 0), (4, 2), (5, 5), (1, 0), (2, 1), (8, 3)] * 6:
        new = [2 + (fed * 7 + i * 3) % 38 for i in range(fed)]
        logits, exact = ours.extend(new), theirs.extend(new)
        assert (logits - exact).abs().max() < 10 * NEAR * exact.abs().max()
        for session in (ours, theirs):
            session.rollback(session.length - forgotten)


@pytest.mark.full
def test_auto_takes_a_captured_step_and_says_why_not() -> None:
    assert with_engine("auto", network("t5", seed=5), 40, ENDS).engine == ("native" if is_available() else "static")
    odd = network("gpt2", seed=5)
    odd.forward = lambda **_: {}[0]  # what cannot be captured
    fallen = with_engine("auto", odd, 40, ENDS)
    assert fallen.engine == "eager" and fallen.report.fell_back
    with pytest.raises(UserError, match="engine=static: .*; use engine=auto or engine=eager"):
        with_engine("static", odd, 40, ENDS)
    with pytest.raises(UserError, match="engine=cudagraph: needs a CUDA device"):
        with_engine("cudagraph", odd, 40, ENDS)


@pytest.mark.full
@pytest.mark.parametrize(("dtype", "factor"), [(torch.float32, 1.01), (torch.bfloat16, 1.2)])
def test_a_capture_that_disagrees_is_not_used(
    dtype: torch.dtype, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = StaticSession._step
    monkeypatch.setattr(StaticSession, "_step", lambda *inputs: right(*inputs) * factor)
    monkeypatch.setattr(NativeSession, "_step", StaticSession._step)
    monkeypatch.setattr(NativeSession, "extend", StaticSession.extend)
    fallen = with_engine("auto", network("gpt2", seed=5).to(dtype), 40, ENDS)
    assert fallen.engine == "eager" and fallen.report.fell_back is not None
    assert "differs from the model's own" in fallen.report.fell_back
    assert ("from fp32 by" in fallen.report.fell_back) == (dtype == torch.bfloat16)


def test_rotary_positions_that_change_with_the_text_run_eagerly_and_say_so() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, rope_parameters=rope,
    )  # fmt: skip
    made = LlamaForCausalLM(config)
    found = with_engine("auto", made, 40, ENDS)
    reason = "rotary positions that change with the length of a text (rope_type=dynamic), which no graph holds"
    assert (found.engine, found.report.fell_back) == ("eager", reason)
    with pytest.raises(UserError, match="engine=static: LlamaForCausalLM has rotary positions that change"):
        with_engine("static", made, 40, ENDS)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_where_rounding_is_large_the_captured_step_need_not_be_nearer_to_fp32_than_the_model(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROUNDING, torch.bfloat16, 0.0)  # as if a network amplified what there is
    assert with_engine("static", network(kind, seed=5).to(torch.bfloat16), 40, ENDS).engine == "static"


@pytest.mark.full
@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_a_network_made_in_inference_mode_is_captured_and_still_runs_itself(kind: str) -> None:
    with torch.inference_mode():
        made = calm(kind)
    assert with_engine("static", made, 40, ENDS).engine == "static"  # compared with the network after its capture


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_compiled(kind: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    eager, ours = EagerModel(calm(kind), 40, ENDS), with_engine("compile", calm(kind), 40, ENDS)
    assert ours.engine == "compile" and ours.report.warmup_s > 0
    sessions = ours.start(prompt(kind)), eager.start(prompt(kind))
    for fed, forgotten in [(1, 0), (4, 2), (5, 5), (1, 0), (2, 1), (8, 3), (60, 0), (3, 1), (1, 0)]:
        new = [2 + (fed * 7 + i * 3) % 38 for i in range(fed)]
        logits, exact = (session.extend(new) for session in sessions)
        assert (logits - exact).abs().max() < NEAR * exact.abs().max()
        for session in sessions:
            session.rollback(session.length - forgotten)
