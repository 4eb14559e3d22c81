"""The target's own completions, written once and cached: the sample that every draft is scored on.

A file holds token ids, not distributions: 10,000 tokens are about 60 KB. Its name is a hash of all that a completion
depends on (target and its files, sampling, seed, dtype, limit on new tokens). A completion is keyed by a hash of its
prompt's tokens and place, so that a larger sample reuses a smaller sample. The draws are the same as in a run's
baseline: `specbench run` on the same prompts writes the same completions.
"""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypedDict

import torch

from specbench.config.model import name_of
from specbench.config.schema import OLD, RunConfig
from specbench.escaping import file_name
from specbench.experiment.measure import baseline_of
from specbench.experiment.run_parts import Parts
from specbench.experiment.runner import Progress
from specbench.files import json_digest
from specbench.loading.model_loader import files_of
from specbench.records.documents import saved_document, write_document
from specbench.records.run_record import Config

SAVED_EVERY_S = 60.0


class SampleText(TypedDict):
    """One completion, and the seconds that the target took to write it."""

    tokens: list[int]
    seconds: float


class SampleDocument(TypedDict):
    """A file of completions."""

    texts: dict[str, SampleText]


@dataclass(frozen=True)
class Sample:
    """`texts[i]` is the target's completion of prompt i; `seconds` is the time of writing all of them."""

    texts: list[list[int]]
    seconds: float
    reused: int  # how many were there already
    file: Path


def target_sample(config: RunConfig, parts: Parts, tokens: int, progress: Progress) -> Sample:
    """Completions for the first prompts of `parts`, until they hold `tokens` tokens or the prompts are used up."""
    file, key = sample_file(config)
    known = _read(file)
    entries = list[SampleText]()
    reused = written = 0
    saved = time.monotonic()
    try:
        for index, prompt in enumerate(parts.prompts):
            if sum(len(entry["tokens"]) for entry in entries) >= tokens:
                break
            name = json_digest([index, prompt.source, prompt.prefix], 16)
            if name in known:
                reused += 1
            else:
                trace = baseline_of(parts, parts.spec, index)()
                known[name] = {"tokens": trace.tokens, "seconds": trace.start_s + trace.decode_s}
                written += 1
            entries.append(known[name])
            progress.advance(min(tokens, sum(len(entry["tokens"]) for entry in entries)), tokens)
            if written and time.monotonic() - saved > SAVED_EVERY_S:
                _save(file, key, known)
                saved = time.monotonic()
    finally:
        if written:
            _save(file, key, known)
    return Sample([entry["tokens"] for entry in entries], sum(entry["seconds"] for entry in entries), reused, file)


def sample_file(config: RunConfig) -> tuple[Path, Config]:
    """The cache file of this config's target, and the values that its name is a hash of."""
    target = replace(config.target, note=None)
    key = {
        "target": asdict(target),
        "files": files_of(target),
        "sampling": {name: getattr(config.sampling, name) for name in OLD} | config.sampling.set_keys(),
        "seed": config.seed,
        "dtype": config.dtype,
        "device": torch.device(config.device).type,  # each kind has random numbers of its own
        "max_new_tokens": config.max_new_tokens,
    }
    name = file_name(name_of(config.target), f"-T{config.sampling.temperature:g}-{json_digest(key, 12)}")
    return Path(config.results) / "samples" / f"{name}.json", key


def _read(file: Path) -> dict[str, SampleText]:
    """The cached completions; none if there is no file, or it is damaged."""
    saved: SampleDocument | None = saved_document(file, SampleDocument)
    return {} if saved is None else saved["texts"]


def _save(file: Path, key: Config, texts: dict[str, SampleText]) -> None:
    """Merge these completions with what other processes have written in the meantime, and write the file atomically."""
    write_document(file, {"key": key, "texts": {**_read(file), **texts}})
