"""Measured speedups by the length of the context, at each gamma that was run: the schedule of gamma by context.

A pass belongs to the range in which it begins, a step of the target alone to the range of the token that it writes. The
speedup of a range is time per token over time per token, totals over prompts. In a batch a row has its share of the
time of a step or pass, and ranges of different batches are apart.
"""

from collections.abc import Sequence
from itertools import accumulate

from specbench.measure.ranges import RESAMPLES, bounds, range_of
from specbench.measure.throughput import rows_of
from specbench.records.profile import GammaRange, GammaSpeed
from specbench.records.schema import PromptRecord, RunRecord
from specbench.stats import bootstrap, ratio_of_ratios

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
