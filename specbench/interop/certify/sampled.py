"""T > 0: the completions must follow the target's distribution."""

from collections.abc import Callable, Sequence
from typing import cast

from torch import Tensor

from specbench.algorithm.decoding import autoregressive
from specbench.analysis.proof import Proof, prove
from specbench.analysis.proof.certificate import sampled_certificate, with_copies, with_fault
from specbench.analysis.proof.evidence import evidence
from specbench.analysis.proof.foreign import Foreign
from specbench.analysis.proof.kinds import CLOSE, FEW, Side
from specbench.config.verbs import CertifyConfig
from specbench.interop.certify.lagging import SAID, is_lagging, lagging_nats
from specbench.interop.certify.outputs import Output, Outputs
from specbench.interop.certify.setup import Setup, generator_of, spec_of
from specbench.interop.certify.tested_rows import COPIES, drop_copies, log_probability, with_ends
from specbench.records.run_record import PromptRecord
from specbench.sampling import standardise

OWN_TEXTS = 16  # of the target, to see how often it writes a text in other tokens than the tokenizer's
IMPLAUSIBLE = -14.0  # log probability below one in a million: two equal draws are copies
RARE_END = ("finish reason", "finish_reason is stop where the target ends less often than once in a million")
NOT_ROUND = (
    "encoding and decoding the text changes it (strings that do not round-trip); give the ids of the completion as "
    "'tokens', which a server returns if asked (docs/certify.md)"
)


def sampled(setup: Setup, found: Outputs) -> Side:
    """The certificate, and whether only tokens at the edge of top-k or top-p fail."""
    drop_copies(found, lambda row: log_probability(setup, row) < IMPLAUSIBLE)
    with_ends(setup, found)
    rows = []
    for row in found.rows:
        if row.text is not None and setup.vocabulary.text(row.tokens) != row.text:
            found.left_out[NOT_ROUND] += 1
        else:
            rows.append(row)
    found.rows[:] = rows
    for row in rows:
        if row.claimed and _last_log(setup, row) < IMPLAUSIBLE:
            found.contradictions[RARE_END].append(row.where)
    foreign = Foreign()
    proof = _proof(setup, rows, foreign=foreign)
    kind = setup.config.draft.kind
    suspect = "" if kind == CertifyConfig().draft.kind else kind  # a draft that the user named, whose faults show
    certificate = sampled_certificate(proof, setup.config.within, suspect=suspect, foreign=foreign)
    if lags := is_lagging(nats := lagging_nats(setup, rows)):
        certificate = with_fault(certificate, f"tokens are likelier by {nats:.0f} nats with lagging penalties, {SAID}")
    from_text = any(row.text is not None for row in rows)
    if certificate.verdict == "not the target's" and from_text and (retokenised := _retokenised(setup, rows)):
        certificate = sampled_certificate(proof, setup.config.within, retokenised, foreign=foreign)
    certificate = with_copies(certificate, found.left_out[COPIES], len(rows))
    is_close = not foreign.failed and _is_close(setup, rows, proof)
    return Side(certificate, within_close=is_close, lags=lags)


def _last_log(setup: Setup, row: Output) -> float:
    """The log-probability of a completion's last token under the target."""
    session = setup.target.start(row.prompt)
    logits_V = session.extend([*row.prompt.prefix, *row.tokens[:-1]][session.length :])[-1]
    p_V = standardise(logits_V[None], setup.sampling, setup.target.vocabulary_size)[0]
    return float(p_V[row.tokens[-1]].cpu().double().log())


def _proof(setup: Setup, rows: Sequence[Output], noise: float = 0.0, foreign: Foreign | None = None) -> Proof | None:
    """The tests of all rows, by the target whose logits may be off by `noise`; `foreign` also reads them."""
    sums = [
        evidence(
            setup.target, setup.draft, row.prompt, row.tokens, setup.sampling, noise=noise,
            seen=None if foreign is None else _written(row, foreign),
        )
        for row in rows
    ]  # fmt: skip
    return prove(cast(list[PromptRecord], [{"proof": one} for one in sums]))


def _written(row: Output, foreign: Foreign) -> Callable[[Tensor, Tensor], None]:
    """`foreign.add` of the tokens that the server wrote, without an end that only `finish_reason` reports.

    A stop string of the server's own may have ended the completion, where the target hardly ever ends.
    """
    left = len(row.tokens) - row.claimed

    def add(p_LV: Tensor, written_L: Tensor) -> None:
        nonlocal left
        foreign.add(p_LV[:left], written_L[:left])
        left = max(0, left - len(p_LV))

    return add


def _is_close(setup: Setup, rows: Sequence[Output], proof: Proof | None) -> bool:
    """Whether nothing fails but few tokens outside top-k or top-p, all of which rounding by `CLOSE` would let in."""
    if proof is None or not 0 < proof.outside <= max(1, FEW * proof.tokens):
        return False
    moved = _proof(setup, rows, CLOSE / 2)  # each of two logits by half of it
    return moved is not None and not moved.failed


def _retokenised(setup: Setup, rows: Sequence[Output]) -> str:
    """How many of the target's own completions the tokenizer would split differently, in words; '' if none."""
    other, asked = 0, min(OWN_TEXTS, len(rows))
    for number, row in enumerate(rows[:OWN_TEXTS]):
        spec = spec_of(setup.sampling, len(row.tokens))
        own = autoregressive(setup.target, row.prompt, spec, generator_of(setup, number)).tokens
        text = setup.vocabulary.text(own)
        written = [token for token in own if token not in setup.target.eos_ids]
        other += setup.vocabulary.continuation(text) != written
    if not other:
        return ""
    return (
        f"{other} of {asked} of the target's own completions are retokenised differently, which would also change "
        "these tests; give token ids"
    )
