"""Whether a server's completions come from the target."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from specbench.analysis.proof.certificate import Certificate
from specbench.analysis.proof.departures import Departure
from specbench.config.model import name_of
from specbench.config.verbs import CertifyConfig, certify_run
from specbench.experiment.build import resolve
from specbench.experiment.prompts import repeated_tokens
from specbench.experiment.runner import translated_errors
from specbench.interop.certify.greedy import greedy
from specbench.interop.certify.outputs import read_outputs
from specbench.interop.certify.sampled import sampled
from specbench.interop.certify.setup import load
from specbench.loading.model_loader import Say
from specbench.sampling import Sampling


@dataclass(frozen=True)
class Certified:
    """A certificate; the rows that it rests on and those left out, by reason; the departures by row at T = 0."""

    certificate: Certificate
    target: str
    sampling: Sampling
    processing: str | None  # what else is done to logits, as keys; None: nothing
    dtype: str
    rows: int
    left_out: Counter[str]
    after_end: int
    from_text: int
    departures: list[tuple[str, Departure]]


def certify(config: CertifyConfig, path: Path, say: Say) -> Certified:
    """Test the rows of a file.

    Raises:
        UserError: they do not fit the target.
        MachineError: memory does not suffice, or the target's logits are not finite.
    """
    run = resolve(certify_run(config))
    with translated_errors(run):
        setup = load(config, run, say)
        name, target = name_of(config.target), setup.target
        found = read_outputs(path, setup.vocabulary, target.eos_ids, target.longest, config.limit, name)
        for line in repeated_tokens(setup.vocabulary, name, found.begun_twice, len(found.rows)):
            say(line)
        say(f"{len(found.rows)} rows to test, {sum(found.left_out.values())} left out")
        is_greedy = setup.sampling.temperature == 0
        certificate, where = (greedy if is_greedy else sampled)(setup, found)
    return Certified(
        certificate,
        name,
        setup.sampling,
        config.sampling.processing(),
        run.dtype,
        len(found.rows),
        found.left_out,
        found.after_end,
        sum(row.text is not None for row in found.rows),
        where,
    )
