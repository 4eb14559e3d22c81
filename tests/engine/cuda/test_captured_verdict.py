"""The captured verdict is that of the same rule uncaptured, for every chain rule, on a GPU and on its twin here."""

from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import AcceptanceRule, PendingProposal, Proposal, Verdict
from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.algorithm.acceptance.rules.exact import AcceptByChance, accept_exact
from specbench.algorithm.acceptance.rules.lenient import lenient
from specbench.algorithm.acceptance.rules.match import accept_match
from specbench.algorithm.acceptance.rules.top_beta import TopBeta
from specbench.algorithm.acceptance.rules.typical import Typical
from specbench.algorithm.acceptance.verify import ArgmaxTokens, UnreadRows, VerdictOfLogits, verdict_on_host
from specbench.engine.cuda.graphs import COUNTS, MOST_FUNCTIONS, CudaGraphModel
from specbench.engine.cuda.replayed import CudaCapture, FunctionGraph
from specbench.engine.session import Repeat, as_it_is
from specbench.sampling import Sampling, argmax, standardise
from tests.support.captured import Repeated
from tests.support.decode import spec_of
from tests.support.networks import network

SIZE, GAMMA, PADDED = 40, 4, 44
NUCLEUS = Sampling(0.8, top_k=20, top_p=0.9, min_p=0.01)
RULES: list[tuple[AcceptanceRule, Sampling]] = [
    (accept_exact, Sampling()), (accept_exact, NUCLEUS), (accept_block, NUCLEUS), (lenient(0.5, NUCLEUS), NUCLEUS),
    (lenient(0.5, Sampling()), Sampling()), (AcceptByChance(0.6), NUCLEUS), (Typical(0.3, 0.3), NUCLEUS),
    (accept_match, NUCLEUS), (TopBeta(3, 1.0), NUCLEUS),
]  # fmt: skip
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")],
    ),
]


def model(device: str) -> CudaGraphModel:
    own: Any = network("gpt2", seed=5, layers=1).to(device)
    return CudaGraphModel(own, SIZE, frozenset({1}), capture=Repeated if device == "cpu" else CudaCapture)


def verdicts(rule: AcceptanceRule, how: Sampling, device: str, pending: bool, repeat: Repeat) -> list[Verdict]:
    """Of eight passes, on the same numbers at each call."""
    draw = torch.Generator().manual_seed(0)
    generator = torch.Generator(device).manual_seed(1)
    verification, found = spec_of(how, 10, GAMMA, rule).verification, []
    for _ in range(8):
        logits_LV = (2 * torch.randn(GAMMA + 1, PADDED, generator=draw)).to(device)
        q_GV = standardise(logits_LV[:-1].cpu() + torch.randn(GAMMA, PADDED, generator=draw), how, SIZE)
        tokens = torch.multinomial(q_GV, 1, generator=draw)[:, 0].tolist()
        given = None if how.temperature == 0 else q_GV.to(device)
        proposal: Proposal | PendingProposal = Proposal(tokens, given)
        if pending:
            ends_E = torch.tensor([1, 7], device=device)
            proposal = PendingProposal(torch.tensor(tokens, device=device), given, ends_E)
        rows = UnreadRows(logits_LV, SIZE)
        found.append(verdict_on_host(rows, proposal, verification, generator, repeat)[1])
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize(("rule", "how"), RULES)
@torch.inference_mode()
def test_a_captured_verdict_is_the_verdict(rule: AcceptanceRule, how: Sampling, pending: bool, device: str) -> None:
    made = model(device)
    want = verdicts(rule, how, device, pending, as_it_is)
    assert verdicts(rule, how, device, pending, made.repeat) == want  # as they are, and asked for
    made.capture_repeated()
    graphs = [one for key, one in made._functions.items() if isinstance(key[0], VerdictOfLogits)]
    assert graphs and all(isinstance(one, FunctionGraph) for one in graphs)
    assert verdicts(rule, how, device, pending, made.repeat) == want
    assert {one.accepted for one in want} > {0}  # it depends on the logits


@pytest.mark.parametrize("device", DEVICES)
@torch.inference_mode()
def test_trees_of_many_sizes_have_few_graphs(device: str) -> None:
    """At T = 0 a tree's verdict needs the argmax of each row: a graph for each number of rows would push out all
    others."""
    made, function = model(device), ArgmaxTokens(SIZE)
    draw = torch.Generator().manual_seed(0)
    for _ in range(2):
        for rows in range(1, MOST_FUNCTIONS + 10):
            logits_LV: Tensor = torch.randn(rows, PADDED, generator=draw).to(device)
            assert made.repeat(function, logits_LV).tolist() == argmax(logits_LV, SIZE).tolist()
        made.capture_repeated()
    assert len(made._functions) <= len(COUNTS)
