"""Agreement of drafts with the target along its own completion, by teacher forcing: beta at each position.

Its mean is alpha (Theorem 3.5, Corollary 3.6). The target reads the completion once for all drafts.
Distributions are made `CHUNK` positions at a time and dropped: however long the completion, a dozen tensors of CHUNK x
V numbers are alive (0.4 GB at a vocabulary of 32k; half without lossy rules).

Under a lossy rule the acceptance probability and the total variation of the output from the target's distribution are
computed from the rule's own formulas (`TokenRule`) along the target's own completion, as alpha is. A completion under
the rule would differ. For lenience l at T > 0 the mean acceptance probability is A.5's alpha(l),
E sum_x min(p(x) / l, q(x)).

Shapes: L positions of a chunk, V tokens of the vocabulary.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import repeat
from typing import Annotated

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import ChainRule, TokenRule
from specbench.algorithm.draft import Draft, DraftSession, ScoresAhead
from specbench.analysis.acceptance.ranks import RankReader, Ranks
from specbench.analysis.acceptance.signs import add_signs
from specbench.config.rules import RULES
from specbench.engine.session import Model, Prompt, Session
from specbench.methods.model.draft import TextDraftSession
from specbench.recorded import LATER
from specbench.records.draft_signs import Signs
from specbench.sampling import NOT_FINITE, Sampling, before_argmax, standardise
from specbench.text.processed import ProcessedModel
from specbench.text.translation import TranslatedModel

LENIENCES = (0.5, 0.3, 0.1)  # the paper's; at 1 alpha(l) is alpha
CHUNK = 256


def accepted(rule: TokenRule, p_LV: Tensor, q_LV: Tensor) -> Tensor:
    """The probability [L] that a token drawn from q is accepted."""
    # fp32 rows add up to 1 within 1e-6.
    return (q_LV * rule.accept_probability(p_LV, q_LV, p_LV)).sum(-1).clamp(max=1.0)


def emitted(rule: TokenRule, p_LV: Tensor, q_LV: Tensor) -> Tensor:
    """The distribution [L, V] of the token emitted at a position with a draft token."""
    accepted_LV = q_LV * rule.accept_probability(p_LV, q_LV, p_LV)
    return accepted_LV + (1 - accepted_LV.sum(-1, keepdim=True)) * rule.recovered(p_LV, q_LV)


def total_variation(rule: TokenRule, p_LV: Tensor, q_LV: Tensor) -> Tensor:
    """Total variation [L] between the token emitted under the rule and the target's own."""
    return (emitted(rule, p_LV, q_LV) - rule.bonus(p_LV)).abs().sum(-1) / 2


def mismatch(
    session: DraftSession, logits_LV: Tensor, p_LV: Tensor, q_LV: Tensor, sampling: Sampling
) -> tuple[list[float], list[float]] | None:
    """The cost of differing vocabularies at each position that `session` has just scored as `q_LV`.

    Returns: The target's probability of the shared tokens, and the acceptance probability without the mismatch: by
        token (tli) if the target wrote only shared tokens (its other logits masked), by string (slem) if every token
        that is a prefix of the drafted string is accepted, however the target's tokenizer splits it. None for a draft
        of the target's own vocabulary.
    """
    model = getattr(session, "model", None)
    if isinstance(model, ProcessedModel):
        model = model.model
    if not isinstance(model, TranslatedModel):
        return None
    shared_L = p_LV[:, model.targets_S].sum(-1)
    if isinstance(session, TextDraftSession):
        begun = [model.translation.beginnings(text) for text in session.texts]
        matched = [float(p_LV[row, tokens].sum()) for row, tokens in enumerate(begun)]
    else:
        alone_LV = torch.full_like(logits_LV, -torch.inf)
        alone_LV[:, model.targets_S] = logits_LV[:, model.targets_S]
        matched = standardise(alone_LV, sampling, model.vocabulary_size).minimum(q_LV).sum(-1).tolist()
    return shared_L.tolist(), matched


@dataclass(frozen=True)
class Chances:
    """`Agreement.beta` and `Agreement.ratio` under another lossless rule."""

    beta: list[float] = field(default_factory=list)
    ratio: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Agreement:
    """One draft along one completion x_1 ... x_n of the target; every list has one entry per token.

    At T = 0 p and q are one-hot, and both beta and ratio are 1 where the argmaxes agree and 0 elsewhere.

    Attributes:
        beta: sum_x min(p(x), q(x)), the probability that the draft's token is accepted here. Its mean is alpha.
        ratio: q(x_i) / p(x_i). min(1, ratio) is the acceptance probability given that x_i follows. Along a completion
            drawn from p acceptances are independent given the completion, so that products of these over neighbours are
            right where products of betas are not: after an accepted token the completion is no longer a plain draw from
            p. `analysis.forecast.walk` counts passes with them. Values above 1 matter to block verification only.
        silent: whether the draft proposes nothing here (a lookup without a match).
        ahead: the same of the second, third, ... token of a proposal, each at the token that it would be; only where
            asked for, of drafts that are accepted less often the further ahead they are (`draft.ScoresAhead`).
        stops_at_end: whether a proposal ends at a token that ends the completion; used with `ahead`.
        under: beta under each lossy rule, by the rule's name. Under lenience l its mean is A.5's alpha(l).
        total_variation: between the token that is emitted under the rule and the target's own.
        others: beta and ratio under each lossless rule with an alpha of its own (`other_rules`), at T > 0, where they
            differ from those above: at a token x_i two draws are the same with sum_x p(x) q(x), and given x_i with
            q(x_i); a greedy draft's token is the target's with p at q's argmax, and given x_i it is x_i or not.
        ranks: of several children of each position (`analysis.acceptance.ranks`); only where asked for.
        shared: with a draft of another vocabulary, the target's probability of the tokens that both share.
        matched: with such a draft, beta without the mismatch.
        signs: by which a faulty draft is told (`analysis.findings`).
    """

    beta: list[float] = field(default_factory=list)
    ratio: list[float] = field(default_factory=list)
    silent: list[bool] = field(default_factory=list)
    under: dict[str, list[float]] = field(default_factory=dict)
    total_variation: dict[str, list[float]] = field(default_factory=dict)
    ahead: list["Agreement"] = field(default_factory=list)
    stops_at_end: bool = True
    others: dict[str, Chances] = field(default_factory=dict)
    ranks: Ranks | None = None
    shared: list[float] = field(default_factory=list)
    matched: list[float] = field(default_factory=list)
    signs: Annotated[Signs, LATER] = field(default_factory=Signs)

    def at(self, rule: str) -> "Agreement":
        """Agreement under `rule`, for questions about how many drafted tokens are accepted.

        For a lossy rule this is an estimate: a completion written under it would be another.
        """
        further = [one.at(rule) for one in self.ahead]
        if rule in other_rules():
            chances = self.others.get(rule, Chances(self.beta, self.ratio))
            return replace(self, beta=chances.beta, ratio=chances.ratio, ahead=further)
        return replace(self, beta=self.under[rule], ratio=self.under[rule], ahead=further)


def agreements(
    target: Model,
    drafts: Sequence[Draft],
    prompt: Prompt,
    generated: Sequence[int],
    sampling: Sampling,
    rules: Mapping[str, TokenRule] | None = None,
    ahead: int = 1,
    readers: Sequence[RankReader | None] = (),
) -> list[Agreement]:
    """One `Agreement` for each draft, along `generated`.

    Args:
        target: the target.
        drafts: the drafts.
        prompt: the prompt.
        generated: tokens that the target wrote under this `sampling`.
        sampling: of p and q.
        rules: lossy rules to evaluate as well, by name.
        ahead: how many tokens of a proposal to score, for drafts whose acceptance falls with the position.
        readers: read the ranks of each draft's children; None for none.

    Raises:
        FloatingPointError: a distribution is not finite.
    """
    rules = rules or {}
    tokens = [*prompt.prefix, *generated]
    first = len(prompt.prefix)
    session = target.start(prompt)
    drafting = [draft.start_on(session, prompt, sampling) for draft in drafts]
    found = [replace(_empty(rules, sampling), stops_at_end=one.stops_at_end) for one in drafting]
    readers = readers or [None] * len(drafts)
    ranking = [  # at T = 0 the children's ranks come from q before argmax, which is read beside it
        None if reader is None or sampling.temperature > 0
        else draft.start_on(session, prompt, before_argmax(sampling))
        for draft, reader in zip(drafts, readers, strict=True)
    ]  # fmt: skip
    for start, logits_LV in logits_along(session, tokens, first):
        stop = start + len(logits_LV)
        p_LV = standardise(logits_LV, sampling, target.vocabulary_size)
        warm_LV = p_LV
        if rules and sampling.temperature == 0:
            warm_LV = standardise(logits_LV, before_argmax(sampling), target.vocabulary_size)
        written_L1 = torch.tensor(tokens[start:stop], device=p_LV.device).unsqueeze(-1)
        for draft_session, first_token, reader, warm in zip(drafting, found, readers, ranking, strict=True):
            rows = _scores(draft_session, tokens[:stop], start, ahead)
            warm_rows = repeat(None) if warm is None else _scores(warm, tokens[:stop], start, ahead)
            for level, (q_LV, warm_q_LV) in enumerate(zip(rows, warm_rows, strict=False)):
                if level > len(first_token.ahead):
                    first_token.ahead.append(_empty(rules, sampling))
                agreement = first_token.ahead[level - 1] if level else first_token
                betas = p_LV.minimum(q_LV).sum(-1).clamp(max=1.0).tolist()  # fp32 rows add up to 1 within 1e-6
                if not all(map(math.isfinite, betas)):  # nothing is drawn from q here, which would raise
                    raise FloatingPointError(NOT_FINITE)
                agreement.beta.extend(betas)
                agreement.silent.extend((q_LV.sum(-1) == 0).tolist())
                if not level:
                    add_signs(agreement.signs, p_LV, q_LV, sampling)
                agreement.ratio.extend(_ratio(p_LV.gather(-1, written_L1), q_LV.gather(-1, written_L1)))
                for name, chances in agreement.others.items():
                    row_LV = other_rules()[name].drafted_LV(q_LV)
                    chances.beta.extend((p_LV * row_LV).sum(-1).tolist())
                    chances.ratio.extend(row_LV.gather(-1, written_L1).squeeze(-1).tolist())
                for name, rule in rules.items():
                    agreement.under[name].extend(accepted(rule, warm_LV, q_LV).tolist())
                    agreement.total_variation[name].extend(total_variation(rule, warm_LV, q_LV).tolist())
                lost = None if level else mismatch(draft_session, logits_LV, p_LV, q_LV, sampling)
                if lost is not None:
                    agreement.shared.extend(lost[0])
                    agreement.matched.extend(lost[1])
                if reader is not None:
                    reader.read(p_LV, q_LV if warm_q_LV is None else warm_q_LV, written_L1, level)
    return [
        agreement if reader is None else replace(agreement, ranks=reader.found)
        for agreement, reader in zip(found, readers, strict=True)
    ]


def logits_along(session: Session, tokens: Sequence[int], first: int) -> Iterator[tuple[int, Tensor]]:
    """The index of a token and the logits [L, V] of it and the tokens after it, `CHUNK` at a time from `first` on.

    `session` has read nothing past `first`.
    """
    for start in range(first, len(tokens), CHUNK):
        stop = min(start + CHUNK, len(tokens))
        yield start, session.extend(list(tokens[session.length : stop - 1]))[-(stop - start) :]


@cache
def other_rules() -> dict[str, ChainRule]:
    """The lossless rules whose alpha is not Algorithm 1's, by the name of that alpha."""
    at_one = Sampling(temperature=1.0)
    found = (kind().verification(at_one) for kind in RULES.values() if not kind.lossy)
    return {one.own_alpha: one.rule for one in found if one.own_alpha is not None and isinstance(one.rule, ChainRule)}


def _empty(rules: Mapping[str, TokenRule], sampling: Sampling) -> Agreement:
    others = {name: Chances() for name in other_rules()} if sampling.temperature > 0 else {}
    return Agreement(under={name: [] for name in rules}, total_variation={name: [] for name in rules}, others=others)


def _scores(one: DraftSession, tokens: Sequence[int], first: int, ahead: int) -> Iterable[Tensor]:
    """q [L, V] of the first token of a proposal; and if the draft scores them, of those further ahead."""
    if ahead > 1 and isinstance(one, ScoresAhead):
        return one.score_ahead(tokens, first, ahead)
    return (one.score(tokens, first),)


def _ratio(p_L1: Tensor, q_L1: Tensor) -> list[float]:
    """q / p of the emitted tokens; where p is 0, two ways of computing it differ by rounding."""
    ratio_L1 = torch.where(p_L1 > 0, q_L1 / p_L1, (q_L1 > 0).to(q_L1.dtype))
    values: list[float] = ratio_L1.squeeze(-1).tolist()
    return values
