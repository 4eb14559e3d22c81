"""What computes a verdict on a GPU is captured as graphs; the tokens are those of the same operations one by one."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import ChainRule, PendingProposal, Proposal, Verification
from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.algorithm.acceptance.rules.exact import AcceptByChance, accept_exact
from specbench.algorithm.acceptance.rules.k_seq import accept_k_seq
from specbench.algorithm.acceptance.rules.lenient import lenient
from specbench.algorithm.acceptance.rules.match import accept_match
from specbench.algorithm.acceptance.rules.top_beta import TopBeta
from specbench.algorithm.acceptance.rules.typical import Typical
from specbench.algorithm.acceptance.verify import UnreadRows, target_rows, verdict_on_host, verify
from specbench.algorithm.decoding import autoregressive, speculative
from specbench.engine.batch import Batch
from specbench.engine.cuda.graphs import CudaGraphModel
from specbench.engine.cuda.replayed import FunctionGraph
from specbench.engine.session import Prompt, as_it_is
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import DrawnNumbers, Sampling, before_argmax, standardise, trials, uniforms
from tests.support.captured import Repeated
from tests.support.decode import spec_of
from tests.support.networks import network

pytestmark = pytest.mark.usefixtures("captured_once")
SIZE, GAMMA = 40, 3
graphs = partial(CudaGraphModel, capture=Repeated)


def test_numbers_drawn_beforehand_are_those_of_a_rule() -> None:
    generator, again = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    given = DrawnNumbers.of(GAMMA, generator, torch.device("cpu"))
    assert torch.equal(trials(GAMMA, given, torch.device("cpu")), torch.rand(GAMMA, generator=again))
    assert torch.equal(uniforms(1, given, torch.device("cpu")), torch.rand(1, generator=again, dtype=torch.float64))
    with pytest.raises(ValueError, match="1 number was drawn beforehand, and 2 are needed"):
        uniforms(2, given, torch.device("cpu"))


def verification_of(name: str, sampling: Sampling) -> Verification:
    if name == "lenient":
        return Verification(lenient(0.3, sampling), before_argmax(sampling))
    rules: dict[str, ChainRule] = {
        "exact": accept_exact, "block": accept_block, "chance": AcceptByChance(0.5), "match": accept_match,
        "typical": Typical(0.3, 0.3), "top-beta": TopBeta(3, 1.0), "k-seq": accept_k_seq,
    }  # fmt: skip
    return Verification(rules[name], sampling)


NAMES = ["exact", "block", "lenient", "chance", "match", "typical", "top-beta", "k-seq"]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(0.8, top_k=20, top_p=0.9)])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_known", [False, True])
def test_graphs_of_verdicts_give_the_verdicts_of_their_operations(
    name: str, sampling: Sampling, is_known: bool
) -> None:
    """Sixteen proposals, in one graph for each number of tokens: none sees an earlier one's content.

    The random numbers are those of the rule on rows that the host reads, and the generator is where it would be.
    """
    capturing = graphs(network("gpt2", seed=5, layers=1), SIZE, frozenset({1}))
    model, verification = Batch.of(capturing, 2), verification_of(name, sampling)
    if is_known and verification.argmax_only:
        pytest.skip("the host compares the tokens")
    draw = torch.Generator().manual_seed(0)
    for turn in range(16):
        logits_LV, from_LV = (2 * torch.randn(GAMMA + 1, SIZE + 2, generator=draw) for _ in range(2))
        q_GV = standardise(from_LV[:GAMMA], Sampling(1.0), SIZE) if sampling.temperature else None
        tokens_G = torch.randint(2, SIZE, (GAMMA,), generator=draw)
        if turn % 2:
            tokens_G = logits_LV[:GAMMA, :SIZE].argmax(-1)
        count = 1 + turn % 3 if is_known else next((i + 1 for i, one in enumerate(tokens_G) if one in (1, 9)), GAMMA)
        known = Proposal(tokens_G[:count].tolist(), None if q_GV is None else q_GV[:count], asked=GAMMA)
        found = []
        for repeat in (as_it_is, model.repeat):
            pending = known if is_known else PendingProposal(tokens_G, q_GV, torch.tensor([1, 9]))
            rows = UnreadRows(logits_LV[: pending.size + 1], SIZE)
            assert is_known or isinstance(target_rows(logits_LV, pending, verification, SIZE), UnreadRows)
            generator = torch.Generator().manual_seed(turn)
            proposal, verdict = verdict_on_host(rows, pending, verification, generator, repeat)
            found.append((proposal.tokens, verdict.accepted, verdict.token, float(torch.rand(1, generator=generator))))
        generator = torch.Generator().manual_seed(turn)
        read = target_rows(logits_LV[: count + 1], known, verification, SIZE)
        verdict = verify(read, known, verification, generator)
        found.append((known.tokens, verdict.accepted, verdict.token, float(torch.rand(1, generator=generator))))
        assert found[0] == found[1] == found[2]
        model.get_ready(Prompt((), (1,)), 1)
    captured = list(capturing._functions.values())
    assert len(captured) == (3 if is_known else 1) and all(isinstance(one, FunctionGraph) for one in captured)


def test_what_cannot_be_captured_runs_as_it_is() -> None:
    def refusing(work: Callable[[], Tensor]) -> Repeated:
        raise RuntimeError("operation not permitted when stream is capturing")

    model = CudaGraphModel(network("gpt2", seed=5, layers=1), SIZE, frozenset({1}), capture=refusing)
    for _ in range(3):
        assert model.repeat(torch.neg, torch.ones(2)).tolist() == [-1, -1]
        model.capture_asked()


def test_the_function_that_was_idle_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of a sweep share a model: the last ones are captured as the first were."""
    monkeypatch.setattr("specbench.engine.cuda.graphs.MOST_FUNCTIONS", 2)
    model = graphs(network("gpt2", seed=5, layers=1), SIZE, frozenset({1}))
    for size in (1, 2, 1, 3, 1):
        model.repeat(torch.neg, torch.ones(size))
        model.capture_repeated()
    assert all(isinstance(one, FunctionGraph) for one in model._functions.values())
    assert [shape for _, (shape, _) in model._functions] == [(3,), (1,)]


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
