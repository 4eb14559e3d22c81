"""Faults of a draft: findings from the record of a run, or from a document of `specbench alpha`.

Each finding is a function of what was observed (`finding.Observed`) to a line, or None. `FINDINGS` has them in the
order in which they are shown: first the ones that name a cause, last the ones that any cause shows.
"""

from collections.abc import Callable, Sequence

from specbench.analysis.findings.against_cheap import copies, weights
from specbench.analysis.findings.finding import Observed
from specbench.analysis.findings.names import constant, relabelled, repeats, shifted
from specbench.analysis.findings.observed import of_run
from specbench.analysis.findings.sharpness import temperature
from specbench.analysis.findings.where_accepted import cache, cliff, context, turns
from specbench.records.draft_signs import Finding
from specbench.records.run_record import RunRecord

FINDINGS: Sequence[Callable[[Observed], Finding | None]] = (
    constant, repeats, shifted, relabelled, cache, temperature, context, turns, copies, cliff, weights,
)  # fmt: skip


def findings(seen: Observed) -> list[Finding]:
    """The faults of a draft, the likeliest cause first; empty if it has none."""
    return [found for one in FINDINGS if (found := one(seen)) is not None]


def findings_of(record: RunRecord) -> list[Finding]:
    """The findings of a run; none for a draft without weights."""
    seen = of_run(record)
    return [] if seen is None else findings(seen)
