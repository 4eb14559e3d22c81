"""Decode every prompt both ways, side by side, and write the record."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from specbench import store
from specbench.config import RunConfig
from specbench.decoding import Trace, autoregressive, speculative
from specbench.environment import environment, hardware
from specbench.errors import MachineError
from specbench.measure.agreement import beta
from specbench.measure.lossless import first_difference
from specbench.measure.summary import summarise
from specbench.models.load import name_of
from specbench.quality import quality
from specbench.run.build import Parts, build, resolve
from specbench.sampling import Sampling

CHECKED_PROMPTS = 2  # prompts on which a sampled run first proves greedy identity
GREEDY = Sampling(temperature=0.0)


class Progress(Protocol):
    """Who is told how a run goes."""

    def say(self, text: str) -> None: ...

    def advance(self, done: int, total: int) -> None: ...


@dataclass(frozen=True)
class Result:
    """Where the record is, what it says, and whether it was there already."""

    file: Path
    record: dict[str, Any]
    reused: bool


def execute(config: RunConfig, progress: Progress) -> Result:
    """Run `config`, which was checked, and write its record; or hand back the record of the very same config."""
    config = resolve(config)
    run_id = identify(config)
    file = store.record_file(config.results, run_id)
    if file.exists() and not config.force:
        try:
            return Result(file, store.read(file), reused=True)
        except ValueError:
            progress.say(f"{file} is damaged; running again")
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    parts = build(config, progress.say)
    try:
        prompts = _decode_all(config, parts, progress)
    except FloatingPointError as error:
        raise MachineError(
            f"dtype={config.dtype}: {error}; use dtype=float32, and check that the weights are not damaged"
        ) from error
    record = _record(config, run_id, parts, prompts)
    return Result(store.write(config.results, record), record, reused=False)


def identify(config: RunConfig) -> str:
    """A readable id that is the same for the same resolved config, wherever its record is kept."""
    frozen = {key: value for key, value in asdict(config).items() if key not in ("results", "force")}
    digest = hashlib.sha256(json.dumps(frozen, sort_keys=True).encode()).hexdigest()[:8]
    target, draft = name_of(config.target), draft_name(config)
    return f"{target}-{draft}-{config.task.name}-T{config.sampling.temperature:g}-g{config.gamma}-{digest}"


def draft_name(config: RunConfig) -> str:
    return name_of(config.draft) if config.draft.kind == "model" else config.draft.kind


def _decode_all(config: RunConfig, parts: Parts, progress: Progress) -> list[dict[str, Any]]:
    total = len(parts.prompts)
    sampling = Sampling(**asdict(config.sampling))
    progress.say("warming up")
    for index in range(min(config.warmup, total)):
        _pair(config, parts, index, sampling, tokens=min(32, config.max_new_tokens))
    if sampling.temperature > 0:
        _prove_greedy_identity(config, parts)
    prompts = []
    for index in range(total):
        prompts.append(_measure(config, parts, index, sampling))
        progress.advance(index + 1, total)
    return prompts


def _prove_greedy_identity(config: RunConfig, parts: Parts) -> None:
    """Sampled texts cannot be compared token by token. The same loop at T = 0 can, and must agree first."""
    for index in range(min(CHECKED_PROMPTS, len(parts.prompts))):
        baseline, ours = _pair(config, parts, index, GREEDY)
        difference = first_difference(parts.target, parts.prompts[index], baseline.tokens, ours.tokens)
        if difference is not None and not difference.is_rounding:
            raise MachineError(
                f"prompt {index + 1}: speculative decoding left the target's own greedy text at token "
                f"{difference.position + 1}, by more than rounding (margin {difference.margin:.3g}, noise "
                f"{difference.noise:.3g}): this is a fault of specbench or of the model's cache; please report it"
            )


def _pair(
    config: RunConfig, parts: Parts, index: int, sampling: Sampling, tokens: int | None = None
) -> tuple[Trace, Trace]:
    """The baseline and the speculative decoding of one prompt. Which goes first alternates, so that a machine that
    slows down or speeds up favours neither."""
    prompt = parts.prompts[index]
    most = tokens or config.max_new_tokens

    def baseline() -> Trace:
        generator = generator_for(config.seed, index, "baseline", parts.device)
        return autoregressive(parts.target, prompt, sampling=sampling, max_new_tokens=most, generator=generator)

    def ours() -> Trace:
        generator = generator_for(config.seed, index, "speculative", parts.device)
        return speculative(
            parts.target, parts.draft, prompt,
            gamma=config.gamma, sampling=sampling, max_new_tokens=most, generator=generator,
        )  # fmt: skip

    if index % 2 == 0:
        first = baseline()
        return first, ours()
    second = ours()
    return baseline(), second


def generator_for(seed: int, index: int, stream: str, device: torch.device) -> torch.Generator:
    """The random numbers of one prompt and one purpose, independent of all others."""
    words = [seed, index, *stream.encode()]
    return torch.Generator(device).manual_seed(int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1))


def _measure(config: RunConfig, parts: Parts, index: int, sampling: Sampling) -> dict[str, Any]:
    prompt, example = parts.prompts[index], parts.examples[index]
    baseline, ours = _pair(config, parts, index, sampling)
    difference = None
    if sampling.temperature == 0:
        found = first_difference(parts.target, prompt, baseline.tokens, ours.tokens)
        difference = found and asdict(found) | {"is_rounding": found.is_rounding}
    return {
        "index": example.index,
        "prompt": example.prompt,
        "reference": example.reference,
        "prompt_tokens": len(prompt.source) + len(prompt.prefix),
        "baseline": _trace(baseline, parts),
        "speculative": _trace(ours, parts),
        "beta": beta(parts.target, parts.draft, prompt, baseline.tokens, sampling),
        "difference": difference,
    }


def _trace(trace: Trace, parts: Parts) -> dict[str, Any]:
    return {"text": parts.vocabulary.text(trace.tokens)} | asdict(trace)


def _record(config: RunConfig, run_id: str, parts: Parts, prompts: list[dict[str, Any]]) -> dict[str, Any]:
    greedy = config.sampling.temperature == 0
    measured = summarise(
        prompts,
        gamma=config.gamma,
        greedy=greedy,
        c_hat=parts.draft.operations / parts.target.operations,
        resamples=config.resamples,
        seed=config.seed,
    )
    references = [prompt["reference"] for prompt in prompts]
    texts = {way: [prompt[way]["text"] for prompt in prompts] for way in ("baseline", "speculative")}
    identity = {
        "target": name_of(config.target),
        "draft": draft_name(config),
        "task": config.task.name,
        "temperature": config.sampling.temperature,
        "gamma": config.gamma,
        "top_k": config.sampling.top_k,
        "top_p": config.sampling.top_p,
    }
    surroundings = environment()
    summary = (
        identity
        | measured
        | {
            "quality_metric": config.task.metric,
            "quality_baseline": quality(config.task.metric, texts["baseline"], references),
            "quality_speculative": quality(config.task.metric, texts["speculative"], references),
            "device": config.device,
            "dtype": config.dtype,
            "hardware": hardware(surroundings, config.device),
            "simulated": False,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
    )
    return {
        "run_id": run_id,
        "summary": summary,
        "config": asdict(replace(config, force=False)),
        "environment": surroundings,
        "units": {"*_s": "seconds", "alpha, beta": "probability", "speedup_*": "ratio of seconds per token"},
        "pieces": parts.vocabulary.pieces(_tokens_of(prompts)),
        "prompts": prompts,
    }


def _tokens_of(prompts: list[dict[str, Any]]) -> set[int]:
    """Every token that was written or drafted."""
    written = {t for prompt in prompts for way in ("baseline", "speculative") for t in prompt[way]["tokens"]}
    return written | {t for p in prompts for a_pass in p["speculative"]["passes"] for t in a_pass["tokens"]}
