"""Raw prompts to a record: the summary that tables show, the frozen config, and where and how it was made."""

import traceback
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from specbench.config import RunConfig
from specbench.environment import environment, hardware
from specbench.errors import error_line
from specbench.measure.summary import summarise
from specbench.models.load import name_of
from specbench.quality import quality
from specbench.records import store
from specbench.run.accept import rule_label
from specbench.run.build import Parts
from specbench.run.identity import draft_name

UNITS = {"*_s": "seconds", "alpha, beta": "probability", "speedup_*": "ratio of seconds per token"}


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
        c_hat=parts.draft.operations / parts.target.operations,
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
        **(_quality(config, prompts) if config.simulate.alpha is None else NO_QUALITY),
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
        "draft": draft_name(config),
        "task": config.task.name,
        "temperature": config.sampling.temperature,
        "top_k": config.sampling.top_k,
        "top_p": config.sampling.top_p,
    }


# Texts of a simulated run mean nothing.
NO_QUALITY = {"quality_metric": None, "quality_baseline": None, "quality_speculative": None}


def _quality(config: RunConfig, prompts: list[dict[str, Any]]) -> dict[str, Any]:
    references = [prompt["reference"] for prompt in prompts]
    scores = {
        f"quality_{way}": quality(config.task.metric, [prompt[way]["text"] for prompt in prompts], references)
        for way in ("baseline", "speculative")
    }
    return {"quality_metric": config.task.metric, **scores}


def _tokens_of(prompts: list[dict[str, Any]]) -> set[int]:
    """Every token that was written or drafted."""
    written = {t for prompt in prompts for way in ("baseline", "speculative") for t in prompt[way]["tokens"]}
    return written | {t for p in prompts for a_pass in p["speculative"]["passes"] for t in a_pass["tokens"]}
