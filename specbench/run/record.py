"""Raw prompts to a record: the summary that tables show, the frozen config, and where and how it was made."""

import traceback
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from specbench.config import RunConfig
from specbench.config.draft_kinds import DRAFT_KINDS
from specbench.config.model import name_of
from specbench.config.names import task_label
from specbench.environment import environment, hardware
from specbench.errors import error_line
from specbench.measure.summary import summarise
from specbench.quality import quality, quality_difference
from specbench.records import store
from specbench.run.accept import rule_label
from specbench.run.build import Parts

UNITS = {"*_s": "seconds", "alpha, beta": "probability", "speedup_*": "ratio of seconds per token"}

REMOVED = ("speedup_explained",)  # columns that summaries had once


def make_record(
    config: RunConfig, run_id: str, parts: Parts, prompts: list[dict[str, Any]], processes: list[dict[str, Any]]
) -> dict[str, Any]:
    """The record of a finished run. `processes` are those that worked on it: more than one after an interruption, and
    then the times are from all of them."""
    settled = processes[-1].get("gamma", {"requested": config.gamma, "gamma": config.gamma})
    measured = summarise(
        prompts,
        gamma=settled["gamma"],
        greedy=config.sampling.temperature == 0 and config.simulate.alpha is None,
        c_hat=_operations_per_drafted_token(parts, prompts) / parts.target.operations,
        max_new_tokens=config.max_new_tokens,
        falls=config.draft.falls and config.simulate.alpha is None,
        resamples=config.resamples,
        seed=config.seed,
    )
    surroundings = environment()
    summary = {
        **_names(config),
        "gamma": settled["gamma"],  # None: adaptive; each pass says what it drafted
        "gamma_requested": settled["requested"],
        "accept": rule_label(config.accept),
        "prompts_cut": sum(prompt.cut for prompt in parts.prompts),  # to task.max_source_tokens
        **measured,
        **_quality(config, prompts),
        "device": config.device,
        "dtype": config.dtype,
        "engine": parts.engine,
        "warmup_s": parts.warmup_s,
        "hardware": hardware(surroundings, config.device),
        "simulated": config.simulate.alpha is not None,
        "processes": len(processes),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return {
        "run_id": run_id,
        "summary": summary,
        "config": asdict(replace(config, force=False)),
        "gamma": settled,
        "environment": surroundings,
        "processes": processes,
        "units": UNITS,
        "pieces": parts.vocabulary.pieces(_tokens_of(prompts)),
        "prompts": prompts,
    }


def resummarised(record: dict[str, Any]) -> dict[str, Any]:
    """A record with the numbers of its summary made anew from its raw prompts, as this version makes them."""
    summary, config = record["summary"], record["config"]
    measured = summarise(
        record["prompts"],
        gamma=summary["gamma"],
        greedy=summary["temperature"] == 0 and not summary["simulated"],
        c_hat=summary["c_hat"],
        max_new_tokens=config["max_new_tokens"],
        falls=DRAFT_KINDS[config["draft"]["kind"]].falls and not summary["simulated"],
        resamples=config["resamples"],
        seed=config["seed"],
    )
    return record | {"summary": {key: value for key, value in summary.items() if key not in REMOVED} | measured}


def _operations_per_drafted_token(parts: Parts, prompts: list[dict[str, Any]]) -> float:
    """Arithmetic operations of the draft a token (Def 3.10): as the recorded passes counted them, so that a resumed run
    comes to the same; where they did not, the draft's own figure."""
    passes = [a_pass for prompt in prompts for a_pass in prompt["speculative"]["passes"]]
    counted = [one for one in passes if one["drafted"] and one.get("draft_operations") is not None]
    operations: float = sum(one["draft_operations"] for one in counted)
    drafted: int = sum(one["drafted"] for one in counted)
    return operations / drafted if counted else parts.draft.operations


def failed_record(config: RunConfig, run_id: str, error: Exception) -> dict[str, Any]:
    """What is left of a run that failed: its config, why, and where in the code. The same command runs it again."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "run_id": run_id,
        "summary": {**_names(config), store.FAILED: error_line(error), "created": created},
        "failure": {
            "type": type(error).__name__,
            "message": str(error),
            "traceback": "".join(traceback.format_exception(error)),
        },
        "config": asdict(replace(config, force=False)),
        "environment": environment(),
    }


def _names(config: RunConfig) -> dict[str, Any]:
    return {
        "target": name_of(config.target),
        "draft": config.draft.label(),
        "task": task_label(config.task.name, config.task.path),
        "temperature": config.sampling.temperature,
        "top_k": config.sampling.top_k,
        "top_p": config.sampling.top_p,
    }


QUALITY = (
    "quality_metric", "quality_baseline", "quality_speculative",
    "quality_difference", "quality_difference_low", "quality_difference_high",
)  # fmt: skip


def _quality(config: RunConfig, prompts: list[dict[str, Any]]) -> dict[str, Any]:
    """Scores of the texts, and that of speculative decoding less the target's own, row against row. Texts of a
    simulated run mean nothing."""
    metric = config.task.metric
    if metric is None or config.simulate.alpha is not None:
        return dict.fromkeys(QUALITY)
    references = [prompt["reference"] for prompt in prompts]
    alone, ours = ([prompt[way]["text"] for prompt in prompts] for way in ("baseline", "speculative"))
    less = quality_difference(metric, ours, alone, references)
    values = (metric, quality(metric, alone, references), quality(metric, ours, references))
    return dict(zip(QUALITY, (*values, less.value, less.low, less.high), strict=True))


def _tokens_of(prompts: list[dict[str, Any]]) -> set[int]:
    """Every token that was written or drafted."""
    written = {t for prompt in prompts for way in ("baseline", "speculative") for t in prompt[way]["tokens"]}
    return written | {t for p in prompts for a_pass in p["speculative"]["passes"] for t in a_pass["tokens"]}
