"""Whether the completions of a server with a draft are the target's, and how many draft tokens that rests on.

With the target's weights `interop.certify` reads the completions of both servers; a fault that the server without a
draft has, too, is none of speculation. Without the weights completions at T = 0 are compared with those of the server
without a draft; at T > 0 nothing is known.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.analysis.proof.certificate import MISSED, Certificate
from specbench.config.server import ServerConfig
from specbench.config.verbs import CertifyConfig
from specbench.files import write_atomically
from specbench.interop.certify import certify
from specbench.interop.server.client import Asked
from specbench.loading.model_loader import Say
from specbench.records.served import Answer

NOT_VERIFIED = "not verified"
IDENTICAL = "identical"
DIFFERENT = "different"
FAULT = "a fault of speculation"
OTHER = "another distribution"
PLAIN_ONLY = "covers plain passes only"
TARGETS = "the target's"


@dataclass(frozen=True)
class Verdict:
    """A verdict on the completions with a draft.

    Attributes:
        name: in a few words.
        reason: the evidence.
        verified: whether a test shows that they are the target's.
        faulty: whether one shows that they are not.
        identical: share of completions that equal those without a draft, at T = 0.
        certificate: of the completions with a draft, where the target's weights are at hand.
    """

    name: str
    reason: str
    verified: bool = False
    faulty: bool = False
    identical: float | None = None
    certificate: Certificate | None = None


@dataclass(frozen=True)
class Completed:
    """A prompt as it was asked, and its answers."""

    asked: Asked
    seed: int
    drafted: Answer
    plain: Answer | None


def verdict_of(
    config: ServerConfig, done: Sequence[Completed], counts: tuple[int, int] | None, folder: Path, run_id: str, say: Say
) -> Verdict:
    """The verdict on completions, which are written to `folder` as `specbench certify` reads them.

    `counts`: drafted and accepted tokens, where the server counts them. Raises UserError where the target does not fit.
    """
    greedy = config.sampling.temperature == 0
    pairs = [(one.drafted, one.plain) for one in done if one.plain is not None]
    equal = [_same(drafted, plain) for drafted, plain in pairs]
    identical = sum(equal) / len(equal) if equal and greedy else None
    if config.names_target:
        drafted = _certified(config, _rows(done, "drafted"), folder / f"{run_id}.drafted.jsonl", say)
        plain = _certified(config, _rows(done, "plain"), folder / f"{run_id}.plain.jsonl", say) if pairs else None
        found = _of_certificates(drafted, plain, identical)
    elif identical is None:
        why = "T>0" if not greedy else "without plain= there is nothing to compare with"
        found = Verdict(NOT_VERIFIED, f"{why}: name the weights that the server runs, target=NAME")
    elif identical == 1:
        found = Verdict(IDENTICAL, f"all {len(equal)} completions equal those without a draft", True, identical=1.0)
    else:
        reason = (
            f"{len(equal) - sum(equal)} of {len(equal)} completions differ from those without a draft; target=NAME "
            "tells rounding from a fault"
        )
        found = Verdict(DIFFERENT, reason, identical=identical)
    return _with_counts(found, counts, config.within)


def enough(within: float) -> int:
    """Tokens of a kind among which a fault in a share `within` of them would have shown with 95%."""
    return math.ceil(math.log(MISSED) / math.log1p(-within))


def _with_counts(found: Verdict, counts: tuple[int, int] | None, within: float) -> Verdict:
    """A verdict with the draft tokens that it rests on; too few of a kind and it covers plain passes only."""
    if counts is None:
        rests = "; the server does not count draft tokens, so that it may have drafted none"
        return replace(found, reason=found.reason + rests)
    drafted, accepted = counts
    reason = f"{found.reason}; {drafted} tokens drafted, {accepted} accepted, {drafted - accepted} rejected"
    few = [
        name for name, number in (("accepted", accepted), ("rejected", drafted - accepted)) if number < enough(within)
    ]
    if not few or not found.verified:
        return replace(found, reason=reason)
    reason += f": fewer than {enough(within)} {' and '.join(few)} say nothing of these"
    if "accepted" in few:
        return replace(found, name=f"{found.name}, but {PLAIN_ONLY}", reason=reason, verified=False)
    return replace(found, reason=reason)


def _of_certificates(drafted: Certificate, plain: Certificate | None, identical: float | None) -> Verdict:
    """The verdict of certificates with and without a draft."""
    if drafted.verdict == TARGETS:
        what = "differing tokens" if drafted.tests is None else "total variation a token"
        shown = "" if drafted.power is None else f" (a fault of {drafted.power:.2g} {what} would have shown)"
        return Verdict(TARGETS, drafted.reason + shown, True, False, identical, drafted)
    if drafted.verdict != "not the target's":
        return Verdict(NOT_VERIFIED, f"{drafted.verdict}: {drafted.reason}", False, False, identical, drafted)
    if plain is None:
        return Verdict("not the target's", drafted.reason, False, True, identical, drafted)
    if plain.verdict == "not the target's":
        reason = f"{drafted.reason}; the server without a draft differs, too: {plain.reason}"
        # The draft changed nothing where both servers write the same.
        return Verdict(OTHER, reason, False, identical != 1, identical, drafted)
    reason = f"{drafted.reason}; of the server without a draft: {plain.reason}"
    return Verdict(FAULT, reason, False, True, identical, drafted)


def _same(one: Answer, other: Answer) -> bool:
    if one.ids is not None and other.ids is not None:
        return one.ids == other.ids
    return one.text == other.text


def _certified(config: ServerConfig, rows: Sequence[Mapping[str, object]], file: Path, say: Say) -> Certificate:
    write_atomically(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    asked = CertifyConfig(
        target=config.target, draft=config.draft, task=config.task, sampling=config.sampling, within=config.within,
        dtype=config.dtype, device=config.device, threads=config.threads, seed=config.seed,
    )  # fmt: skip
    return certify(asked, file, say).certificate


def _rows(done: Sequence[Completed], which: str) -> list[dict[str, object]]:
    """Completions as `specbench certify` reads them."""
    rows = []
    for one in done:
        answer: Answer | None = getattr(one, which)
        if answer is None:
            continue
        asked = one.asked
        row: dict[str, object] = {"messages": list(asked.messages)} if asked.messages else {}
        if not row:
            row = {"prompt_token_ids": list(asked.ids)} if asked.ids is not None else {"prompt": asked.text}
        row |= {"token_ids": answer.ids} if answer.ids is not None else {"text": answer.text}
        rows.append(row | {"finish_reason": answer.finish})
    return rows
