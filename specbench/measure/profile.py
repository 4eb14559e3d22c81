"""From records of one draft and target to a profile (`records.profile`)."""

from collections.abc import Sequence
from itertools import count, zip_longest

import numpy as np

from specbench.errors import UserError
from specbench.measure.by_position import reached_and_accepted
from specbench.measure.ranges import by_range, share, summed
from specbench.measure.speed_by_context import gamma_by_context
from specbench.measure.tree_passes import levels, rank_counts
from specbench.records.profile import FORMAT, PROFILE_VERSION, PositionShare, Profile, RankShare, TaskProfile
from specbench.records.schema import PromptRecord, Row, RunRecord

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
