"""Chi-square on whole texts, as in test_exactness, of what is lossless beyond Algorithm 1 at a fixed gamma: block
verification, policies of gamma, and a draft that stops by its own confidence. One false alarm in 10,000 seeds a test.
That wrong implementations are detected is shown by enumeration, in test_rules.
"""

import pytest
import torch

from specbench.algorithm.acceptance.base import AcceptanceRule
from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.rules.match import accept_match
from specbench.algorithm.draft import Draft
from specbench.algorithm.gamma import Gamma, Heuristic
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling
from tests.support import chi
from tests.support.chi import ALARM
from tests.support.decode import speculative
from tests.support.toy import PROMPT, VOCABULARY, ToyModel, exact, random_table

LENGTH = 4
SAMPLES = 1500
SAMPLED, CUT = Sampling(1.0), Sampling(1.3, top_k=3, top_p=0.9)
TARGET = ToyModel(random_table(1, zeros=True))
NEAR, FAR = ToyModel(0.8 * TARGET.table_VVV + 0.2 * random_table(2)), ToyModel(random_table(3))
RULES = [accept_exact, accept_block, accept_match]


def p_value(draft: Draft, gamma: int | Gamma, accept: AcceptanceRule, sampling: Sampling = SAMPLED) -> float:
    """The chance that the target's own distribution gives texts at least this far from it."""
    return chi.speculative_p_value(TARGET, draft, PROMPT, gamma, sampling, LENGTH, SAMPLES, accept)[0]


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("gamma", range(1, 9))
def test_block_verification_at_every_gamma(gamma: int) -> None:
    draft = ModelDraft(FAR if gamma % 2 else NEAR, VOCABULARY)
    assert p_value(draft, gamma, accept_block) > ALARM


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("sampling", [SAMPLED, CUT], ids=["T=1", "adjusted"])
@pytest.mark.parametrize("greedy_draft", [False, True], ids=["match", "onehot"])
@pytest.mark.parametrize("draft", [ModelDraft(FAR, VOCABULARY), LookupDraft(VOCABULARY, torch.device("cpu"), match=2)])
def test_strict_match_and_a_greedy_draft(draft: Draft, greedy_draft: bool, sampling: Sampling) -> None:
    accept = accept_exact if greedy_draft else accept_match

    def decode(generator: torch.Generator) -> list[int]:
        return speculative(
            TARGET, draft, PROMPT, gamma=3, sampling=sampling, max_new_tokens=LENGTH, generator=generator,
            accept=accept, greedy_draft=greedy_draft,
        ).tokens  # fmt: skip

    assert chi.p_value(decode, exact(TARGET, sampling, LENGTH), SAMPLES) > ALARM


@pytest.mark.full
@pytest.mark.statistical
def test_block_verification_of_adjusted_distributions() -> None:
    assert p_value(ModelDraft(FAR, VOCABULARY), 3, accept_block, CUT) > ALARM


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("accept", RULES)
def test_the_heuristic_gamma(accept: AcceptanceRule) -> None:
    assert p_value(ModelDraft(NEAR, VOCABULARY), Heuristic(most=3, first=1), accept) > ALARM


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("sampling", [SAMPLED, CUT], ids=["T=1", "adjusted"])
@pytest.mark.parametrize("accept", RULES)
def test_a_proposal_that_ends_after_an_unsure_token(accept: AcceptanceRule, sampling: Sampling) -> None:
    assert p_value(ModelDraft(FAR, VOCABULARY, confidence=0.4), 3, accept, sampling) > ALARM


def test_the_confidence_is_that_of_the_token_drawn_and_at_t_0_that_before_argmax() -> None:
    table = torch.zeros(VOCABULARY, VOCABULARY, VOCABULARY)
    table[...] = torch.tensor([0.1, 0.3, 0.6, 0.0])
    for confidence, drafted in ((0.59, 3), (0.61, 1)):
        session = ModelDraft(ToyModel(table), VOCABULARY, confidence).start(PROMPT, Sampling(0.0))
        assert session.propose([0], 3, torch.Generator()).tokens == [2] * drafted
    session = ModelDraft(ToyModel(table), VOCABULARY, 0.2).start(PROMPT, SAMPLED)
    for seed in range(30):
        tokens = session.propose([0], 4, torch.Generator().manual_seed(seed)).tokens
        session.rollback(0)
        assert 0 not in tokens[:-1]  # the unsure token is proposed, as the last
        assert len(tokens) == 4 or tokens[-1] == 0
