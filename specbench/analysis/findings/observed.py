"""Observations of a draft, from the record of a run or a document of `specbench alpha`."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.analysis.distinct import groups_of
from specbench.analysis.findings.finding import Observed, Text
from specbench.config.draft import DraftConfig, TextDraftConfig
from specbench.config.drafts import DRAFT_KINDS
from specbench.records.decoded import Pass
from specbench.records.run_record import PromptRecord, RunRecord
from specbench.theory.trees import ROOT


def of_run(record: RunRecord) -> Observed | None:
    """Observations of a run's draft; None for a draft without a network, and for a simulated run."""
    summary, config = record["summary"], record["config"]
    draft = config.get("draft") or {}
    if summary.get("simulated") or not has_network(draft):
        return None
    prompts = record["prompts"]
    passes = [one for prompt in prompts for one in prompt["speculative"].passes]
    exact = summary.get("accept", "exact") == "exact" and not summary.get("tree")
    return Observed(
        texts=[_text(prompt) for prompt in prompts],
        groups=groups_of(prompts),
        temperature=summary["temperature"],
        pieces=record["pieces"],
        positions=[(one["reached"], one["accepted"]) for one in summary["acceptance_by_position"]],
        falls=any(kind.falls_with_position for kind in kinds_of(draft)),
        inside=reads_states(draft),
        reads_last=reads_last(draft),
        starts=[_starts(prompt, summary["temperature"] == 0) for prompt in prompts] if exact else [],
        accepted=sum(one.accepted for one in passes),
        drafted=sum(one.drafted for one in passes),
    )


def kinds_of(draft: Mapping[str, Any]) -> Sequence[type[DraftConfig]]:
    """The kinds of a frozen draft and of the drafts that it is made of."""
    own = DRAFT_KINDS.get(str(draft.get("kind")))
    parts = [part for part in draft.values() if isinstance(part, Mapping) and "kind" in part]
    return [*([] if own is None else [own]), *(kind for part in parts for kind in kinds_of(part))]


def has_network(draft: Mapping[str, Any]) -> bool:
    """Whether a frozen draft, or a part of it, computes with weights: counts and copies have nothing to be loaded."""
    counted = (TextDraftConfig,)
    return any(
        not kind.found_in_text and not issubclass(kind, counted) and kind.kind not in ("random", "lookahead")
        for kind in kinds_of(draft)
        if kind().parts() == {}
    )


def reads_states(draft: Mapping[str, Any]) -> bool:
    """Whether a frozen draft reads the target's layers or states."""
    return any(kind.inside_target is True for kind in kinds_of(draft))


def reads_last(draft: Mapping[str, Any]) -> bool:
    """Whether a frozen draft reads the last token before it drafts."""
    return all(kind.reads_last_token for kind in kinds_of(draft))


def _text(prompt: PromptRecord) -> Text:
    alone, start = prompt["baseline"].tokens, prompt["prompt_tokens"]
    turn = prompt.get("turn", 1)
    if (signs := prompt.get("signs")) is not None:
        return Text(alone, signs.named, prompt["beta"], alone, start, turn, signs.sums)
    tokens = prompt["speculative"].tokens
    return Text(tokens, named_in_passes(prompt["speculative"].passes, len(tokens)), prompt["beta"], alone, start, turn)


def named_in_passes(passes: Sequence[Pass], length: int) -> list[int | None]:
    """The draft token at each place of a completion that passes wrote; None if none stood there.

    Up to the first that is rejected draft tokens stand after the completion's own. In a tree a node's first child
    counts.
    """
    named: list[int | None] = []
    for one in passes:
        own = _along(one)[: one.emitted]
        named += [*own, *[None] * (one.emitted - len(own))]
    return (named + [None] * length)[:length]


def _along(one: Pass) -> list[int]:
    """The draft tokens of a pass that stand after only accepted tokens."""
    parents, path = one.parents, one.path
    if parents is None or path is None:
        return one.tokens[: one.accepted + 1]
    nodes = [ROOT, *path]
    return [one.tokens[parents.index(node)] for node in nodes if node in parents]


def _starts(prompt: PromptRecord, greedy: bool) -> tuple[int, float, int]:
    """How many passes of a prompt drafted, the summed beta of their first tokens, and how many accepted these.

    Greedy completions are the target's own up to where rounding decides; beta is known there. Sampled completions are
    others, and each place has the mean beta.
    """
    alone, ours, beta = prompt["baseline"].tokens, prompt["speculative"].tokens, prompt["beta"]
    known = list(beta)
    if greedy:
        same = (at for at, (a, b) in enumerate(zip(alone, ours, strict=False)) if a != b)
        known = known[: next(same, len(ours))]
    elif beta:
        known = [sum(beta) / len(beta)] * len(ours)
    count, expected, accepted, place = 0, 0.0, 0, 0
    for one in prompt["speculative"].passes:
        if place >= len(known):
            break
        if one.drafted:
            count, expected, accepted = count + 1, expected + known[place], accepted + (one.accepted > 0)
        place += one.emitted
    return count, expected, accepted
