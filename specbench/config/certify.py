"""The keys of `specbench certify`: of a run those that its target and its sampling have, and a few of its own."""

import math
from dataclasses import dataclass

from specbench.config.checks import check, require_fixed
from specbench.config.draft import DraftConfig
from specbench.config.draft_keys import DraftKeys
from specbench.config.keys import fresh, key
from specbench.config.model import ModelConfig
from specbench.config.ranges import require
from specbench.config.schema import RunConfig, SamplingConfig, TaskConfig


@dataclass
class CertifyConfig:
    """The keys of `specbench certify`."""

    target: ModelConfig = fresh(ModelConfig, "the model that the server claims to run")
    draft: DraftConfig = fresh(
        DraftKeys, "the draft that the server used, if it is known: faults of its loop show earlier"
    )
    task: TaskConfig = fresh(TaskConfig, "the training text of an n-gram draft")
    sampling: SamplingConfig = fresh(SamplingConfig, "how the server sampled")
    within: float = key(
        0.1,
        "size of the fault that a positive verdict excludes: T>0: total variation per token; T=0: share of "
        "differing tokens",
    )
    noise: float | None = key(
        None,
        "T=0: how far the server's logits may differ from ours; unset: measured on this machine",
    )
    limit: int | None = key(None, "rows; unset: all")
    dtype: str = key("auto", "the server's: bfloat16 | float32 | float16; auto: as in specbench run")
    device: str = key("auto", "cpu | cuda | cuda:N | mps | auto: cuda where there is one")
    threads: int | None = key(None, "CPU threads of torch; unset: torch's own choice")
    seed: int = key(0, "of the target's own completions, which test how often a completion is tokenised differently")


def check_certify(config: CertifyConfig) -> None:
    """Raise UserError at the first value out of range, before anything is loaded."""
    require(0 < config.within < 1, "within", config.within, "between 0 and 1")
    noise = config.noise
    require(noise is None or (math.isfinite(noise) and noise >= 0), "noise", noise, "at least 0, or null")
    require(config.target.weights == "trained", "target.weights", config.target.weights, "trained")
    require_fixed(config.draft)
    check(certify_run(config))


def certify_run(config: CertifyConfig) -> RunConfig:
    """The run that loads the same target and draft. Its engine is eager: a text is read at once."""
    return RunConfig(
        target=config.target, draft=config.draft, task=config.task, sampling=config.sampling, gamma=1,
        limit=config.limit, dtype=config.dtype, device=config.device, engine="eager", threads=config.threads,
        seed=config.seed,
    )  # fmt: skip
