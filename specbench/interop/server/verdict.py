"""Whether the completions of a server with a draft are the target's, and how many draft tokens that rests on.

With the target's weights `interop.certify` reads the completions of both servers and names the kind of a difference.
Without the weights, completions at T = 0 are compared with the other server's, which has no draft; at T > 0 nothing is
known.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.analysis.proof.certificate import Certificate
from specbench.analysis.proof.kinds import DraftTokens, enough
from specbench.config.server import WITHOUT, ServerConfig
from specbench.config.verbs import CertifyConfig
from specbench.files import write_atomically
from specbench.interop.certify import certify_servers
from specbench.interop.server.client import Asked
from specbench.loading.model_loader import Say
from specbench.records.served import Answer

NOT_VERIFIED, IDENTICAL, DIFFERENT = "not verified", "identical", "different"
PLAIN_ONLY, UNCOUNTED = "plain passes only", "draft tokens not counted"


@dataclass(frozen=True)
class Verdict:
    """A verdict on the completions with a draft.

    Attributes:
        name: in a few words.
        reason: the evidence.
        verified: whether a test shows that they are the target's, and that draft tokens were behind it.
        faulty: whether one shows that they are not.
        identical: share of completions that equal those without a draft, at T = 0.
        certificate: of the completions with a draft, if the target's weights are at hand.
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

    `counts`: drafted and accepted tokens, if the server counts them. Raises UserError if the target does not fit.
    """
    greedy = config.sampling.temperature == 0
    pairs = [(one.drafted, one.plain) for one in done if one.plain is not None]
    equal = [_same(drafted, plain) for drafted, plain in pairs]
    identical = sum(equal) / len(equal) if equal and greedy else None
    tokens = None if counts is None else DraftTokens(*counts)
    if config.names_target:
        return _certified(config, done, bool(pairs), tokens, identical, folder / run_id, say)
    if identical is None:
        why = "without plain= there is nothing to compare with" if greedy else "T>0"
        return Verdict(NOT_VERIFIED, f"{why}: name the weights that the server runs, target=NAME")
    if identical < 1:
        reason = (
            f"{len(equal) - sum(equal)} of {len(equal)} completions differ from those without a draft; target=NAME "
            "tells rounding from a fault"
        )
        return Verdict(DIFFERENT, reason, identical=identical)
    return _identical(f"all {len(equal)} completions equal those without a draft", tokens, config.within)


def _identical(reason: str, tokens: DraftTokens | None, within: float) -> Verdict:
    """The verdict if both servers write the same; with too few draft tokens it covers plain passes only."""
    if tokens is None:
        reason += "; draft tokens are not counted: it may have drafted none"
        return Verdict(f"{IDENTICAL}, {UNCOUNTED}", reason, False, False, 1.0)
    few = tokens.too_few(within)
    reason = f"{reason}; {tokens}"
    if not few:
        return Verdict(IDENTICAL, reason, True, False, 1.0)
    reason += f": fewer than {enough(within)} {' and '.join(few)}"
    return Verdict(f"{IDENTICAL}, {PLAIN_ONLY}", reason, False, False, 1.0)


def _certified(
    config: ServerConfig, done: Sequence[Completed], paired: bool, tokens: DraftTokens | None, identical: float | None,
    file: Path, say: Say,
) -> Verdict:  # fmt: skip
    """The verdict of `specbench certify` on both servers' completions."""
    drafted, plain = (file.with_name(f"{file.name}.{which}.jsonl") for which in ("drafted", "plain"))
    for which, one in (("drafted", drafted), *([("plain", plain)] if paired else [])):
        write_atomically(one, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(done, which)))
    asked = CertifyConfig(
        target=config.target, draft=config.draft, task=config.task, sampling=config.sampling, within=config.within,
        dtype=config.dtype, device=config.device, threads=config.threads, seed=config.seed,
    )  # fmt: skip
    found = certify_servers(asked, drafted, plain if paired else None, tokens, say)
    name, verified = found.name, found.is_verified
    if found.covers_drafts is False and not found.is_faulty:
        name = f"{name}, {PLAIN_ONLY}"
    elif verified and tokens is None and config.label != WITHOUT:
        name, verified = f"{name}, {UNCOUNTED}", False
    power, tests = found.drafted.power, found.drafted.tests
    what = "differing tokens" if tests is None else "total variation a token"
    shown = [] if power is None or found.is_faulty else [f"a fault of {power:.2g} {what} would have shown"]
    foreign = found.drafted.foreign
    if shown and foreign is not None and foreign.one_in is not None:
        shown.append(f"any other token in the place of one in {foreign.one_in} would have shown 9 times in 10")
    reason = "; ".join([*found.evidence, *shown])
    return Verdict(name, reason, verified, found.is_faulty, identical, found.drafted)


def _same(one: Answer, other: Answer) -> bool:
    if one.ids is not None and other.ids is not None:
        return one.ids == other.ids
    return one.text == other.text


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
        stopped = {} if answer.stop is None else {"stop_reason": answer.stop}
        rows.append(row | {"finish_reason": answer.finish} | stopped)
    return rows
