"""Whether the log-probabilities that a server gives of its tokens are the target's.

They do not depend on how tokens are chosen, so that other weights, another prompt than is claimed (a chat template, a
second BOS) or a draft's logits in place of the target's show in a few tokens, whatever the sampling.

Servers give them before or after temperature, top-k, top-p and penalties: those that lie nearer are compared.
"""

from collections.abc import Sequence
from statistics import median

import torch

from specbench.analysis.acceptance.agreement import logits_along
from specbench.analysis.findings.finding import FEWEST
from specbench.analysis.proof.kinds import CLOSE
from specbench.engine.session import Model
from specbench.interop.certify.outputs import Output
from specbench.interop.certify.setup import Setup
from specbench.records.draft_signs import Finding
from specbench.sampling import Sampling, before_argmax, standardise

MOST = 2000  # tokens that are compared
LEAST = 2 * CLOSE  # nats between the two at the median token: less is rounding


def of_logprobs(setup: Setup, rows: Sequence[Output]) -> Finding | None:
    """The finding, if the server's log-probabilities are others than the target's."""
    raw, drawn = list[float](), list[float]()
    for row in rows:
        if row.logprobs and len(raw) < MOST:
            raw += _apart(setup.loaded, row, Sampling(1.0))
            drawn += _apart(setup.target, row, before_argmax(setup.sampling))
    if len(raw) < FEWEST:
        return None
    apart = min(median(raw), median(drawn))
    if apart <= LEAST:
        return None
    return Finding(
        "logprobs",
        f"the server's log-probabilities are {apart:.2g} nats from the target's at half of {len(raw):,} tokens: it "
        "runs other weights, or reads another prompt",
        "the revision and the quantisation of its weights, its chat template, and a second BOS",
        {"apart": apart, "tokens": len(raw)},
    )


def _apart(target: Model, row: Output, sampling: Sampling) -> list[float]:
    """How far the two lie from each other at each token that has one, in nats."""
    tokens, first = [*row.prompt.prefix, *row.tokens[: len(row.logprobs)]], len(row.prompt.prefix)
    found = list[float]()
    for start, logits_LV in logits_along(target.start(row.prompt), tokens, first):
        p_LV = standardise(logits_LV, sampling, target.vocabulary_size)
        chosen = torch.tensor(tokens[start : start + len(p_LV)], device=p_LV.device)
        found += p_LV.gather(1, chosen[:, None])[:, 0].cpu().double().clamp(min=1e-30).log().tolist()
    return [abs(ours - theirs) for ours, theirs in zip(found, row.logprobs, strict=True)]
