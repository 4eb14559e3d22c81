"""Are texts drawn from this distribution? A chi-square test on whole texts, with a fixed seed."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from scipy.stats import chisquare

from specbench.algorithm.acceptance.base import AcceptanceRule
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.draft import Draft
from specbench.algorithm.gamma import Gamma
from specbench.engine.session import Model, Prompt
from specbench.sampling import Sampling
from tests.support.decode import speculative
from tests.support.toy import exact

ALARM = 1e-4  # below this a test fails: a false alarm for one seed in 10,000


def p_value(
    decode: Callable[[torch.Generator], list[int]], expected: dict[tuple[int, ...], float], samples: int
) -> float:
    """The chance that the distribution `expected` itself gives texts at least this far from it."""
    generator = torch.Generator().manual_seed(12345)
    seen = Counter(tuple(decode(generator)) for _ in range(samples))
    assert sum(expected.values()) == pytest.approx(1, abs=1e-5)
    if any(expected[text] == 0 for text in seen):
        return 0.0  # a text that the target never writes
    common = [text for text, probability in expected.items() if probability * samples >= 5]
    rare = 1 - sum(expected[text] for text in common)
    observed = [seen[text] for text in common] + [samples - sum(seen[text] for text in common)]
    model = [expected[text] * samples for text in common] + [rare * samples]
    if model[-1] < 1e-6:
        observed, model = observed[:-1], model[:-1]
    assert len(model) > 1, "one text has all of the mass: there is nothing to test"
    total = sum(observed) / sum(model)
    return float(chisquare(observed, [count * total for count in model]).pvalue)


def speculative_p_value(
    target: Model,
    draft: Draft,
    prompt: Prompt,
    gamma: int | Gamma,
    sampling: Sampling,
    length: int,
    samples: int,
    accept: AcceptanceRule = accept_exact,
) -> tuple[float, int]:
    """`p_value` of texts of up to `length` tokens that Algorithm 1 writes with the rule `accept`, against the target's
    own distribution; and in how many of them a drafted token was rejected."""
    rejected = []

    def decode(generator: torch.Generator) -> list[int]:
        trace = speculative(
            target, draft, prompt, gamma=gamma, sampling=sampling, max_new_tokens=length, generator=generator,
            accept=accept,
        )  # fmt: skip
        rejected.append(any(a_pass.accepted < a_pass.drafted for a_pass in trace.passes))
        return trace.tokens

    return p_value(decode, exact(target, sampling, length, prompt), samples), sum(rejected)
