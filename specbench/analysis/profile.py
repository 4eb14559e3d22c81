"""A profile (`records.profile_document.Profile`) from the records of one draft and target."""

from collections.abc import Sequence
from functools import reduce
from itertools import groupby, zip_longest
from operator import add

import numpy as np

from specbench.analysis.acceptance.by_position import levels, rank_counts, reached_and_accepted
from specbench.analysis.acceptance.strata import Range, added_by_range, range_of
from specbench.analysis.distinct import groups_of, numbers_of, said
from specbench.errors import UserError
from specbench.records.alpha_document import AlphaRow, ScoredText
from specbench.records.numbers import Summary
from specbench.records.profile_document import (
    FORMAT,
    PROFILE_VERSION,
    GammaRange,
    GammaSpeed,
    PositionShare,
    Profile,
    RangeShare,
    RankShare,
    Share,
    TaskProfile,
)
from specbench.records.run_record import PromptRecord, RunRecord
from specbench.stats import over_rows, ratio, ratio_of_ratios

SHORTEST = 4  # tokens of the first range of positions and of context lengths
# What all records of a profile have in common.
SAME = ("target", "draft", "temperature", "top_k", "top_p", "processing", "accept", "dtype", "hardware")


def gamma_by_context(records: Sequence[RunRecord]) -> tuple[list[GammaRange], list[str]]:
    """A range for each that occurs, with the speedup at each gamma; and what the records do not hold, in words.

    A pass belongs to the range in which it begins, a step of the target alone to the range of the token that it writes.
    Ranges of different batches are apart.
    """
    speeds: dict[tuple[int, Range], list[GammaSpeed]] = {}  # by batch and range
    missing = []
    for record in records:
        summary = record["summary"]
        if summary["gamma"] is None:
            missing.append(f"{record['run_id']}: γ changed from pass to pass, so it has no speedup at one γ")
        elif summary["speedup_measured"] is None:
            missing.append(f"{record['run_id']}: its completions are not the target's own, so it has no speedup")
        elif summary.get("disturbed"):
            missing.append(f"{record['run_id']}: the machine was shared or held back, so its times are unreliable")
        else:
            for lengths, speed in _speeds(record, summary["gamma"]).items():
                speeds.setdefault((summary.get("batch") or 1, lengths), []).append(speed)
    found: list[GammaRange] = []
    for (batch, (first, last)), each in sorted(speeds.items()):
        best = max(each, key=lambda one: one["speedup"].value)["gamma"]
        ordered = sorted(each, key=lambda one: one["gamma"])
        found.append({"first": first, "last": last, "batch": batch, "best": best, "gammas": ordered})
    return found, missing


def _speeds(record: RunRecord, gamma: int) -> dict[Range, GammaSpeed]:
    """Time per token over time per token, totals over prompts, in each range of context lengths."""
    prompts = [added_by_range(prompt, _first_context(prompt), SHORTEST) for prompt in record["prompts"]]
    groups, made = groups_of(record["prompts"]), dict[Range, GammaSpeed]()
    for lengths in {lengths for prompt in prompts for lengths in prompt}:
        there = [place for place, one in enumerate(prompts) if lengths in one and any(one[lengths][4:])]
        rows = [prompts[place][lengths][4:] for place in there]
        base, ours = sum(row[1] for row in rows), sum(row[3] for row in rows)
        if base and ours:
            speedup = over_rows(rows, ratio_of_ratios, groups=numbers_of(groups[place] for place in there))
            made[lengths] = {
                "gamma": gamma, "speedup": speedup, "tokens": int(ours), "run_id": record["run_id"],
            }  # fmt: skip
    return made


def _first_context(prompt: PromptRecord) -> int:
    """The length of the context of a completion's first token."""
    return max(1, prompt["prompt_tokens"])


def profile_of_runs(records: Sequence[RunRecord]) -> Profile:
    """The profile of runs that differ only in task or gamma. Raises UserError for others."""
    first = records[0]["summary"]
    for record in records[1:]:
        for key in SAME:
            ours, theirs = first.get(key), record["summary"].get(key)
            if ours != theirs:
                both = f"{key} {theirs}, and {records[0]['run_id']} has {ours}"
                raise UserError(f"{record['run_id']}: has {both}; the runs of a profile differ only in task or gamma")
    tasks = dict.fromkeys(record["summary"]["task"] for record in records)
    parts = [_task([record for record in records if record["summary"]["task"] == task]) for task in tasks]
    return _profile(first, any(record["summary"].get("simulated") for record in records), parts)


def profile_of_scores(alpha_id: str, row: AlphaRow, texts: Sequence[ScoredText]) -> Profile:
    """The profile of one draft in a document of `specbench alpha`: its row and its scores along each completion."""
    missing = ["a document of specbench alpha does not hold the prompts' lengths, nor any times"]
    groups = row.get("prompt_groups", [*range(len(texts))])
    if (different := row.get("distinct_prompts")) is not None:
        missing.append(said(row["prompts"], different))
    further = zip_longest(*(text.get("ahead", []) for text in texts))
    places = [
        [(group, one["beta"]) for group, one in zip(groups, place, strict=True) if one] for place in (texts, *further)
    ]
    part: TaskProfile = {
        "task": row["task"], "sources": [alpha_id], "accept": row["accept"], "lossy": row["lossy"],
        "dtype": row["dtype"], "hardware": row["hardware"], "created": row["created"],
        "alpha": _share([(sum(text["beta"]), len(text["beta"])) for text in texts], groups),
        "by_position": [
            {
                "position": position,
                **_share([(sum(beta), len(beta)) for _, beta in found], [group for group, _ in found]),
            }
            for position, found in enumerate(places, 1)
        ],
        "by_rank": [
            {
                "rank": rank, "children": children, "value": one.value, "low": one.low, "high": one.high,
                "prompts": row["prompts"], "tokens": row["tokens"],
            }
            for children, ranks in row.get("acceptance_by_rank", {}).items()
            for rank, one in enumerate(ranks, 1)
        ],
        "by_place": _by_range([(1, text["beta"]) for text in texts], groups),
        "by_context": [], "gamma_by_context": [], "missing": missing,
    }  # fmt: skip
    return _profile(row, bool(row["simulated"]), [part])


def _profile(names: AlphaRow | Summary, simulated: bool, tasks: list[TaskProfile]) -> Profile:
    made: Profile = {
        "format": FORMAT, "profile_version": PROFILE_VERSION, "target": names["target"], "draft": names["draft"],
        "temperature": names["temperature"], "top_k": names.get("top_k"), "top_p": names.get("top_p"),
        "simulated": simulated, "tasks": tasks,
    }  # fmt: skip
    if "processing" in names:
        made["processing"] = names["processing"]
    return made


def _task(records: Sequence[RunRecord]) -> TaskProfile:
    """The part of a profile for one task.

    alpha does not depend on gamma, so it is taken from the run over most prompts, and among equal runs from the one
    with the longest proposals, which has most positions.
    """
    best = max(records, key=lambda one: (len(one["prompts"]), one["summary"]["drafted_per_pass"]))
    prompts, summary = best["prompts"], best["summary"]
    speeds, missing = gamma_by_context(records)
    groups = groups_of(prompts)
    if (different := len(set(groups))) < len(groups):
        missing.append(said(len(groups), different))
    return {
        "task": summary["task"],
        "sources": [record["run_id"] for record in records],
        "accept": summary.get("accept", "exact"),
        "lossy": bool(summary.get("lossy")),
        "dtype": summary["dtype"],
        "hardware": summary["hardware"],
        "created": summary["created"],
        "alpha": _share([(sum(prompt["beta"]), len(prompt["beta"])) for prompt in prompts], groups),
        "by_position": _by_position(prompts, groups),
        "by_rank": _by_rank(prompts, groups),
        "by_place": _by_range([(1, prompt["beta"]) for prompt in prompts], groups),
        "by_context": _by_range([(_first_context(prompt), prompt["beta"]) for prompt in prompts], groups),
        "gamma_by_context": speeds,
        "missing": missing,
    }


def _by_position(prompts: Sequence[PromptRecord], groups: Sequence[int]) -> list[PositionShare]:
    longest = max(levels(one) for prompt in prompts for one in prompt["speculative"].passes)
    counts = np.array([
        sum((reached_and_accepted(one, longest) for one in prompt["speculative"].passes), np.zeros((longest, 2)))
        for prompt in prompts
    ])  # fmt: skip
    found: list[PositionShare] = []
    for place in range(longest):
        reached = [at for at, (seen, _) in enumerate(counts[:, place]) if seen]
        if reached:
            sums = [(float(hit), float(seen)) for seen, hit in counts[reached, place]]
            found.append({"position": place + 1, **_share(sums, [groups[at] for at in reached])})
    return found


def _by_rank(prompts: Sequence[PromptRecord], groups: Sequence[int]) -> list[RankShare]:
    """Acceptance by rank in runs whose proposals are trees."""
    ranks = zip_longest(*(rank_counts(prompt["speculative"].passes) for prompt in prompts))
    return [
        {
            "rank": rank,
            "children": None,
            **_share(
                [one for one in sums if one is not None],
                [group for group, one in zip(groups, sums, strict=True) if one is not None],
            ),
        }
        for rank, sums in enumerate(ranks, 1)
    ]


def _by_range(prompts: Sequence[tuple[int, Sequence[float]]], groups: Sequence[int]) -> list[RangeShare]:
    """A share for each range that occurs, from the number of each prompt's first token and the beta of its tokens."""
    sums: dict[Range, list[tuple[float, int]]] = {}
    occurs: dict[Range, list[int]] = {}
    for group, (first, betas) in zip(groups, prompts, strict=True):
        for place, pairs in groupby(enumerate(betas, first), lambda pair: range_of(pair[0], SHORTEST)):
            values = [beta for _, beta in pairs]
            sums.setdefault(place, []).append((reduce(add, values), len(values)))
            occurs.setdefault(place, []).append(group)
    return [
        {"first": first, "last": last, **_share(sums[first, last], occurs[first, last])} for first, last in sorted(sums)
    ]


def _share(sums: Sequence[tuple[float, float]], groups: Sequence[int]) -> Share:
    """A ratio of totals over prompts, with its interval; prompts of one of the `groups` are equal."""
    found = over_rows(sums, ratio, scale="probability", groups=numbers_of(groups))
    return {
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "prompts": len(sums),
        "tokens": int(sum(count for _, count in sums)),
    }
