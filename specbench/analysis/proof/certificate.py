"""A certificate: from the tests of completions to a verdict, with its power."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from specbench.analysis.proof import SCORES, Proof, Score
from specbench.records.numbers import Proved

if TYPE_CHECKING:
    from specbench.analysis.proof.foreign import Foreign

Verdict = Literal["the target's", "not the target's", "not independent", "cannot tell"]


EXIT_CODES: dict[Verdict, int] = {"the target's": 0, "not the target's": 1, "not independent": 2, "cannot tell": 2}


MISSED = 0.05  # a share of differing tokens is bounded with 95%


NAMES: dict[Score, str] = {
    "likelihood": "the likelihood of tokens",
    "draft": "how many tokens the draft likes",
    "echo": "the second moment",
    "order": "the uniform numbers of the draws",
}


@dataclass(frozen=True)
class Certificate:
    """A verdict and its reason in words.

    Attributes:
        tokens: how many were read.
        power: what would have shown: at T > 0 the total variation a token, at T = 0 the share of tokens that differ.
        needed: about how many tokens give the requested `power`, if there are too few.
        tests: at T > 0, the tests as records name them.
        foreign: at T > 0, whether tokens are any tokens of the vocabulary, and how many of them would have shown.
        not_covered: what a positive verdict does not exclude; '' for the others.
    """

    verdict: Verdict
    reason: str
    tokens: int
    power: float | None
    needed: int | None = None
    tests: Proved | None = None
    not_covered: str = ""
    foreign: Foreign | None = None

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]


def with_copies(certificate: Certificate, copies: int, rows: int) -> Certificate:
    """The certificate of sampled completions of which `copies` repeat an earlier one with the same prompt.

    Each such copy has a probability below one in a million, so the draws are not independent, whatever the tests of the
    `rows` that remain say. Tokens that are not the target's weigh more.
    """
    if not copies:
        return certificate
    found = (
        f"{copies} of {copies + rows} completions are copies of an earlier one with the same prompt, each by chance "
        "less often than once in a million: requests share random numbers (one seed for all), or answers are cached"
    )
    if certificate.verdict == "not the target's":
        return replace(certificate, reason=f"{certificate.reason}; {found}")
    return replace(certificate, verdict="not independent", reason=f"{found}. The others: {certificate.reason}")


def with_fault(certificate: Certificate, fault: str) -> Certificate:
    """The certificate with a fault that its tests do not see."""
    found = certificate.verdict == "not the target's"
    reason = f"{certificate.reason}; {fault}" if found else fault
    return replace(certificate, verdict="not the target's", reason=reason, needed=None, not_covered="")


def greedy_certificate(tokens: int, departures: Sequence[bool], within: float) -> Certificate:
    """The certificate of greedy completions of `tokens` tokens in all.

    `departures`: for each token that differs from the argmax, whether rounding explains it.
    """
    power = greedy_power(tokens)
    faults = len(departures) - sum(departures)
    if faults:
        texts = "1 completion differs" if faults == 1 else f"{faults} completions differ"
        reason = f"{texts} from the target's own by more than rounding"
        return Certificate("not the target's", reason, tokens, power)
    rounding = f"; {len(departures)} near ties fell the other way, which rounding explains" if departures else ""
    if power is None or power > within:
        needed = math.ceil(math.log(MISSED) / math.log1p(-within))
        return Certificate("cannot tell", f"{tokens} tokens are too few{rounding}", tokens, power, needed)
    reason = f"every token is the target's own choice{rounding}"
    left = f"faults in fewer than {power:.2g} of the tokens, and completions at T > 0"
    return Certificate("the target's", reason, tokens, power, not_covered=left)


def greedy_power(tokens: int) -> float | None:
    """The share of differing tokens at which at least one difference would have been found with 95% probability."""
    return 1 - MISSED ** (1 / tokens) if tokens else None


def sampled_certificate(
    proof: Proof | None, within: float, retokenised: str = "", suspect: str = "", foreign: Foreign | None = None
) -> Certificate:
    """The certificate of sampled completions.

    Args:
        proof: the tests; None without tokens.
        within: the total variation a token that a positive verdict excludes.
        retokenised: how the tokenizer may explain a failing test, or ''.
        suspect: the draft that the tests were made with, or '' for the default, which suspects none.
        foreign: the test of foreign tokens.
    """
    return replace(_of_tests(proof, within, retokenised, suspect, foreign), foreign=foreign)


def _of_tests(
    proof: Proof | None, within: float, retokenised: str, suspect: str, foreign: Foreign | None
) -> Certificate:
    if proof is None or not proof.tokens:
        return Certificate("cannot tell", "there is no completion to test", 0, None)
    tests, power = proof.columns(), proof.power
    failed = [NAMES[name] for name, test in zip(SCORES, proof.tests, strict=True) if test is not None and test.failed]
    reasons = [f"{proof.outside} tokens have no probability under the target"] if proof.outside else []
    if failed:
        reasons.append(f"tokens do not follow the target's distribution: {', '.join(failed)}")
    if foreign is not None and foreign.failed:
        reasons.append(str(foreign))
    reason = "; ".join(reasons)
    if reason and retokenised:
        return Certificate("cannot tell", f"{reason}; but {retokenised}", proof.tokens, power, tests=tests)
    if reason:
        return Certificate("not the target's", reason, proof.tokens, power, tests=tests)
    if power is None:
        reason = (
            "nothing is left to chance with this sampling, and no token contradicts it; certify it at temperature 0"
        )
        return Certificate("cannot tell", reason, proof.tokens, None, tests=tests)
    if power > within:
        needed = math.ceil(proof.tokens * (power / within) ** 2)
        return Certificate("cannot tell", f"{proof.tokens} tokens are too few", proof.tokens, power, needed, tests)
    left = "another model, a lossy rule or rounded weights, under which tokens are as likely"
    left = f"{left} (but for {suspect})" if suspect else f"{left}: name the suspect with draft="
    return Certificate("the target's", "no test finds a difference", proof.tokens, power, tests=tests, not_covered=left)
