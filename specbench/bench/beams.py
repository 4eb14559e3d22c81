"""Speculative beam search against the target's own, over u and gamma, and both against `transformers`'.

The main result is the number of target runs: a plain search needs one per step. Times are given beside it, for one
prompt at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from specbench.algorithm.beam import BeamSettings, Hypothesis
from specbench.algorithm.speculative_beam import BeamDraft, BeamTrace, beam_search
from specbench.bench.baselines import beam_search as theirs
from specbench.engine.eager.model import EagerModel, PrefixBatch
from specbench.engine.session import Prompt
from specbench.formatting import markdown_table
from specbench.records.timed_documents import BeamRow


@dataclass(frozen=True)
class BeamBench:
    """The setup: each of `us` with each of `gammas`, on every prompt."""

    target: EagerModel
    draft: EagerModel
    prompts: list[Prompt]
    settings: BeamSettings
    us: list[int]
    gammas: list[int]


@dataclass(frozen=True)
class _Searched:
    """One search of ours for one prompt, beside the reference, which is transformers' search for the same prompt."""

    trace: BeamTrace
    seconds: float
    identical: bool  # whether its hypotheses are the reference's, in order
    gap: float  # the largest difference of a score from the reference's, of hypotheses that both have


def compare_beams(setup: BeamBench, say: Callable[[str], None]) -> tuple[list[BeamRow], float]:
    """A row without a draft, then one for each u and gamma; and transformers' seconds per completion."""
    model = setup.target
    settings = [(setup.settings.width, 0), *product(setup.us, setup.gammas)]  # u, gamma
    found: dict[tuple[int, int], list[_Searched]] = {setting: [] for setting in settings}
    seconds = 0.0
    reference = theirs(model.network, setup.prompts[0], setup.settings, model.vocabulary_size)
    for u, gamma in found:  # first calls are slow, also theirs
        _search(setup, setup.prompts[0], u, gamma, reference)
    for number, prompt in enumerate(setup.prompts, 1):
        say(f"prompt {number} of {len(setup.prompts)}")
        began = model.now()
        reference = theirs(model.network, prompt, setup.settings, model.vocabulary_size)
        seconds += model.now() - began
        for u, gamma in found:
            found[u, gamma].append(_search(setup, prompt, u, gamma, reference))
    plain = sum(len(one.trace.passes) for one in found[setup.settings.width, 0])
    return [_row(u, gamma, each, plain) for (u, gamma), each in found.items()], seconds / len(setup.prompts)


def _search(setup: BeamBench, prompt: Prompt, u: int, gamma: int, reference: list[Hypothesis]) -> _Searched:
    """Our search for `prompt` (gamma 0: without a draft), timed, and compared with transformers' hypotheses."""
    began = setup.target.now()
    beam_draft = BeamDraft(PrefixBatch(setup.draft, prompt), u, gamma) if gamma else None
    trace = beam_search(PrefixBatch(setup.target, prompt), prompt.prefix, setup.settings, beam_draft)
    seconds = setup.target.now() - began
    scores = {one.tokens: one.score for one in reference}
    gap = max((abs(one.score - scores[one.tokens]) for one in trace.hypotheses if one.tokens in scores), default=0.0)
    identical = [one.tokens for one in trace.hypotheses] == [one.tokens for one in reference]
    return _Searched(trace, seconds, identical, gap)


def _row(u: int, gamma: int, searched: Sequence[_Searched], plain: int) -> BeamRow:
    texts, passes = len(searched), [one for each in searched for one in each.trace.passes]
    return BeamRow(
        u=u,
        gamma=gamma,
        passes_per_text=len(passes) / texts,
        steps_per_pass=sum(one.steps for one in passes) / len(passes),
        scored_per_pass=sum(one.scored for one in passes) / len(passes),
        passes_saved=1 - len(passes) / plain,
        identical=sum(each.identical for each in searched),
        texts=texts,
        score_gap=max(each.gap for each in searched),
        s_per_text=sum(each.seconds for each in searched) / texts,
    )


def beam_table(rows: Sequence[BeamRow]) -> str:
    """The rows as a Markdown table."""
    header = (
        "u", "γ", "target passes per prompt", "beam steps per pass", "scored per pass", "passes saved", "identical",
        "s a prompt",
    )  # fmt: skip
    cells = [
        (
            str(row.u) if row.gamma else "–",
            str(row.gamma) if row.gamma else "no draft",
            f"{row.passes_per_text:.1f}",
            f"{row.steps_per_pass:.2f}",
            f"{row.scored_per_pass:.1f}",
            f"{100 * row.passes_saved:.0f}%" if row.gamma else "–",
            f"{row.identical} of {row.texts}",
            f"{row.s_per_text:.2f}",
        )
        for row in rows
    ]
    return markdown_table(header, cells)
