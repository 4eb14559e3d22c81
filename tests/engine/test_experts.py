"""Targets with experts: what their runs read is counted, and their completions are the target's own on every engine."""

import functools
import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from transformers import MixtralConfig, MixtralForCausalLM

from specbench.cli import main
from specbench.engine.capture.expert_layers import CLAMPED, ExpertLayer, ExpertMap, Gate, mixed
from specbench.engine.capture.lower import PackedWeights
from specbench.engine.eager.model import EagerModel
from specbench.engine.experts import expert_modules
from specbench.engine.native.expert_calls import NativeExperts
from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt
from specbench.kernels import is_available
from specbench.theory import Roofline
from tests.support import architectures
from tests.support.calls import newest
from tests.support.thousand import SAME, Texts, differing, greedy_texts
from tests.support.tokenized import vocabulary_of

SIZE, ENDS = 40, frozenset({1})
FAMILIES = ("qwen3_moe", "gpt_oss", "deepseek_v3")
ENGINES = ("eager", "static", *(["native"] if is_available() else []))
Capture = pytest.CaptureFixture[str]


@functools.cache
def model(kind: str, engine: str) -> EagerModel:
    return with_engine(engine, architectures.network(kind, seed=4), SIZE, ENDS)


def chosen(kind: str, tokens: list[int], last: int) -> list[int]:
    """Distinct experts of each layer that the last tokens of a text choose, as the network itself routes them."""
    network, found = architectures.network(kind, seed=4), list[int]()
    for module in expert_modules(network):
        module.register_forward_pre_hook(lambda _, args: found.append(len(args[1][-last:].unique())))
    with torch.inference_mode():
        network(torch.tensor([tokens]))
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", FAMILIES)
def test_experts_are_counted_run_by_run(kind: str, engine: str) -> None:
    target, text = model(kind, engine), [5, 9, 12, 30, 17, 3]
    experts, session = target.experts, model(kind, engine).start(Prompt((), (5, 9, 12)))
    assert experts is not None
    for tokens, last in (([12], 1), ([30, 17, 3], 3)):
        experts.begin()
        session.extend(tokens)
        read = session.length
        assert experts.distinct(experts.taken()) == chosen(kind, text[:read], last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("engine", ENGINES)
def test_experts_of_any_width_are_read(engine: str, dtype: torch.dtype) -> None:
    """Rows of 56 and 28 bytes: torch's grouped product takes multiples of 16."""
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=SIZE, hidden_size=16, intermediate_size=14, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=64,
    )  # fmt: skip
    network = MixtralForCausalLM(config).eval().to(dtype)
    session = with_engine(engine, network, SIZE, ENDS).start(Prompt((), (5, 9, 12)))
    found = session.extend([12, 30, 17])
    exact = network.double()(torch.tensor([[5, 9, 12, 30, 17]])).logits[0, 2:]
    assert torch.allclose(found.double(), exact, atol=1e-6 if dtype == torch.float32 else 4e-3)


@pytest.mark.skipif(not is_available(), reason="no C compiler")
@pytest.mark.parametrize("kind", FAMILIES)
def test_numerics_are_invariant_in_bf16(kind: str) -> None:
    target = with_engine("native", architectures.network(kind, seed=4).bfloat16(), SIZE, ENDS, "invariant")
    assert target.report.not_invariant is None and target.invariant


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_step_counts_the_weights_of_one_tokens_experts(kind: str) -> None:
    target = model(kind, "eager")
    experts = target.experts
    assert experts is not None and 0 < experts.per_token < experts.number
    every = sum(one.numel() for module in expert_modules(target.network) for one in module.parameters())
    assert experts.of_a_token + experts.unread == every
    assert 2 * experts.of_a_token < target.operations < 2 * sum(one.numel() for one in target.network.parameters())


def test_v_from_experts_grows_as_their_bytes() -> None:
    least = Roofline(reading=8.0, multiplying=0.1, expert_share=0.75)
    assert least.of_run(4, experts=3.0) == pytest.approx(8 * (0.25 + 0.75 * 3))
    assert least.verify_cost(4, experts=3.0) == pytest.approx((2 + 18) / 8)
    assert least.verify_cost(1) == 1.0
    assert Roofline(8.0, 0.1).of_run(4, experts=3.0) == 8.0


@pytest.mark.skipif(not is_available(), reason="no C compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gate", [Gate("SiLU", 0.0, 0.0), Gate("GELUTanh", 0.0, 0.0), Gate(CLAMPED, 1.7, 2.0)])
def test_the_kernel_of_experts(gate: Gate, dtype: torch.dtype) -> None:
    """As torch's operations, and each row the same to the bit in any company."""
    draws = torch.Generator().manual_seed(0)
    number, width, inner, per_token = 9, 40, 24, 3

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draws).to(dtype)

    layer = ExpertLayer(
        numbers(number, 2 * inner, width), numbers(number, width, inner) / 5, numbers(number, 2 * inner),
        numbers(number, width), gate,
    )  # fmt: skip
    kernel = NativeExperts(layer, PackedWeights())
    maps = [
        ExpertMap(layer.up, layer.up_bias, functional.linear),
        ExpertMap(layer.down, layer.down_bias, functional.linear),
    ]
    for tokens in (1, 2, 7, 40):
        states, weights = numbers(tokens, width) / 3, numbers(tokens, per_token).softmax(-1)
        chosen = torch.rand(tokens, number, generator=draws).topk(per_token).indices
        together, plain = kernel(states, chosen, weights), mixed(states, chosen, weights, maps[0], maps[1], gate)
        assert torch.allclose(
            together, plain, rtol=0, atol=(1e-5 if dtype == torch.float32 else 0.05) * float(plain.abs().max())
        )
        alone = [kernel(states[row : row + 1], chosen[row : row + 1], weights[row : row + 1]) for row in range(tokens)]
        assert torch.equal(together, torch.cat(alone))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target and a draft of each family as `transformers` saves them, with a tokenizer, and rows to decode."""
    root, own = tmp_path_factory.mktemp("experts"), vocabulary_of("byte-level", end="<|end|>")
    for kind in FAMILIES:
        for name, layers in (("target", 2), ("draft", 1)):
            made = architectures.network(kind, seed=layers, layers=layers, vocabulary=own.size + 3)
            made.generation_config.eos_token_id = own.tokenizer.eos_token_id
            made.save_pretrained(root / kind / name)
            own.tokenizer.save_pretrained(root / kind / name)
    rows = ["the small dogs run", "an old tree", "The cats: ## über das Haus", "the old dog", "running"] * 4
    (root / "rows.jsonl").write_text("".join(f"{json.dumps({'prompt': row})}\n" for row in rows))
    return root


@pytest.mark.covering(most=2)
@pytest.mark.parametrize("how", ["", "sampling.temperature=1", "batch=2", "tree=widths gamma=tree"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_run_on_a_folder(kind: str, how: str, folders: Path, tmp_path: Path, capfd: Capture) -> None:
    words = [
        f"target={folders / kind / 'target'}", f"draft={folders / kind / 'draft'}", "task=prompts", "dtype=float32",
        f"task.path={folders / 'rows.jsonl'}", f"results={tmp_path}", "max_new_tokens=12", "threads=1", "warmup=1",
    ]  # fmt: skip
    assert main(["run", *words, *how.split()]) == 0
    record = newest(tmp_path)
    summary, passes = record["summary"], record["prompts"][0]["speculative"].passes
    assert summary["lossless"] and summary["engine"] == ENGINES[-1] and 0 < summary["expert_share"] < 1
    assert summary["identical"] == (None if "temperature" in how else 1)
    layers = 1 if kind == "deepseek_v3" else 2
    assert all(len(one.experts) == layers and min(one.experts) >= 2 for one in passes)
    assert 1 <= summary["experts_read"] <= 8 * (1 + max(one.drafted for one in passes))
    capfd.readouterr()
    if how != "batch=2":
        assert main(["explain", "--results", str(tmp_path)]) == 0
        line = f"verification reads {summary['experts_read']:.1f} times the experts of a step"
        assert line in " ".join(capfd.readouterr().out.split())
    assert main(["results", "--results", str(tmp_path)]) == 0


@functools.cache
def texts(kind: str) -> Texts:
    return greedy_texts(architectures.network(kind, seed=4), SIZE, ENDS, longest=8)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_thousand_greedy_completions(kind: str, engine: str) -> None:
    assert differing(model(kind, engine), texts(kind)) == SAME
