"""Whether a server's completions come from the target, and what kind of difference there is if they do not.

`certify` tests the rows of a file, `certify_servers` the completions of a server with a draft and of the same target
without one.
"""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.analysis.proof.certificate import Certificate
from specbench.analysis.proof.departures import Departure
from specbench.analysis.proof.kinds import DraftTokens, Side, Verdict, verdict
from specbench.config.model import name_of
from specbench.config.verbs import CertifyConfig, certify_run
from specbench.experiment.prompts import repeated_tokens
from specbench.experiment.run_parts import resolve
from specbench.experiment.runner import translated_errors
from specbench.interop.certify.completion_faults import findings_of, only_drafted
from specbench.interop.certify.greedy import greedy
from specbench.interop.certify.lagging import lagging_choices
from specbench.interop.certify.likelier import likelier
from specbench.interop.certify.logprobs import of_logprobs
from specbench.interop.certify.outputs import Outputs, read_outputs
from specbench.interop.certify.same_completions import agreement
from specbench.interop.certify.sampled import sampled
from specbench.interop.certify.setup import Setup, load
from specbench.loading.model_loader import Say, locked_device
from specbench.nouns import with_noun
from specbench.records.draft_signs import Finding
from specbench.sampling import Sampling


@dataclass(frozen=True)
class Certified:
    """A verdict; the rows that it rests on and those left out, by reason; departures by row at T = 0; findings."""

    verdict: Verdict
    target: str
    sampling: Sampling
    processing: str | None  # what else is done to logits, as keys; None: nothing
    dtype: str
    rows: int
    left_out: Counter[str]
    after_end: int
    from_text: int
    departures: list[tuple[str, Departure]]
    findings: list[Finding]

    @property
    def certificate(self) -> Certificate:
        """The certificate of the rows of the file."""
        return self.verdict.drafted


def certify(config: CertifyConfig, path: Path, say: Say) -> Certified:
    """Test the rows of a file, against those without a draft if the config names a file of these.

    Raises:
        UserError: they do not fit the target.
        MachineError: memory does not suffice, or the target's logits are not finite.
    """
    plain = None if config.plain is None else Path(config.plain)
    return _certified(config, path, plain, _counts(config), say)


def certify_servers(
    config: CertifyConfig, drafted: Path, plain: Path | None, counts: DraftTokens | None, say: Say
) -> Verdict:
    """The verdict on the completions of a server with a draft.

    Args:
        config: the target and the sampling that both servers claim.
        drafted: the rows of the server with a draft, as `specbench certify` reads them.
        plain: the rows of the same target without a draft.
        counts: the draft tokens of `drafted`, if the server counts them.
        say: prints a line.

    Raises:
        UserError: rows do not fit the target.
        MachineError: memory does not suffice, or the target's logits are not finite.
    """
    return _certified(config, drafted, plain, counts, say).verdict


def _counts(config: CertifyConfig) -> DraftTokens | None:
    if config.drafted is None or config.accepted is None:
        return None
    return DraftTokens(config.drafted, config.accepted)


def _explained(setup: Setup, found: Outputs) -> str:
    """Under which other settings completions that fail are likelier, in words; '' under none."""
    lagging = lagging_choices(setup, found.rows) if setup.sampling.temperature == 0 else ""
    return lagging or likelier(setup, found.rows)


@dataclass(frozen=True)
class _Read:
    """The rows of a file, and how they do."""

    found: Outputs
    side: Side
    where: list[tuple[str, Departure]]
    findings: list[Finding]


def _certified(
    config: CertifyConfig, path: Path, plain: Path | None, counts: DraftTokens | None, say: Say
) -> Certified:
    run = resolve(certify_run(config), say)
    config = replace(config, sampling=run.sampling)
    with locked_device(run.device, say) as device, translated_errors(run):
        run = replace(run, device=str(device))
        setup = load(config, run, say)
        drafted = _tested(setup, path, say)
        alone = None if plain is None else _tested(setup, plain, say)
        is_greedy = setup.sampling.temperature == 0
        both = None if alone is None or not is_greedy else agreement(setup, drafted.found, alone.found)
        fails = drafted.side.fails and not drafted.side.is_rounding
        explained = _explained(setup, drafted.found) if fails else ""
        ends = "" if alone is None else only_drafted(drafted.findings, alone.findings)
        plain_side = None if alone is None else alone.side
        found = verdict(drafted.side, plain_side, config.within, both, counts, explained, ends)
    return Certified(
        found,
        name_of(config.target),
        setup.sampling,
        config.sampling.processing(),
        run.dtype,
        len(drafted.found.rows),
        drafted.found.left_out,
        drafted.found.after_end,
        sum(row.text is not None for row in drafted.found.rows),
        drafted.where,
        drafted.findings,
    )


def _tested(setup: Setup, path: Path, say: Say) -> _Read:
    name, target = name_of(setup.config.target), setup.target
    found = read_outputs(path, setup.vocabulary, target.eos_ids, target.longest, setup.config.limit, name)
    for line in repeated_tokens(setup.vocabulary, name, found.begun_twice, len(found.rows)):
        say(line)
    left = sum(found.left_out.values())  # so far: rows may also fail to be tested
    say(f"{with_noun(len(found.rows), 'row')} to test" + (f", {left} left out" if left else ""))
    if setup.sampling.temperature:
        side, where = sampled(setup, found), list[tuple[str, Departure]]()
    else:
        certificate, where = greedy(setup, found)
        side = Side(certificate, [one for _, one in where])
    findings = findings_of(found, setup.sampling.temperature)
    told = of_logprobs(setup, found.rows)
    return _Read(found, side, where, findings if told is None else [told, *findings])
