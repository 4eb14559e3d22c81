"""Recompute the numbers of a record from its raw prompts: its summary and the explanation of its speedup."""

from specbench.analysis.explain.steps import waterfall
from specbench.analysis.summary import summarise
from specbench.config.drafts import DRAFT_KINDS
from specbench.records.schema import RunRecord


def explained(record: RunRecord) -> RunRecord:
    """A record with the explanation of its speedup."""
    config = record["config"]  # of a batch, whose passes have several rows, nothing is explained
    has_speed = record["summary"]["speedup_measured"] is not None and config.get("batch", 1) == 1
    found = waterfall(record, config["resamples"], config["seed"]).to_json() if has_speed else None
    return {**record, "explanation": found}


def resummarised(record: RunRecord) -> RunRecord:
    """A record whose summary is recomputed from its raw prompts by this version.

    Left as it is where its kind of draft is of a package that is not installed.
    """
    summary, config = record["summary"], record["config"]
    kind = DRAFT_KINDS.get(config["draft"]["kind"])
    if kind is None:
        return record
    measured = summarise(
        record["prompts"],
        gamma=summary["gamma"],
        greedy=summary["temperature"] == 0 and not summary["simulated"],
        c_hat=summary["c_hat"],
        max_new_tokens=config["max_new_tokens"],
        falls_with_position=kind.falls_with_position and not summary["simulated"],
        at_once=kind.at_once,
        resamples=config["resamples"],
        seed=config["seed"],
        batch=config.get("batch", 1),
    )
    return explained({**record, "summary": {**summary, **measured}})
