"""Sampled texts of a model of 16 tokens, written by Algorithm 1 and by rules and drafts with planted faults."""

from collections.abc import Callable

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import AcceptanceRule, Proposal, Verdict
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.rules.match import accept_match
from specbench.algorithm.draft import Draft
from specbench.analysis.proof import Proof, prove
from specbench.analysis.proof.evidence import evidence
from specbench.engine.session import Prompt
from specbench.methods.model.draft import ModelDraft
from specbench.records.prompt_sums import Evidence
from specbench.sampling import Sampling, draw, standardise
from tests.support.around import Around
from tests.support.decode import speculative
from tests.support.toy import ToyModel

WORDS = 16
WIDE = Prompt((), (0,))
ONE = Sampling(1.0)
Rule = AcceptanceRule


def wide(log_table: Tensor) -> ToyModel:
    """A toy of 16 tokens, whose texts do not end by themselves."""
    model = ToyModel(log_table.softmax(-1))
    model.vocabulary_size, model.eos_ids = WORDS, frozenset()
    return model


def noise(seed: int) -> Tensor:
    return torch.randn(WORDS, WORDS, WORDS, generator=torch.Generator().manual_seed(seed))


TARGET = wide(1.5 * noise(1))
DRAFT = ModelDraft(wide(1.2 * noise(1) + 0.7 * noise(2)), WORDS)  # alpha = .7, as drafts have
LENGTH = 40


def raw(found: Evidence) -> dict[str, object]:
    return {"proof": found}


def proof_of(
    texts: list[list[int]], target: ToyModel = TARGET, sampling: Sampling = ONE, prompt: Prompt = WIDE
) -> Proof:
    proof = prove([raw(evidence(target, DRAFT, prompt, text, sampling)) for text in texts])
    assert proof is not None
    return proof


def written(
    accept: Rule | Callable[[torch.Generator], Rule] = accept_exact,
    *,
    draft: Draft = DRAFT,
    texts: int,
    seed: int = 0,
    gamma: int = 4,
    sampling: Sampling = ONE,
    compared: Sampling | None = None,
    per_text: bool = False,
) -> list[list[int]]:
    """Texts of `LENGTH` tokens; where `per_text`, `accept` makes a rule for each of them."""
    found = []
    for index in range(texts):
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        rule = accept(generator) if per_text else accept  # type: ignore[call-arg, arg-type]
        found.append(
            speculative(
                TARGET, draft, WIDE, gamma=gamma, sampling=sampling, max_new_tokens=LENGTH, generator=generator,
                accept=rule, compared=compared,  # type: ignore[arg-type]
            ).tokens
        )  # fmt: skip
    return found


def q_for_p(p_GV: Tensor, q_GV: Tensor, drafted: list[int], generator: torch.Generator) -> Verdict:
    """Draws the token after a rejection from q."""
    verdict = accept_exact(p_GV, q_GV, drafted, generator)
    if verdict.accepted < len(drafted):
        return Verdict.chain(verdict.accepted, draw(q_GV[verdict.accepted], generator))
    return verdict


def no_residual(p_GV: Tensor, q_GV: Tensor, drafted: list[int], generator: torch.Generator) -> Verdict:
    """Draws the token after a rejection from p."""
    verdict = accept_exact(p_GV, q_GV, drafted, generator)
    return Verdict.chain(verdict.accepted, draw(p_GV[verdict.accepted], generator))


def unnormalised(p_GV: Tensor, q_GV: Tensor, drafted: list[int], generator: torch.Generator) -> Verdict:
    """Inverts max(0, p - q) as if its sum were 1: what is missing goes to the last token."""
    verdict = accept_exact(p_GV, q_GV, drafted, generator)
    if (place := verdict.accepted) < len(drafted):
        cumulative_V = (p_GV[place] - q_GV[place]).clamp(min=0).cumsum(-1)
        token = int(torch.searchsorted(cumulative_V, torch.rand(1, generator=generator), right=True))
        return Verdict.chain(place, min(token, WORDS - 1))
    return verdict


def judged_by(uniform: Callable[[], float], again: bool = False) -> Rule:
    """Algorithm 1 with these uniform numbers in its tests; `again`: the number that rejected a token also draws the
    next one."""

    def rule(p_GV: Tensor, q_GV: Tensor, drafted: list[int], generator: torch.Generator) -> Verdict:
        for place, token in enumerate(drafted):
            u = uniform()
            if u * q_GV[place, token] >= p_GV[place, token]:
                cumulative_V = (p_GV[place] - q_GV[place]).clamp(min=0).cumsum(-1)
                u = u if again else float(torch.rand(1, generator=generator))
                following = torch.searchsorted(cumulative_V, u * cumulative_V[-1:], right=True)
                return Verdict.chain(place, min(int(following), WORDS - 1))
        return Verdict.chain(len(drafted), draw(p_GV[-1], generator))

    return rule


def used_again(generator: torch.Generator) -> Rule:
    return judged_by(lambda: float(torch.rand(1, generator=generator)), again=True)


def once_per_text(generator: torch.Generator) -> Rule:
    u = float(torch.rand(1, generator=generator))
    return judged_by(lambda: u)


def honest(generator: torch.Generator) -> Rule:
    return judged_by(lambda: float(torch.rand(1, generator=generator)))


def once_per_pass(generator: torch.Generator) -> Rule:
    def rule(p_GV: Tensor, q_GV: Tensor, drafted: list[int], generator: torch.Generator) -> Verdict:
        u = float(torch.rand(1, generator=generator))
        return judged_by(lambda: u)(p_GV, q_GV, drafted, generator)

    return rule


def drawn_anew(p_GV: Tensor, q_GV: Tensor, drafted: list[int], generator: torch.Generator) -> Verdict:
    """Strict match that draws the token after a mismatch once more, in the place of the draw that differed."""
    verdict = accept_match(p_GV, q_GV, drafted, generator)
    return Verdict.chain(verdict.accepted, draw(p_GV[verdict.accepted], generator))


class GreedyInFull(Draft):
    """A draft that proposes the argmax of q and reports all of q."""

    operations = 1.0

    def start(self, prompt: Prompt, sampling: Sampling) -> "TruncatedSession":
        return TruncatedSession(DRAFT.start(prompt, Sampling(0.0)), sampling)


class Truncated(Draft):
    """A draft that samples from the top k of q and reports all of q."""

    operations = 1.0

    def __init__(self, k: int) -> None:
        self.k = k

    def start(self, prompt: Prompt, sampling: Sampling) -> "TruncatedSession":
        return TruncatedSession(DRAFT.start(prompt, Sampling(sampling.temperature, self.k)), sampling)


class TruncatedSession(Around):
    def __init__(self, inner, sampling: Sampling) -> None:  # type: ignore[no-untyped-def]
        super().__init__(inner)
        self.sampling = sampling

    def propose(self, tokens, gamma, generator):  # type: ignore[no-untyped-def]
        proposal = self.inner.propose(tokens, gamma, generator)
        read = [*tokens, *proposal.tokens]
        logits_LV = DRAFT.model.start(WIDE).extend(read)[len(tokens) - 1 : len(read) - 1]  # type: ignore[attr-defined]
        return Proposal(proposal.tokens, standardise(logits_LV, self.sampling, WORDS))


TOP_4 = Sampling(1.0, top_k=4)
# What writes the fault, which test sees it best, and a number of tokens that is enough.
FAULTS: dict[str, tuple[dict[str, object], str, int]] = {
    "q for p after a rejection": ({"accept": q_for_p}, "draft", 600),
    "p for the residual": ({"accept": no_residual}, "draft", 2_000),
    "an unnormalised residual": ({"accept": unnormalised}, "order", 400),
    "one uniform number a pass": ({"accept": once_per_pass, "per_text": True}, "draft", 8_000),
    "one uniform number a text": ({"accept": once_per_text, "per_text": True}, "echo", 400),
    "the number that rejected draws as well": ({"accept": used_again, "per_text": True}, "order", 2_400),
    "q drawn from its top k and compared in full": ({"draft": Truncated(5)}, "likelihood", 800),
    "the argmax drafted and compared with all of q": ({"draft": GreedyInFull()}, "likelihood", 800),
    "a draw anew after a mismatch": ({"accept": drawn_anew}, "likelihood", 6_000),
    "top k for q and not for p": ({"sampling": TOP_4, "compared": ONE}, "outside", 80),
}
