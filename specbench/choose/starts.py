"""The cost of a task's prompts for each candidate before its first pass, and its speedup end to end."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from specbench.analysis.first_token import Starts
from specbench.analysis.forecast.predict import Prediction
from specbench.choose.candidates import LoadedCandidate, Scored
from specbench.choose.reasons import label
from specbench.engine.session import Prompt

TIMED = 4  # prompts, spread over the lengths of the sample's
TINY = 0.005  # of a speedup: less is not said


def time_starts(scored: Scored, step_s: float) -> dict[str, Starts]:
    """How long the target and each candidate's draft take to read a prompt, by the candidate's name.

    Every prompt is read as a whole. `step_s` is a step of the target alone.
    """
    by_length = sorted((prompt for prompt, _ in scored.texts), key=lambda one: len(one.source) + len(one.prefix))
    prompts = [by_length[place * (len(by_length) - 1) // max(1, TIMED - 1)] for place in range(TIMED)]
    tokens = fmean(_tokens(prompt) for prompt in by_length)
    decode_s = step_s * fmean(len(written) for _, written in scored.texts)
    longer = tokens / max(1.0, fmean(map(_tokens, prompts)))
    found = {}
    for one in scored.candidates:
        of_target, of_draft = _seconds(one, prompts)
        found[one.name] = Starts(longer * of_target, longer * of_draft, decode_s, tokens)
    return found


def _tokens(prompt: Prompt) -> int:
    """Tokens of a prompt that are read before the first step."""
    return len(prompt.source) + len(prompt.prefix) - 1


def _seconds(candidate: LoadedCandidate, prompts: Sequence[Prompt]) -> tuple[float, float]:
    """Mean seconds of the target and of a candidate's draft, after an untimed prompt."""
    target, timed = candidate.parts.target, candidate.timed
    of_target, of_draft = list[float](), list[float]()
    for prompt in (prompts[-1], *prompts):
        for model in (target, *timed.draft.models):
            model.get_ready(prompt, candidate.config.max_new_tokens)
        began = target.now()
        session = target.start(prompt)
        read = target.now()
        timed.draft.start_on(session, prompt, timed.spec.drafting)
        of_target.append(read - began)
        of_draft.append(target.now() - read)
    return fmean(of_target[1:]), fmean(of_draft[1:])


def of_starts(ranked: Sequence[Prediction], starts: Mapping[str, Starts]) -> list[str]:
    """A sentence on what the task's prompts leave of the best speedup, and the best end to end if that is another."""
    best, ends = ranked[0], {id(one): starts[one.draft].end_to_end(one.estimated.value) or 0.0 for one in ranked}
    whole, of_best = max(ranked, key=lambda one: ends[id(one)]), starts[best.draft]
    if of_best.tokens < 1 or abs(ends[id(best)] / best.estimated.value - 1) < TINY:
        return []
    longer = of_best.end_to_end(best.estimated.value, 4.0) or 0.0
    said = (
        f"prompts of {of_best.tokens:.0f} tokens: the target reads one in {1000 * of_best.target_s:.3g} ms and the "
        f"draft in {1000 * (of_best.draft_s or 0):.3g} ms, which leaves {label(best)} {ends[id(best)]:.2f}× end to end "
        f"({longer:.2f}× with prompts four times as long)"
    )
    if whole is not best and ends[id(whole)] > ends[id(best)] * (1 + TINY):
        said += f"; the fastest end to end is {label(whole)}, {ends[id(whole)]:.2f}×"
    return [said]
