"""alpha of many drafts in one go: the target writes its sample once, and every draft is scored on it.

A draft costs one reading of the sample; no gamma is tried, since alpha does not depend on it (Corollary 3.6). Memory
is the models' weights and one chunk of distributions (`measure.agreement`), whatever the sample's size.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from specbench.acceptance import lenient
from specbench.choose.sample import Sample, target_sample
from specbench.config import ChooseConfig
from specbench.config.choose import as_run, require_distinct
from specbench.environment import environment, hardware
from specbench.errors import MachineError
from specbench.files import write_atomically
from specbench.measure.agreement import Agreement, agreements
from specbench.measure.intervals import Interval, bootstrap, ratio
from specbench.models.load import name_of
from specbench.run import Progress
from specbench.run.build import Parts, build_each, resolve
from specbench.run.identity import draft_name, identify
from specbench.run.pair import sampling_of

GPU_TOKENS = 10_000  # the paper's (Table 3)
CPU_TOKENS = 2_000
FEWEST_ROWS = 50
SHORT = 8  # tokens; texts of a whole task are longer on average
SCHEMA = 1


@dataclass(frozen=True)
class Scored:
    """The drafts of one sampling setting, along the target's sample: `found[draft][i]` is along text i."""

    configs: list[ChooseConfig]
    parts: list[Parts]
    sample: Sample
    found: dict[str, list[Agreement]]
    seconds: float  # that all drafts took

    @property
    def names(self) -> list[str]:
        return [draft_name(config) for config in self.configs]


def prepare(configs: Sequence[ChooseConfig], progress: Progress) -> list[tuple[ChooseConfig, Parts]]:
    """The resolved configs and their parts; models are loaded here."""
    resolved = []
    for config in configs:
        run = resolve(config)
        assert isinstance(run, ChooseConfig)
        # Rows are not read beyond what the sample could need.
        resolved.append(replace(run, limit=max(FEWEST_ROWS, budget(run) // SHORT) if run.limit is None else run.limit))
    for _, group in groupby(sorted(resolved, key=_setting), key=_setting):
        require_distinct([draft_name(config) for config in group])
    if resolved[0].threads is not None:
        torch.set_num_threads(resolved[0].threads)
    return list(zip(resolved, build_each(resolved, progress.say), strict=True))


def score(pairs: Sequence[tuple[ChooseConfig, Parts]], leniences: Sequence[float], progress: Progress) -> Scored:
    """Let the target write, or take what it wrote, and score the drafts of one sampling setting on it."""
    configs, parts = [config for config, _ in pairs], [made for _, made in pairs]
    config, target = configs[0], parts[0].target
    sampling = sampling_of(config)
    try:
        progress.say(f"the target writes its sample (T={sampling.temperature:g})")
        sample = target_sample(config, parts[0], budget(config), progress)
        progress.say(f"scoring {', '.join(draft_name(one) for one in configs)}")
        began = target.now()
        found: dict[str, list[Agreement]] = {draft_name(one): [] for one in configs}
        rules = {f"{one:g}": lenient(one, sampling) for one in leniences}
        for index, text in enumerate(sample.texts):
            scores = agreements(target, [p.draft for p in parts], parts[0].prompts[index], text, sampling, rules)
            for one, agreement in zip(configs, scores, strict=True):
                found[draft_name(one)].append(agreement)
            progress.advance(index + 1, len(sample.texts))
    except FloatingPointError as error:
        raise MachineError(f"dtype={config.dtype}: {error}; use dtype=float32, and check the weights") from error
    return Scored(configs, parts, sample, found, target.now() - began)


def budget(config: ChooseConfig) -> int:
    """Tokens of the target's own text to score."""
    if config.tokens is not None:
        return config.tokens
    return CPU_TOKENS if torch.device(config.device).type == "cpu" else GPU_TOKENS


def measure_alpha(configs: Sequence[ChooseConfig], progress: Progress) -> tuple[Path, dict[str, Any]]:
    """Score every draft of `configs`, which differ in draft and temperature alone; write the record, and return it."""
    pairs = prepare(configs, progress)
    settings = [
        list(group) for _, group in groupby(sorted(pairs, key=lambda p: _setting(p[0])), key=lambda p: _setting(p[0]))
    ]
    rows, raw = [], []
    surroundings = environment()
    for group in settings:
        began = time.perf_counter()
        scored = score(group, configs[0].leniences, progress)
        rows += alpha_rows(scored, hardware(surroundings, group[0][0].device))
        raw.append(_raw(scored) | {"wall_s": time.perf_counter() - began})
    ids = [identify(as_run(config)) for config, _ in pairs]
    first = pairs[0][0]
    digest = hashlib.sha256(json.dumps([ids, first.tokens, first.leniences]).encode()).hexdigest()[:8]
    alpha_id = f"{name_of(first.target)}-{first.task.name}-{digest}"
    record = {
        "schema": SCHEMA,
        "alpha_id": alpha_id,
        "rows": rows,
        "settings": raw,
        "configs": [asdict(config) for config, _ in pairs],
        "environment": surroundings,
    }
    file = alpha_folder(first.results) / f"{alpha_id}.json"
    write_atomically(file, json.dumps(record, ensure_ascii=False) + "\n")
    return file, record


def alpha_folder(results: str | Path) -> Path:
    """Where the records of `specbench alpha` lie; each has its table in `rows`."""
    return Path(results) / "alpha"


def alpha_rows(scored: Scored, where: str) -> list[dict[str, Any]]:
    """One row a draft: alpha with its interval over prompts, and alpha(l) for each lenience."""
    rows = []
    for config, name in zip(scored.configs, scored.names, strict=True):
        texts = scored.found[name]

        def mean(columns: list[tuple[float, int]], config: ChooseConfig = config) -> Interval:
            return bootstrap(columns, ratio, config.resamples, config.seed)

        alpha = mean([(sum(a.beta), len(a.beta)) for a in texts])
        under_lenience = {
            lenience: asdict(mean([(sum(a.under[lenience]), len(a.beta)) for a in texts]))
            for lenience in texts[0].under
        }
        rows.append({
            "target": name_of(config.target), "draft": name, "task": config.task.name,
            "temperature": config.sampling.temperature, "top_k": config.sampling.top_k, "top_p": config.sampling.top_p,
            "prompts": len(texts), "tokens": sum(len(a.beta) for a in texts),
            "alpha": alpha.value, "alpha_low": alpha.low, "alpha_high": alpha.high, "lenient": under_lenience,
            "dtype": config.dtype, "device": config.device, "hardware": where, "simulated": False,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        })  # fmt: skip
    return rows


def _raw(scored: Scored) -> dict[str, Any]:
    """What the rows are made from, and what it took."""
    return {
        "temperature": scored.configs[0].sampling.temperature,
        "sample": str(scored.sample.file),
        "sample_s": scored.sample.seconds,
        "texts_reused": scored.sample.reused,
        "score_s": scored.seconds,
        "drafts": {name: [asdict(a) for a in texts] for name, texts in scored.found.items()},
    }


def _setting(config: ChooseConfig) -> float:
    return config.sampling.temperature
