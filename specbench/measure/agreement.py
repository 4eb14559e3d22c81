"""How well draft and target agree: beta at each position, whose mean is alpha (Theorem 3.5, Corollary 3.6)."""

from collections.abc import Sequence

from specbench.drafts import Draft
from specbench.models import Model, Prompt
from specbench.sampling import Sampling, standardise


def beta(target: Model, draft: Draft, prompt: Prompt, generated: Sequence[int], sampling: Sampling) -> list[float]:
    """beta = sum_x min(p(x), q(x)) at each of the tokens that the target generated, by teacher forcing.

    At T = 0 both are one-hot, and beta is 1 where the argmaxes agree and 0 elsewhere.
    """
    tokens = [*prompt.prefix, *generated]
    session = target.start(prompt)
    logits_LV = session.extend(tokens[session.length : -1])
    p_LV = standardise(logits_LV[-len(generated) :], sampling, target.vocabulary_size)
    q_LV = draft.start(prompt, sampling).score(tokens, len(prompt.prefix))
    values: list[float] = p_LV.minimum(q_LV).sum(-1).tolist()
    return values
