"""From records of one draft and target to a profile (`records.profile`)."""

from collections.abc import Sequence
from itertools import accumulate, count, zip_longest

import numpy as np

from specbench.analysis.acceptance.by_position import levels, rank_counts, reached_and_accepted
from specbench.analysis.acceptance.strata import RESAMPLES, bounds, by_range, range_of, share, summed
from specbench.analysis.costs import rows_of
from specbench.errors import UserError
from specbench.records.documents import (
    FORMAT,
    PROFILE_VERSION,
    GammaRange,
    GammaSpeed,
    PositionShare,
    Profile,
    RankShare,
    TaskProfile,
)
from specbench.records.schema import PromptRecord, Row, RunRecord
from specbench.stats import bootstrap, ratio_of_ratios

# Measured speedups by the length of the context, at each gamma that was run: the schedule of gamma by context.
#
# A pass belongs to the range in which it begins, a step of the target alone to the range of the token that it writes.
# The speedup of a range is time per token over time per token, totals over prompts. In a batch a row has its share of
# the time of a step or pass, and ranges of different batches are apart.


Sums = dict[int, list[float]]  # by range: seconds and tokens of the baseline, then of speculative decoding


def gamma_by_context(records: Sequence[RunRecord]) -> tuple[list[GammaRange], list[str]]:
    """A range for each that occurs, with the speedup at each gamma; and what the records do not hold, in words."""
    speeds: dict[tuple[int, int], list[GammaSpeed]] = {}  # by batch and range
    missing = []
    for record in records:
        summary = record["summary"]
        if summary["gamma"] is None:
            missing.append(f"{record['run_id']}: γ changed from pass to pass, so it has no speedup at one γ")
        elif summary["speedup_measured"] is None:
            missing.append(f"{record['run_id']}: its completions are not the target's own, so it has no speedup")
        elif summary.get("disturbed"):
            missing.append(f"{record['run_id']}: another process used the machine, so its times are unreliable")
        else:
            for index, speed in _speeds(record, summary["gamma"]).items():
                speeds.setdefault((summary.get("batch") or 1, index), []).append(speed)
    found: list[GammaRange] = []
    for (batch, index), each in sorted(speeds.items()):
        first, last = bounds(index)
        best = max(each, key=lambda one: one["speedup"]["value"])["gamma"]
        ordered = sorted(each, key=lambda one: one["gamma"])
        found.append({"first": first, "last": last, "batch": batch, "best": best, "gammas": ordered})
    return found, missing


def _speeds(record: RunRecord, gamma: int) -> dict[int, GammaSpeed]:
    prompts = [_sums(prompt) for prompt in record["prompts"]]
    made: dict[int, GammaSpeed] = {}
    for index in {index for prompt in prompts for index in prompt}:
        rows = [prompt[index] for prompt in prompts if index in prompt]
        base, ours = sum(row[1] for row in rows), sum(row[3] for row in rows)
        if base and ours:
            speedup = bootstrap(rows, ratio_of_ratios, RESAMPLES, 0)
            made[index] = {
                "gamma": gamma, "speedup": speedup.to_json(), "tokens": int(ours), "run_id": record["run_id"],
            }  # fmt: skip
    return made


def _sums(prompt: PromptRecord) -> Sums:
    before, found = max(1, prompt["prompt_tokens"]), Sums()
    shares_s = [
        time / rows for time, rows in zip(prompt["baseline"]["steps_s"], rows_of(prompt["baseline"]), strict=True)
    ]
    for place, step_s in enumerate(shares_s):
        row = found.setdefault(range_of(before + place), [0.0] * 4)
        row[0] += step_s
        row[1] += 1
    passes = prompt["speculative"]["passes"]
    begun = accumulate((one["emitted"] for one in passes), initial=0)
    for place, one, rows in zip(begun, passes, rows_of(prompt["speculative"]), strict=False):
        row = found.setdefault(range_of(before + place), [0.0] * 4)
        row[2] += (one["draft_s"] + one["verify_s"] + one["accept_s"]) / rows
        row[3] += one["emitted"]
    return found


# What all records of a profile have in common.
SAME = ("target", "draft", "temperature", "top_k", "top_p", "accept", "dtype", "hardware")


def profile_of_runs(records: Sequence[RunRecord]) -> Profile:
    """The profile of runs that differ in task or gamma alone. Raises UserError for others."""
    first = records[0]["summary"]
    for record in records[1:]:
        for key in SAME:
            ours, theirs = first.get(key), record["summary"].get(key)
            if ours != theirs:
                both = f"{key} {theirs}, and {records[0]['run_id']} has {ours}"
                raise UserError(f"{record['run_id']}: has {both}; the runs of a profile differ in task or gamma alone")
    tasks = dict.fromkeys(record["summary"]["task"] for record in records)
    parts = [_task([record for record in records if record["summary"]["task"] == task]) for task in tasks]
    return _profile(dict(first), any(record["summary"].get("simulated") for record in records), parts)


def profile_of_scores(document: Row, found: Sequence[tuple[Row, Sequence[Row]]]) -> Profile:
    """The profile of one draft of a document of `specbench alpha`: its row and what it scored along each completion."""
    ((row, texts),) = found
    missing = ["a document of specbench alpha does not hold the prompts' lengths, nor any times"]
    further = zip_longest(*(text["ahead"] for text in texts))
    places = [[text["beta"] for text in texts], *([one["beta"] for one in place if one] for place in further)]
    part: TaskProfile = {
        "task": row["task"], "sources": [document["alpha_id"]], "accept": row["accept"], "lossy": row["lossy"],
        "dtype": row["dtype"], "hardware": row["hardware"], "created": row["created"],
        "alpha": share([(sum(text["beta"]), len(text["beta"])) for text in texts]),
        "by_position": [
            {"position": position, **share([(sum(beta), len(beta)) for beta in betas])}
            for position, betas in enumerate(places, 1)
        ],
        "by_rank": [
            {
                "rank": rank, "children": children, "value": one["value"], "low": one["low"], "high": one["high"],
                "prompts": row["prompts"], "tokens": row["tokens"],
            }
            for children, ranks in row.get("acceptance_by_rank", {}).items()
            for rank, one in enumerate(ranks, 1)
        ],
        "by_place": by_range([summed(count(1), text["beta"]) for text in texts]),
        "by_context": [], "gamma_by_context": [], "missing": missing,
    }  # fmt: skip
    return _profile(row, bool(row["simulated"]), [part])


def _profile(names: Row, simulated: bool, tasks: list[TaskProfile]) -> Profile:
    return {
        "format": FORMAT, "profile_version": PROFILE_VERSION, "target": names["target"], "draft": names["draft"],
        "temperature": names["temperature"], "top_k": names.get("top_k"), "top_p": names.get("top_p"),
        "simulated": simulated, "tasks": tasks,
    }  # fmt: skip


def _task(records: Sequence[RunRecord]) -> TaskProfile:
    """The part of a profile for one task.

    alpha does not depend on gamma, so that of the run over the most prompts is taken, and of equal runs that of the
    furthest proposals, which has the most positions.
    """
    best = max(records, key=lambda one: (len(one["prompts"]), one["summary"]["drafted_per_pass"]))
    prompts, summary = best["prompts"], best["summary"]
    speeds, missing = gamma_by_context(records)
    return {
        "task": summary["task"],
        "sources": [record["run_id"] for record in records],
        "accept": summary.get("accept", "exact"),
        "lossy": bool(summary.get("lossy")),
        "dtype": summary["dtype"],
        "hardware": summary["hardware"],
        "created": summary["created"],
        "alpha": share([(sum(prompt["beta"]), len(prompt["beta"])) for prompt in prompts]),
        "by_position": _by_position(prompts),
        "by_rank": _by_rank(prompts),
        "by_place": by_range([summed(count(1), prompt["beta"]) for prompt in prompts]),
        "by_context": by_range([summed(count(max(1, prompt["prompt_tokens"])), prompt["beta"]) for prompt in prompts]),
        "gamma_by_context": speeds,
        "missing": missing,
    }


def _by_position(prompts: Sequence[PromptRecord]) -> list[PositionShare]:
    longest = max(levels(one) for prompt in prompts for one in prompt["speculative"]["passes"])
    counts = np.array([
        sum((reached_and_accepted(one, longest) for one in prompt["speculative"]["passes"]), np.zeros((longest, 2)))
        for prompt in prompts
    ])  # fmt: skip
    found: list[PositionShare] = []
    for place in range(longest):
        reached = [(float(hit), float(seen)) for seen, hit in counts[:, place] if seen]
        if reached:
            found.append({"position": place + 1, **share(reached)})
    return found


def _by_rank(prompts: Sequence[PromptRecord]) -> list[RankShare]:
    """Of runs whose proposals are trees."""
    each = [list(zip(*rank_counts(prompt["speculative"]["passes"]), strict=True)) for prompt in prompts]
    ranks = zip_longest(*each)
    return [
        {"rank": rank, "children": None, **share([one for one in sums if one is not None])}
        for rank, sums in enumerate(ranks, 1)
    ]
