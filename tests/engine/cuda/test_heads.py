"""A draft's steps that end before the head: one kernel computes the head and the choice, and the same tokens follow."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine import selection as engines
from specbench.engine.capture.program import Program
from specbench.engine.cuda.graphs import CudaGraphModel
from specbench.engine.cuda.replayed import RolloutGraph, headless_for
from specbench.engine.operations import fused, usable_fused
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling, TokenChoice
from tests.support.calls import called
from tests.support.captured import Repeated
from tests.support.decode import speculative
from tests.support.networks import network
from tests.support.prompts import varied

SIZE, CPU = 40, torch.device("cpu")
EVERY = [Sampling(), Sampling(1.0), Sampling(0.7)]
SOME = [Sampling(1.0, top_k=9), Sampling(1.0, top_p=0.8), Sampling(0.9, min_p=0.1)]


def model(kind: str, seed: int, layers: int) -> CudaGraphModel:
    return CudaGraphModel(network(kind, seed=seed, layers=layers), SIZE, frozenset({1}), capture=Repeated)


def written(kind: str, sampling: Sampling) -> tuple[Any, ModelDraft]:
    draft = ModelDraft(model(kind, 6, 1), SIZE)
    generator = torch.Generator().manual_seed(3)
    target = model(kind, 5, 2)
    traces = [
        speculative(
            target, draft, varied(kind, length), gamma=4, sampling=sampling, max_new_tokens=20, generator=generator
        )
        for length in (3, 9)
    ]
    return [(trace.tokens, [(one.tokens, one.accepted) for one in trace.passes]) for trace in traces], draft


@pytest.mark.covering(most=3)
@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
@pytest.mark.parametrize("sampling", EVERY)
def test_the_same_tokens_without_logits(kind: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    want, _ = written(kind, sampling)
    name = "head_drawn" if sampling.temperature else "head_argmax"
    monkeypatch.setattr(usable_fused, "agreeing", lambda device: frozenset({name}))
    calls = list[int]()
    own = getattr(fused, name)

    def counted(x_11E: Tensor, *given: Any) -> Any:
        calls.append(x_11E.shape[1])
        return own(x_11E, *given)

    monkeypatch.setattr(fused, name, counted)
    found, draft = written(kind, sampling)
    assert found == want and set(calls) == {1}
    rollouts = [graph.rollout for graph in draft.model._graphs.values() if isinstance(graph, RolloutGraph)]
    assert rollouts and all(name in one.kernels for one in rollouts)
    assert draft.model.report.gpu_kernels == {name}


def test_a_head_is_left_out_of_steps_only_where_a_kernel_makes_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program.of(network("gpt2", seed=5, layers=1), torch.float32)
    assert headless_for(TokenChoice(Sampling(), SIZE), program, CPU) is None  # no kernels here
    monkeypatch.setattr(usable_fused, "agreeing", lambda device: frozenset({"head_drawn"}))
    assert headless_for(TokenChoice(Sampling(), SIZE), program, CPU) is None
    assert headless_for(TokenChoice(Sampling(0.5), SIZE), program, CPU) is program.headless is not None
    for sampling in SOME:  # which the kernel does not compute
        assert headless_for(TokenChoice(sampling, SIZE), program, CPU) is None


def test_what_the_head_reads_and_its_weights_give_the_logits() -> None:
    for kind in ("t5", "t5-v1_1", "llama"):
        own = network(kind, seed=5, layers=1)
        headless = Program.of(own, torch.float32).headless
        assert headless is not None and headless.bias_V is None
        assert torch.equal(headless.weight_VE, own.get_output_embeddings().weight)


def test_a_tie_goes_to_the_first_token_and_what_is_not_finite_to_none() -> None:
    weight = torch.eye(6, 4)
    weight[4] = weight[1]
    row = torch.tensor([[[0.0, 2.0, 0.0, 1.0]]])
    assert fused.head_argmax(row, weight, None, 6).tolist() == [1]
    assert fused.head_argmax(row * torch.nan, weight, None, 6).tolist() == [-1]
    token, row_1V = fused.head_drawn(row, weight, None, 5, 0.5, torch.tensor([0.999999], dtype=torch.float64))
    assert token.tolist() == [4] and row_1V.shape == (1, 5)


@pytest.mark.full
def test_the_screen_and_the_record_name_the_kernels_of_a_run(
    folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the engine of CUDA graphs on its CPU twin. Off a GPU there are none."""
    monkeypatch.setitem(engines.AUTO, "cpu", ("cudagraph",))
    monkeypatch.setitem(engines.KINDS, "cudagraph", partial(CudaGraphModel, capture=Repeated))
    words = [
        f"target.path={folders['t5']}", f"draft.path={folders['t5-draft']}", "task=ende",
        f"task.path={folders['rows']}", f"results={tmp_path}", "dtype=float32", "device=cpu", "max_new_tokens=6",
        "limit=2", "gamma=2", "numerics=fast",
    ]  # fmt: skip
    code, out, said, record = called(["run", *words], tmp_path, capfd)
    assert code == 0 and record is not None and record["summary"]["gpu_kernels"] is None
    assert "kernels of a step" not in out + said
    monkeypatch.setattr(usable_fused, "agreeing", lambda device: usable_fused.ALL)
    code, out, said, record = called(["run", *words, "force=true"], tmp_path, capfd)
    assert code == 0 and record is not None
    named = record["summary"]["gpu_kernels"].split(", ")
    assert {"head_argmax", "norm_linear", "write_attend"} <= set(named) <= usable_fused.ALL
    assert "draft: kernels of a step: " in out + said
