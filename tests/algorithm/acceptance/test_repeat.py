"""What computes a verdict on a GPU is captured as graphs; the tokens are those of the same operations one by one."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import PendingProposal, Verification
from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.algorithm.acceptance.rules.exact import AcceptByChance, accept_exact
from specbench.algorithm.acceptance.rules.lenient import lenient
from specbench.algorithm.acceptance.verify import target_rows, verdict_on_host
from specbench.algorithm.decoding import autoregressive, speculative
from specbench.engine.cuda.graphs import CudaGraphModel
from specbench.engine.cuda.replayed import FunctionGraph
from specbench.engine.session import Prompt
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import DrawnNumbers, Sampling, before_argmax, standardise, trials, uniforms
from tests.support.captured import Repeated
from tests.support.decode import spec_of
from tests.support.networks import network

SIZE, GAMMA = 40, 3
graphs = partial(CudaGraphModel, capture=Repeated)


def test_numbers_drawn_beforehand_are_those_of_a_rule() -> None:
    generator, again = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    given = DrawnNumbers.of(GAMMA, generator, torch.device("cpu"))
    assert torch.equal(trials(GAMMA, given, torch.device("cpu")), torch.rand(GAMMA, generator=again))
    assert torch.equal(uniforms(1, given, torch.device("cpu")), torch.rand(1, generator=again, dtype=torch.float64))
    with pytest.raises(ValueError, match="1 number was drawn beforehand, and 2 are needed"):
        uniforms(2, given, torch.device("cpu"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["exact", "block", "lenient", "chance"])
def test_graphs_of_verdicts_give_the_verdicts_of_their_operations(name: str, temperature: float) -> None:
    """Twelve proposals in one graph: none sees an earlier one's content."""
    model = graphs(network("gpt2", seed=5, layers=1), SIZE, frozenset({1}))
    sampling = Sampling(temperature)
    rules = {"exact": accept_exact, "block": accept_block, "chance": AcceptByChance(0.5)}
    if name == "lenient":
        verification = Verification(lenient(0.3, sampling), before_argmax(sampling))
    else:
        verification = Verification(rules[name], sampling)
    draw = torch.Generator().manual_seed(0)
    for turn in range(12):
        logits_LV, from_LV = (2 * torch.randn(GAMMA + 1, SIZE + 2, generator=draw) for _ in range(2))
        q_GV = standardise(from_LV[:GAMMA], Sampling(1.0), SIZE) if temperature else None
        tokens_G = torch.randint(2, SIZE, (GAMMA,), generator=draw)
        if turn % 2:
            tokens_G = logits_LV[:GAMMA, :SIZE].argmax(-1)
        found = []
        for repeat in ({"repeat": model.repeat}, {}):
            pending = PendingProposal(tokens_G, q_GV, torch.tensor([1, 9]))
            rows = target_rows(logits_LV, pending, verification, SIZE, **repeat)
            generator = torch.Generator().manual_seed(turn)
            proposal, verdict = verdict_on_host(rows, pending, verification, generator, **repeat)
            found.append((proposal.tokens, verdict.accepted, verdict.token))
        assert found[0] == found[1]
        model.capture_asked()
    assert all(isinstance(function, FunctionGraph) for function in model._functions.values()) and model._functions


def test_what_cannot_be_captured_runs_as_it_is() -> None:
    def refusing(work: Callable[[], Tensor]) -> Repeated:
        raise RuntimeError("operation not permitted when stream is capturing")

    model = CudaGraphModel(network("gpt2", seed=5, layers=1), SIZE, frozenset({1}), capture=refusing)
    for _ in range(3):
        assert model.repeat(torch.neg, torch.ones(2)).tolist() == [-1, -1]
        model.capture_asked()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_completions_are_those_of_the_static_step(temperature: float) -> None:
    target, draft = (graphs(network("gpt2", seed=seed), SIZE, frozenset({1})) for seed in (5, 6))
    prompt, texts = Prompt((), (3, 4, 5)), []
    spec = spec_of(Sampling(temperature), 20, GAMMA)
    for _ in range(2):
        generators = [torch.Generator().manual_seed(3) for _ in range(2)]
        texts.append(
            (
                autoregressive(target, prompt, spec, generators[0]).tokens,
                speculative(target, ModelDraft(draft, SIZE), prompt, spec, generators[1]).tokens,
            )
        )
    assert texts[0] == texts[1]
