"""Records made up for tests: a run with acceptances of a known rate, in the shape that runs write."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

import numpy as np

from specbench.analysis.summary import summarise
from specbench.config.model import ModelConfig
from specbench.config.rules import AcceptKeys
from specbench.config.schema import RunConfig, SamplingConfig, TaskConfig
from specbench.methods.model.config import ModelDraftConfig
from specbench.records import store
from specbench.records.decoded import Pass, Trace
from specbench.records.numbers import Quality
from specbench.records.prediction import DraftingPlan

EOS = 1


def make(results: Path, **options: Any) -> str:
    """Write the record of these options of `record` and return its id."""
    made = record(**options)
    store.write(results, made)
    return str(made["run_id"])


def prompt(index: int = 0, **more: Any) -> Any:
    """One prompt of such a record, with `more` in place of what it says."""
    return record(prompts=1)["prompts"][0] | {"index": index} | more


def record(
    *,
    target: str = "t5-mini",
    draft: str = "t5-nano",
    task: str = "ende-mini",
    temperature: float = 0.0,
    gamma: int = 3,
    alpha: float = 0.7,
    c: float = 0.2,
    prompts: int = 20,
    seed: int = 0,
    falls: bool = False,
    again: int = 0,
    config: Mapping[str, Any] = MappingProxyType({}),
    **summary: Any,
) -> Any:
    """A record. `again` tells runs of one config apart; `config` and `summary` replace what those of the record say."""
    draw = np.random.default_rng([seed + 1000 * again, gamma, int(10 * temperature)])
    rows = [_prompt(index, gamma, alpha, c, draw, greedy=temperature == 0) for index in range(prompts)]
    settings: dict[str, Any] = {"gamma": gamma, "c_hat": 0.1, "max_new_tokens": 64}
    measured = summarise(rows, greedy=temperature == 0, falls_with_position=falls, **settings)
    names = {"target": target, "draft": draft, "task": task, "temperature": temperature, "gamma": gamma}
    run_id = f"{target}-{draft}-{task}-T{temperature:g}-g{gamma}-{draw.integers(2**32):08x}"
    rest = {
        "top_k": None, "top_p": None, "device": "cpu", "dtype": "float32", "hardware": "a CPU, 2 threads",
        "simulated": False, "created": "2026-01-02T03:04:05+00:00", "engine": "eager", "gamma_requested": gamma,
        "accept": "exact", "prompts_cut": 0, "warmup_s": 0.1, "processes": 1,
    }  # fmt: skip
    unscored = dict.fromkeys(get_type_hints(Quality))
    choice = DraftingPlan(gamma, gamma)
    more = str({key: value for key, value in summary.items() if key != "created"})
    said = {key.removeprefix("summary_"): value for key, value in summary.items()}
    return {
        "run_id": run_id,
        "summary": names | measured | unscored | rest | said,
        "config": frozen(target, draft, task, temperature, gamma, prompts, seed, more) | config,
        "gamma": choice,
        "environment": {
            "specbench": "0",
            "commit": None,
            "python": "3",
            "versions": {},
            "cpu": "a CPU",
            "cores": 2,
            "threads": 2,
            "memory_bytes": 1,
            "gpus": [],
            "cuda": None,
            "platform": "a host",
        },
        "processes": [{"started": "2026-01-02T03:04:05+00:00", "gamma": choice, "after_prompts": 0}],
        "pieces": {str(token): f" w{token}" for token in range(100)} | {str(EOS): "</s>"},
        "prompts": rows,
    }


def frozen(
    target: str, draft: str, task: str, temperature: float, gamma: int, prompts: int, seed: int, more: str
) -> dict[str, Any]:
    """The config of such a run. What a test says of the summary stands for keys: another rule is another config."""
    accept = AcceptKeys(rule=more)
    task_config = TaskConfig(name=task, hub="owner/set", reference_field="de")
    return asdict(
        RunConfig(
            target=ModelConfig(name=target), draft=ModelDraftConfig(name=draft), task=task_config, accept=accept,
            sampling=SamplingConfig(temperature=temperature), gamma=gamma, limit=prompts, seed=seed, results="r",
        )
    )  # fmt: skip


def _prompt(index: int, gamma: int, alpha: float, c: float, draw: np.random.Generator, greedy: bool) -> dict[str, Any]:
    step_s = 0.004
    length = int(draw.integers(8, 20))
    text = [*(int(token) for token in draw.integers(2, 100, length - 1)), EOS]
    passes: list[Pass] = []
    done = 0
    while done < length:
        drafted = min(gamma, length - done)
        accepted = int((draw.random(drafted) < alpha).cumprod().sum())
        tokens = [t if i < accepted else (t + 1) % 98 + 2 for i, t in enumerate(text[done : done + drafted])]
        emitted = min(accepted + 1, length - done)
        times = {"draft_s": drafted * c * step_s, "verify_s": 1.1 * step_s, "accept_s": 0.1 * step_s}
        passes.append(Pass(drafted, accepted, emitted, **times, tokens=tokens))
        done += emitted
    spent = sum(p.draft_s + p.verify_s + p.accept_s for p in passes)
    beta = (draw.random(length) < alpha).astype(float) if greedy else draw.beta(4 * alpha, 4 * (1 - alpha), length)
    way: dict[str, Any] = {"text": "text", "tokens": text, "start_s": 0.006}
    return {
        "index": index, "prompt": f"prompt {index}", "reference": "text", "difference": None, "beta": beta.tolist(),
        "prompt_tokens": 4,
        "baseline": Trace(**way, decode_s=length * step_s, steps_s=[step_s] * length),
        "speculative": Trace(**way, decode_s=spent, passes=passes, draft_start_s=0.001),
    }  # fmt: skip


def alpha_row(**more: Any) -> dict[str, Any]:
    """A whole row of a document of `specbench alpha`."""
    row = {
        "target": "t5-mini", "draft": "bigram", "task": "ende-mini", "temperature": 0.0, "top_k": None, "top_p": None,
        "accept": "exact", "lossy": False, "prompts": 2, "tokens": 6, "alpha": 0.5, "alpha_low": 0.4, "alpha_high": 0.6,
        "lenient": {}, "dtype": "float32", "device": "cpu", "hardware": "a CPU", "simulated": False,
        "created": "2026-01-02T03:04:05+00:00",
    }  # fmt: skip
    return row | more


def scored_setting(**more: Any) -> dict[str, Any]:
    """A whole setting of a document of `specbench alpha`, but for its drafts."""
    times = dict.fromkeys(("sample_s", "score_s", "wall_s"), 1.0)
    return {"temperature": 0.0, "sample": "a.json", "texts_reused": 0, **times, **more}
