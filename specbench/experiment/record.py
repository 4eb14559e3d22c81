"""Build a record from raw prompts: the summary, the frozen config, the environment and the processes."""

import traceback
import warnings
from dataclasses import asdict, replace

import torch

from specbench.analysis.costs.roofline import roofline
from specbench.analysis.looks import Looks
from specbench.analysis.summary import explained, summarise
from specbench.config.model import name_of
from specbench.config.rules import rule_of
from specbench.config.schema import RunConfig, task_label
from specbench.environment import commit_of, environment, hardware, time_stamp
from specbench.errors import error_line, first_line
from specbench.experiment.dtype import DtypeProbe
from specbench.experiment.machine import machine_of
from specbench.experiment.memory import memory_columns
from specbench.experiment.meter import meter_of
from specbench.experiment.run_parts import Parts
from specbench.loading import draft_name, vocabulary_facts
from specbench.methods.model.config import ModelDraftConfig
from specbench.quality import quality, quality_difference
from specbench.records.journal import codes_of
from specbench.records.numbers import Learnt, Limits, Names, Quality, Stopped, Summary
from specbench.records.run_record import DECODING_MODES, SCHEMA_VERSION, FailedRecord, Process, PromptRecord, RunRecord


def make_record(
    config: RunConfig,
    run_id: str,
    parts: Parts,
    prompts: list[PromptRecord],
    processes: list[Process],
    probed: DtypeProbe | None = None,
    looks: Looks | None = None,
) -> RunRecord:
    """The record of a finished run.

    `processes` are the processes that decoded its prompts: more than one after an interruption, and then the times come
    from all of them. `probed` is the probe by which dtype=auto chose the dtype. `looks` are the looks of a run with
    `until`.
    """
    plan = processes[-1]["gamma"]
    measured = summarise(
        prompts,
        gamma=plan.gamma,
        greedy=config.sampling.temperature == 0 and config.simulate.alpha is None,
        c_hat=_operations_per_drafted_token(parts, prompts) / parts.target.operations,
        max_new_tokens=config.max_new_tokens,
        falls_with_position=config.draft.falls_with_position and config.simulate.alpha is None,
        at_once=config.draft.at_once,
        batch=config.batch,
        level=None if looks is None else looks.level,
    )
    stopped: Stopped = {} if looks is None else looks.columns()
    surroundings = environment()
    surroundings["commit"] = commit_of(codes_of(processes))
    summary: Summary = {
        **_names(config),
        "draft": draft_name(config.draft, parts.draft_vocabulary, parts.engine),
        **vocabulary_facts(parts.draft_vocabulary),
        **_learning(config),
        "gamma": plan.gamma,  # None: adaptive; each pass says what it drafted
        "gamma_requested": plan.requested,
        "accept": rule_of(config.accept).label(),
        "tree": None if config.tree.shape == "none" else config.tree.label(),
        "prompts_cut": sum(prompt.truncated for prompt in parts.prompts),  # to task.max_source_tokens
        **measured,
        **_quality(config, prompts),
        "device": config.device,
        "dtype": config.dtype,
        "dtype_bfloat16_ms": None if probed is None else probed.bfloat16_ms,
        "dtype_float32_ms": None if probed is None else probed.float32_ms,
        **_roofline(parts),
        **stopped,
        **memory_columns(parts, prompts),
        "joules_missing": meter_of(parts.device).no_energy,
        "engine": parts.engine,
        "fell_back": parts.fell_back,
        "rollout_fell_back": parts.rollout_fell_back,
        "gpu_kernels": parts.gpu_kernels,
        "numerics": "invariant" if parts.invariant else "fast",
        "numerics_reason": parts.not_invariant,
        "warmup_s": parts.warmup_s,
        "hardware": hardware(surroundings, config.device),
        "simulated": config.simulate.alpha is not None,
        "processes": len(processes),
        "created": time_stamp(),
    }
    record: RunRecord = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "summary": summary,
        "config": asdict(replace(config, force=False)),
        "gamma": plan,
        "environment": surroundings,
        "machine": machine_of(parts.device).record(),
        "processes": processes,
        "pieces": {str(token): text for token, text in parts.vocabulary.pieces(_tokens_of(prompts)).items()},
        "prompts": prompts,
    }
    if (tags := parts.vocabulary.thinking_tags) is not None:
        record["thinking"] = list(tags)
    return explained(record)


def _operations_per_drafted_token(parts: Parts, prompts: list[PromptRecord]) -> float:
    """Arithmetic operations of the draft a token (Definition 3.10).

    As the recorded passes counted them, so that a resumed run has the same number; otherwise the draft's own figure.
    """
    passes = [a_pass for prompt in prompts for a_pass in prompt["speculative"].passes]
    counted = [
        (operations, one.drafted) for one in passes if one.drafted and (operations := one.draft_operations) is not None
    ]
    if not counted:
        return parts.draft.operations
    return sum(operations for operations, _ in counted) / sum(drafted for _, drafted in counted)


def failed_record(config: RunConfig, run_id: str, error: Exception) -> FailedRecord:
    """The record of a failed run: its config, the reason, and where in the code. The same command runs it again."""
    created = time_stamp()
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "summary": {**_names(config), "error": error_line(error), "created": created},
        "failure": {
            "type": type(error).__name__,
            "message": str(error),
            "traceback": "".join(traceback.format_exception(error)),
        },
        "config": asdict(replace(config, force=False)),
        "environment": environment(),
    }


def _names(config: RunConfig) -> Names:
    names: Names = {
        "target": name_of(config.target),
        "draft": config.draft.label(),
        "task": task_label(config.task.name, config.task.path),
        "temperature": config.sampling.temperature,
        "top_k": config.sampling.top_k,
        "top_p": config.sampling.top_p,
    }
    if (processing := config.sampling.processing()) is not None:
        names["processing"] = processing
    if (context := config.context_tokens) is not None:
        names["context"] = context
    return names


def _roofline(parts: Parts) -> Limits:
    """The roofline of the target's steps on this device; unknown for a model that several devices share."""
    if parts.config.target.device_map or parts.config.target.tp_plan:
        return {}
    least = roofline(parts.target, getattr(torch, parts.config.dtype))
    limits: Limits = {"reading_ms": 1000 * least.reading, "multiplying_ms": 1000 * least.multiplying}
    if least.expert_share:
        limits["expert_share"] = least.expert_share
    if layers := parts.target.recurrent_layers:
        limits["recurrent_layers"] = layers
    return limits


def _learning(config: RunConfig) -> Learnt:
    """The learning rate of a draft that learns."""
    draft = config.draft
    return {"learning_rate": draft.online_lr} if isinstance(draft, ModelDraftConfig) and draft.online else {}


UNSCORED: Quality = {
    "quality_metric": None, "quality_baseline": None, "quality_speculative": None,
    "quality_difference": None, "quality_difference_low": None, "quality_difference_high": None,
}  # fmt: skip


def _quality(config: RunConfig, prompts: list[PromptRecord]) -> Quality:
    """Scores of both sets of completions, and their difference, row against row; none for a simulated run."""
    metric = config.task.metric
    if metric is None or config.simulate.alpha is not None:
        return UNSCORED
    references = [prompt["reference"] or "" for prompt in prompts]
    alone, ours = ([prompt[way].text for prompt in prompts] for way in DECODING_MODES)
    try:
        less = quality_difference(metric, ours, alone, references)
        return {
            "quality_metric": metric,
            "quality_baseline": quality(metric, alone, references),
            "quality_speculative": quality(metric, ours, references),
            "quality_difference": less.value,
            "quality_difference_low": less.low,
            "quality_difference_high": less.high,
        }
    except Exception as error:  # all prompts are decoded: whatever a metric's library does, their times are kept
        warnings.warn(f"task.metric={metric}: the completions are not scored: {first_line(error)}", stacklevel=2)
        return UNSCORED


def _tokens_of(prompts: list[PromptRecord]) -> set[int]:
    """Every token that was emitted or drafted."""
    written = {t for prompt in prompts for way in DECODING_MODES for t in prompt[way].tokens}
    return written | {t for p in prompts for a_pass in p["speculative"].passes for t in a_pass.tokens}
