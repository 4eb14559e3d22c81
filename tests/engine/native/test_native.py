"""Native kernels: which operations become one program, rows that do not depend on their number, and no compiler."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional

from specbench import kernels as compiler
from specbench.engine.batch import Batch
from specbench.engine.beside.captured import captured
from specbench.engine.capture import saved_captures
from specbench.engine.capture.saved_captures import cached_capture
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import return_states
from specbench.engine.native import native_model, native_sessions
from specbench.engine.native.fuse import fused
from specbench.engine.native.instructions import Instruction, Value, encoded
from specbench.engine.native.native_model import NativeModel
from specbench.engine.native.native_run import INPUTS, lines
from specbench.engine.native.prefill import LoweredPrompt
from specbench.engine.native.weights import laid_out
from specbench.engine.native.whole import WholeStep
from specbench.engine.reads import Read
from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.kernels import NotCompiled, library
from specbench.kernels import rows as rows_in_c
from specbench.kernels.structures import Op, Part, Step
from specbench.methods.eagle.beside import beside, probe
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling, TokenChoice
from tests.support.blockwise_heads import random_heads as blockwise_heads
from tests.support.decode import speculative
from tests.support.eagle_layer import SIZE, random_eagle
from tests.support.later_heads import WIDTH, random_heads
from tests.support.later_heads import made as heads_on_a_target
from tests.support.networks import network
from tests.support.prompts import prompts

pytestmark = pytest.mark.usefixtures("captured_once")
ENDS = frozenset({1})
SOURCE = (5, 9, 12, 30, 1)
QUICKLY = tuple(flag.replace("-O3", "-O0") for flag in compiler.FLAGS)  # compiled in a tenth of the time


@pytest.fixture(autouse=True)
def compiled(request: pytest.FixtureRequest) -> None:
    if "without" not in request.node.name:
        try:
            library()
        except NotCompiled as reason:
            if "cannot compile" in str(reason):  # kernels.c is wrong, or the compiler is
                raise
            pytest.skip(str(reason))


def calls(step: Any) -> list[str]:
    if isinstance(step.run, WholeStep):
        return ["native_run"]
    graph = step.run.__self__.graph
    return [getattr(node.target, "__name__", str(node.target)) for node in graph.nodes if node.op.startswith("call")]


SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.4, "pad_token_id": 0,
    "eos_token_id": 1, "bos_token_id": 1,
}  # fmt: skip
# Norms of heads; angles for a part of the channels; queries, keys and values as one map; scaled logits; no angles;
# interleaved angles; norms weighed in fp32, by 1 + w, and centred.
FAMILIES = {"Qwen3": {"head_dim": 8}, "Phi": {}, "GPTNeoX": {}, "Phi3": {}, "Granite": {"logits_scaling": 3.0},
            "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32}, "Glm": {"head_dim": 8},
            "Gemma": {"head_dim": 8}, "Cohere": {}}  # fmt: skip
KNOWN = ["t5", "t5-v1_1", "gpt2", "llama", "qwen2", "mistral", *FAMILIES]


def made(kind: str) -> Any:
    if kind not in FAMILIES:
        return network(kind, seed=5)
    torch.manual_seed(5)
    config = getattr(transformers, f"{kind}Config")(**SMALL | FAMILIES[kind])
    built = getattr(transformers, f"{kind}ForCausalLM")(config)
    for parameter in built.parameters():
        if parameter.dim() == 1:  # those of norms are all 0 or all 1 at first, which would hide their absence
            parameter.data += 0.3 * torch.randn_like(parameter)
    return built.eval()


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("kind", KNOWN)
def test_a_step_is_one_call(kind: str) -> None:
    """Grouped queries, rotary angles, gates, norms of heads, sliding windows, learned positions, biases."""
    model = with_engine("native", made(kind), 40, ENDS, "invariant")
    assert isinstance(model, NativeModel) and model.invariant, model.report.not_invariant
    assert calls(model.program.one) == calls(model.program.several) == ["native_run"]


@pytest.mark.full
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_step_computes_what_the_module_does(kind: str) -> None:
    module = made(kind)
    session = NativeModel(module, 40, ENDS).start(Prompt((), (3,)))
    tokens = [3, 5, 9, 12, 30, 7, 21]
    found = torch.cat([session.extend(tokens[:1]), session.extend(tokens[1:2]), session.extend(tokens[2:])])
    with torch.no_grad():
        expected = made(kind)(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["Gemma", "Qwen3"])
def test_a_step_in_bf16_is_one_call_and_rounds_as_the_module(kind: str) -> None:
    module = made(kind).to(torch.bfloat16)
    model = NativeModel(module, 40, ENDS)
    assert calls(model.program.one) == calls(model.program.several) == ["native_run"]
    tokens = [3, 5, 9, 12, 30, 7, 21]
    found = model.start(Prompt((), (3,))).extend(tokens)
    with torch.no_grad():
        expected = made(kind).to(torch.bfloat16)(torch.tensor([tokens])).logits[0]
    assert (found - expected).abs().mean() < 0.02 * expected.abs().mean()


def in_torch_too() -> Any:
    """Cohere in bf16, whose rotary angles are applied in fp32."""
    return made("Cohere").to(torch.bfloat16)


@pytest.mark.full
def test_what_is_not_known_is_torchs() -> None:
    """What surrounds it is native."""
    model = with_engine("native", in_torch_too(), 40, ENDS, "invariant")
    assert isinstance(model, NativeModel) and model.invariant, model.report.not_invariant
    found = calls(model.program.several)
    assert found.count("native_run") > 1 and "packed_linear" not in found


@pytest.mark.full
@pytest.mark.parametrize("long", [128, 3])
@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_a_prompt_is_read_alike_in_our_kernels_and_in_torchs(
    kind: str, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where torch is slow a long one in parts. (Which of both reads it is `LoweredPrompt`'s rule, tested below.)"""
    monkeypatch.setattr(LoweredPrompt, "FEWEST", long)
    monkeypatch.setattr(LoweredPrompt, "MOST", long)
    monkeypatch.setattr(native_model, "PROMPT_ROWS", long)
    monkeypatch.setattr(native_sessions, "PROMPT_ROWS", long)
    prompt = Prompt(SOURCE if kind == "t5" else (), (0, 7, 9, 12, 30, 8, 21))
    expected = EagerModel(network(kind, seed=3), 40, ENDS).start(prompt).extend([21, 5])
    for slow in (False, True):
        model = NativeModel(network(kind, seed=3), 40, ENDS)
        model.__dict__["torch_is_slow"] = slow
        assert isinstance(model.program.prompt.run, LoweredPrompt)
        model.program.prompt.run.is_always_native = slow
        for started in (model, Batch.of(model, 2)):
            torch.testing.assert_close(started.start(prompt).extend([21, 5]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("fewest", "most", "wide"), [(2, 100, None), (2, 5, 5), (90, 100, 90)])
def test_our_kernels_read_prompts_of_as_many_tokens_as_a_model_is_wide(
    fewest: int, most: int, wide: int | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bf16 with matrix registers, between two bounds."""
    monkeypatch.setattr(LoweredPrompt, "FEWEST", fewest)
    monkeypatch.setattr(LoweredPrompt, "MOST", most)
    model = NativeModel(network("gpt2", seed=3).to(dtype), 40, ENDS)
    reading = model.program.prompt.run
    assert isinstance(reading, LoweredPrompt)
    width = model.network.config.hidden_size
    assert 5 < width < 90
    if dtype == torch.float32 or not library().uses_tiles():
        assert reading._most == fewest
    else:
        assert reading._most == (wide or width)
    for tokens in (reading._most, reading._most + 1):
        is_native = reading._for(torch.zeros(1, tokens)) is reading._native
        assert is_native == (tokens == reading._most or reading.is_always_native)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["t5", "t5-v1_1", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_to_the_bit_in_any_company(kind: str, dtype: torch.dtype) -> None:
    model = NativeModel(network(kind, seed=5).to(dtype), 40, ENDS)
    prompt = Prompt(SOURCE, (0,)) if kind.startswith("t5") else Prompt((), SOURCE)
    alone, together = model.start(prompt), model.start(prompt)
    tokens = [2 + index * 5 % 38 for index in range(60)]
    by_step_LV = torch.cat([alone.extend([token]) for token in tokens])
    first = 0
    for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 15):
        assert torch.equal(together.extend(tokens[first : first + count]), by_step_LV[first : first + count])
        first += count


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama", "mistral"])
def test_texts_that_are_read_at_once_are_the_same_to_the_bit_as_each_alone(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several lengths, with several numbers of new tokens, as chains and as trees, in one native program."""
    model = NativeModel(network(kind, seed=3).to(dtype), 64, ENDS)
    source = SOURCE if kind == "t5" else ()
    given = [Prompt(source[:length], (0, *range(7, 7 + length))) for length in (5, 1, 3)]
    batch, tree = Batch.of(model, 3), [-1, 0, 0, 1]
    together, alone = [batch.start(prompt) for prompt in given], [model.start(prompt) for prompt in given]
    for tokens, parents in [
        (((9,), (12,), (40,)), [None, None, None]),
        (((9, 30, 21), (12,), (40, 41)), [None, None, None]),
        ((tuple(range(2, 63)), (3,), (5, 6)), [None, None, None]),  # past the first buffers of this text alone
        (((13, 8, 22, 31), (9,), (40, 5)), [tree, None, [-1, -1]]),
        (((13,), (9, 11, 12), (41, 6)), [[2], None, [1, 1]]),
    ]:
        reads = [Read(*one) for one in zip(together, tokens, parents, strict=True)]
        with counted_runs(monkeypatch) as runs:
            found = batch.extend_many(reads)
        assert runs == [sum(map(len, tokens))], "one run, without padding"
        for logits, one, read, nodes in zip(found, alone, tokens, parents, strict=True):
            assert torch.equal(logits, one.extend(read, nodes))
    for sessions in (together, alone):
        sessions[0].select([0, 2, 4])
        sessions[1].rollback(sessions[1].length - 3)
        sessions[2].select([1, 3])
    after = batch.extend_many([Read(one, [8, 9]) for one in together])
    assert all(torch.equal(found, one.extend([8, 9])) for found, one in zip(after, alone, strict=True))


@contextmanager
def counted_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many rows each run of a native program has."""
    runs: list[int] = []
    run = library().run

    def counting(step: Any, *rest: Any) -> None:
        runs.append(step._obj.rows)
        run(step, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(library(), "run", counting)
        yield runs


@pytest.mark.full
@pytest.mark.parametrize("kind", KNOWN)
def test_a_batch_of_each_family_is_read_in_one_run(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has the logits that it has alone, and the states, where a draft reads them."""
    model = NativeModel(made(kind), 40, ENDS)
    given = [
        Prompt(SOURCE[:length], (0, 5)) if kind.startswith("t5") else Prompt((), SOURCE[:length]) for length in (5, 3)
    ]
    batch = Batch.of(model, 2)
    together, alone = [batch.start(prompt) for prompt in given], [model.start(prompt) for prompt in given]
    for tokens in (((9,), (12,)), ((9, 30, 21), (12,))):
        with counted_runs(monkeypatch) as runs:
            found = batch.extend_many([Read(*one) for one in zip(together, tokens, strict=True)])
        assert len(runs) == 1
        for logits, one, read in zip(found, alone, tokens, strict=True):
            assert torch.equal(logits, one.extend(read))


@pytest.mark.full
def test_rows_of_a_batch_hold_their_own_states() -> None:
    own = network("t5", 4)
    model = NativeModel(own, SIZE, ENDS)
    plain = model.start(Prompt(SOURCE, (0,))).extend([3, 4])
    model.state_width = return_states(own, "target")
    model = NativeModel(own, SIZE, ENDS)
    model.state_width = WIDTH
    batch = Batch.of(model, 2)
    rows = [batch.start(Prompt(SOURCE[:length], (0,))) for length in (5, 2)]
    alone = [model.start(Prompt(SOURCE[:length], (0,))) for length in (5, 2)]
    assert plain.shape[1] < batch.extend_many([Read(rows[0], [3, 4]), Read(rows[1], [5])])[0].shape[1]
    for row, one, read in zip(rows, alone, ([3, 4], [5]), strict=True):
        one.extend(read)
        found, expected = row.states(0, len(read)), one.states(0, len(read))
        assert found is not None and expected is not None and torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 11])
def test_a_linear_map_with_all_that_is_fused_into_it(dtype: torch.dtype, threads: int, rows: int) -> None:
    """Norm, bias, activation and residual, for sizes that fill no vector."""
    generator = torch.Generator().manual_seed(rows)
    inner, width = 21, 75

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    x, more, weight, bias = random(rows, inner), random(rows, width), random(width, inner), random(width)
    scale, shift, out = random(inner), random(inner), torch.empty(rows, width, dtype=dtype)
    program = [
        Instruction(Op.LOAD, inner, out=0, outside=[0]),
        Instruction(Op.LOAD, width, out=1, outside=[1]),
        Instruction(Op.NORM, inner, out=2, x=Value(0, 0, inner), norm_weight=scale.float(), norm_bias=shift.float(),
                    centred=True, heads=1, inner=inner, epsilon=1e-5),
        Instruction(Op.LINEAR, width, out=3, x=Value(2, 0, inner), inner=inner, weight=laid_out(weight), bias=bias),
        Instruction(Op.GELU, width, out=4, x=Value(3, 0, width)),
        Instruction(Op.ADD, width, out=5, x=Value(4, 0, width), y=Value(1, 0, width)),
        Instruction(Op.STORE, width, x=Value(5, 0, width), outside=[2]),
    ]  # fmt: skip
    program = fused(program)
    assert [one.op for one in program] == [Op.LOAD, Op.LOAD, Op.LINEAR, Op.STORE]
    raw, floats = encoded(program, dtype == torch.bfloat16)
    scratch = lines((inner + INPUTS) * rows)
    room = torch.empty(floats * rows + scratch * threads)
    pointers = (ctypes.c_void_p * 3)(x.data_ptr(), more.data_ptr(), out.data_ptr())
    start = room.data_ptr()
    sizes = (ctypes.c_int64 * 1)()
    part = Part(ctypes.addressof(pointers), ctypes.addressof(sizes), 1, rows)
    step = Step(ctypes.addressof(raw), len(program), ctypes.addressof(part), 1, rows)
    library().run(ctypes.byref(step), start, start + 4 * floats * rows, scratch, threads)
    normed = functional.layer_norm(x, [inner], scale, shift)
    exact = functional.gelu(functional.linear(normed, weight, bias)) + more
    near = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 1e-1}
    assert torch.allclose(out.float(), exact.float(), **near)


def test_nan_is_not_hidden() -> None:
    """A damaged weight shows in the logits, through relu and the rounding to bf16."""
    damaged = network("t5", seed=5).to(torch.bfloat16)
    with torch.no_grad():
        damaged.decoder.block[0].layer[2].DenseReluDense.wi.weight[0, 0] = float("nan")
    logits = NativeModel(damaged, 40, ENDS).start(Prompt(SOURCE, (0,))).extend([3])
    assert logits.isnan().any()


def test_without_a_compiler_auto_is_static_and_native_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    monkeypatch.delenv("CC", raising=False)
    compiler.found.cache_clear()
    try:
        found = with_engine("auto", network("t5", seed=5), 40, ENDS)
        assert (
            found.engine == "static"
            and found.report.fell_back is not None
            and "no C compiler" in found.report.fell_back
        )
        with pytest.raises(UserError, match="engine=native: there is no C compiler .*; use engine=auto"):
            with_engine("native", network("t5", seed=5), 40, ENDS)
    finally:
        compiler.found.cache_clear()


def test_without_a_compiler_that_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reason is the compiler's own first line, and nothing half-made remains."""
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'unknown flag' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler.found.cache_clear()
    try:
        with pytest.raises(NotCompiled, match="broken-cc cannot compile the native kernels: unknown flag"):
            library()
        assert list((tmp_path / "specbench").iterdir()) == []
    finally:
        compiler.found.cache_clear()


def test_a_library_that_others_could_write_is_not_loaded_without_compiling_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a cache in a shared place, code of another user would be loaded."""
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'no' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (folder := tmp_path / "specbench").mkdir()
    planted = folder / f"kernels-{compiler._digest([str(broken), *compiler.FLAGS, *compiler.QUIET])}.so"
    planted.touch()
    planted.chmod(0o777)
    folder.chmod(0o777)
    compiler.found.cache_clear()
    try:
        with pytest.raises(NotCompiled, match="broken-cc cannot compile"):
            library()
        assert folder.stat().st_mode & 0o777 == 0o755
    finally:
        compiler.found.cache_clear()


def test_fp16_is_not_for_the_native_kernels() -> None:
    with pytest.raises(UserError, match="engine=native: a step without a linear map that the native kernels know"):
        with_engine("native", network("gpt2", seed=5).to(torch.float16), 40, ENDS)


@pytest.mark.full
@pytest.mark.parametrize("numerics", ["auto", "invariant", "fast"])
def test_rows_are_proved_to_be_invariant_where_nobody_asks_for_less(numerics: str) -> None:
    found = with_engine("auto", network("t5", seed=5), 40, ENDS, numerics)
    assert (found.engine, found.invariant, found.report.not_invariant) == ("native", numerics != "fast", None)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sampling", [
    Sampling(), Sampling(1.0), Sampling(9.0), Sampling(9.0, top_k=5), Sampling(9.0, top_p=0.6),
    Sampling(9.0, top_k=20, top_p=0.8),
])  # fmt: skip
@pytest.mark.parametrize("in_torch", [False, True])
def test_a_rollout_is_its_steps(
    kind: str, dtype: torch.dtype, sampling: Sampling, in_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens from the same random numbers, after one unread token or two, up to the first end.

    Step by step rows are standardised by the same kernel, and so the same to the bit, or by torch.
    """
    model = NativeModel(network(kind, seed=5).to(dtype), 40, frozenset(range(1, 40, 4)))
    draft, temperature = ModelDraft(model, 38), sampling.temperature
    prompt = Prompt(SOURCE, (0,)) if kind == "t5" else Prompt((), SOURCE)
    lengths = set()
    for seed in range(12):
        text = [*prompt.prefix, *range(2, 3 + seed % 2)]
        found = []
        for rolls in (True, False):
            session = draft.start(prompt, sampling)
            assert session.rolls_out
            session.rolls_out = rolls
            generator = torch.Generator().manual_seed(seed)
            with monkeypatch.context() as patched:
                if in_torch and not rolls:
                    patched.setattr(rows_in_c, "found", lambda: NotCompiled("not here"))
                first = session.propose(text, 4, generator)
                read = session.session.length
                text_after = [*text, *first.tokens, 5]
                found.append((first, read, session.propose(text_after, 4, generator)))
        (first, read, second), (own_first, own_read, own_second) = found
        assert (first.tokens, read, second.tokens) == (own_first.tokens, own_read, own_second.tokens)
        for rows, own_rows in ((first.q_GV, own_first.q_GV), (second.q_GV, own_second.q_GV)):
            assert (rows is None) == (own_rows is None) == (temperature == 0)
            if rows is not None and own_rows is not None:
                assert in_torch or torch.equal(rows, own_rows)
                assert (rows > 0).equal(own_rows > 0)
                assert torch.allclose(rows, own_rows, atol=1e-5) and torch.allclose(rows.sum(-1), torch.ones(len(rows)))
        lengths.add(len(first.tokens))
    assert len(lengths) > 1 or temperature < 2, "no proposal ended early"


def test_what_is_torchs_in_part_is_chosen_step_by_step() -> None:
    in_parts = NativeModel(in_torch_too(), 40, ENDS).start(Prompt((), SOURCE))
    assert in_parts.rollout([3], TokenChoice(Sampling(), 40), 3, None) is None
    assert in_parts.length == len(SOURCE) - 1


@pytest.mark.full
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(1.0, top_k=3), Sampling(1.0, top_p=0.5)])
def test_a_rollout_of_damaged_weights_draws_nothing(sampling: Sampling) -> None:
    damaged = network("t5", seed=5)
    with torch.no_grad():
        damaged.decoder.block[0].layer[2].DenseReluDense.wi.weight[0, 0] = float("nan")
    draft = ModelDraft(NativeModel(damaged, 40, ENDS), 40).start(Prompt(SOURCE, (0,)), sampling)
    with pytest.raises(FloatingPointError, match="logits are not finite"):
        draft.propose([0], 3, torch.Generator().manual_seed(0))


@pytest.mark.full
@pytest.mark.parametrize("kept", [0, 3000, -1], ids=["empty", "cut off", "a byte missing"])
def test_a_library_that_was_cut_off_is_compiled_again(
    kept: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before, the first use of such a file ended the process with a bus error."""
    monkeypatch.setattr(compiler, "FLAGS", QUICKLY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler.found.cache_clear()
    try:
        compiler.library()
        (file,) = (tmp_path / "specbench").glob("kernels-*.so")
        whole = file.read_bytes()
        file.unlink()  # a new file, since the old one is in use
        file.write_bytes(whole[:kept])
        file.chmod(0o700)
        compiler.found.cache_clear()
        assert compiler.library().packed_size(8, 8) > 0
        assert len(file.read_bytes()) == len(whole)
    finally:
        compiler.found.cache_clear()


@pytest.mark.full
def test_a_cache_home_that_is_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiler, "FLAGS", QUICKLY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    compiler.found.cache_clear()
    try:
        assert compiler.library().packed_size(8, 8) > 0
    finally:
        compiler.found.cache_clear()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["medusa", "hydra", "blockwise"])
def test_heads_run_in_kernels_and_give_the_logits_of_the_modules(kind: str, recwarn: pytest.WarningsRecorder) -> None:
    """For one state and for several; a function that cannot be captured runs as it is, and says so."""
    own = network("t5", 4)
    target = NativeModel(own, SIZE, ENDS)
    target.state_width = return_states(own, "target")
    heads = blockwise_heads(WIDTH) if kind == "blockwise" else random_heads(kind)
    widths = [WIDTH, 16] if kind == "hydra" else [WIDTH]

    def function(states: torch.Tensor, *read: torch.Tensor) -> torch.Tensor:
        if kind == "hydra":
            return heads.logits(states[0], read[0][0].unflatten(-1, (2, -1)), target.project)
        if kind == "blockwise":
            return target.project(heads(states[0], slice(0, 2))).flatten(0, 1)
        return heads.logits(states[0], slice(0, 2), target.project).flatten(0, 1)

    with torch.inference_mode():
        ready = target.ready(function, widths)
        assert ready is not function and not recwarn.list
        for rows in (1, 2, 5):
            given = [torch.randn(1, rows, width) for width in widths]
            expected = function(*given)
            assert (ready(*given) - expected).abs().max() < 1e-4 * expected.abs().max()
        with pytest.warns(UserWarning, match="heads cannot be captured: .*; they run eagerly, which is slower"):
            assert (
                target.ready(lambda states: states if bool(states.sum() > 0) else -states, [WIDTH])(given[0])
                is not None
            )


@pytest.mark.full
@pytest.mark.parametrize("stored", [False, True])
def test_a_capture_is_lowered_alike_whether_it_is_new_or_stored(
    stored: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two inputs of one length have sizes of two names until the capture joins them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(saved_captures, "cached_capture", cached_capture)  # which other tests do without
    for _ in range(2 if stored else 1):
        own = network("t5", 4, layers=1)
        target = NativeModel(own, SIZE, ENDS)
        made = random_eagle(own, (), 30)
        eagle = captured(beside(made), target, partial(probe, made))
    assert eagle is not None and bool(eagle.program.cached) == stored
    one, several = eagle.program.one, eagle.program.several
    for step in (one["draft"], several["draft"], one["read"]):
        assert calls(step)[0] == "native_run"
        assert not any("linear" in name for name in calls(step)), calls(step)
    assert not any("linear" in name for name in calls(several["read"]))  # the head reads one entry of several


@pytest.mark.full
@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_heads_are_captured_before_decoding_and_not_for_each_length(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proposal that the text's end makes short is read by the heads of a longer one."""
    target, draft = heads_on_a_target(kind, "t5", NativeModel)
    asked: list[int] = []
    ready = NativeModel.ready

    def counted(self: NativeModel, function: Any, widths: Any) -> Any:
        asked.append(1)
        return ready(self, function, widths)

    monkeypatch.setattr(NativeModel, "ready", counted)
    draft.expect(Sampling(0.0), [3, 9])
    before = len(asked)
    assert before > 0
    for tokens in (3, 7, 12):
        told: dict[str, Any] = {"sampling": Sampling(0.0), "max_new_tokens": tokens, "generator": torch.Generator()}
        speculative(target, draft, prompts("t5")[0], gamma=3, **told)
    assert len(asked) == before
