"""The keys of `specbench beam`: of a run those that a beam search has, and its own."""

import math
from dataclasses import dataclass

from specbench.config.checks import check, require_fixed
from specbench.config.draft import DraftConfig
from specbench.config.draft_keys import DraftKeys
from specbench.config.keys import fresh, key
from specbench.config.model import ModelConfig
from specbench.config.ranges import MAX_GAMMA, require
from specbench.config.schema import RunConfig, TaskConfig

MAX_WIDTH = 64
MAX_U = 256


@dataclass
class BeamConfig:
    """A beam search of the target, and the drafts' widths and steps to try."""

    target: ModelConfig = fresh(ModelConfig, "the model that searches")
    draft: DraftConfig = fresh(DraftKeys, "the model that searches ahead")
    task: TaskConfig = fresh(TaskConfig, "what to decode")
    width: int = key(4, "w: beams of the target")
    u: list[int] | None = key(None, "u: beams of the draft, a list, each at least width; unset: width and 2 width")
    gamma: list[int] = fresh(lambda: [1, 2, 3, 5], "the draft's steps in a pass")
    length_penalty: float = key(
        1.0, "length penalty: a hypothesis scores log-probability / length^this, as in generate"
    )
    early_stopping: bool | str = key(
        False, "true: over when `width` hypotheses have ended | false, never: the heuristics of generate"
    )
    max_new_tokens: int = key(128, "the most tokens generated for a prompt")
    limit: int | None = key(8, "prompts")
    dtype: str = key("float32", "as in specbench run; in bfloat16 near ties may fall either way")
    device: str = key("auto", "cpu | cuda | cuda:N | mps | auto: cuda where there is one")
    threads: int | None = key(None, "CPU threads of torch; unset: torch's own choice")
    results: str = key("results", "the folder of the records")


def check_beam(config: BeamConfig) -> None:
    """Raise UserError at the first value out of range, before anything is loaded."""
    require(2 <= config.width <= MAX_WIDTH, "width", config.width, f"from 2 to {MAX_WIDTH}")
    require(
        config.u is None or (bool(config.u) and all(config.width <= u <= MAX_U for u in config.u)),
        "u", config.u, f"a list of numbers from width={config.width} to {MAX_U}, or null",
    )  # fmt: skip
    require(
        bool(config.gamma) and all(1 <= gamma <= MAX_GAMMA for gamma in config.gamma),
        "gamma", config.gamma, f"a list of numbers from 1 to {MAX_GAMMA}",
    )  # fmt: skip
    require(
        math.isfinite(config.length_penalty) and abs(config.length_penalty) <= 10,
        "length_penalty", config.length_penalty, "from -10 to 10",
    )  # fmt: skip
    require(
        isinstance(config.early_stopping, bool) or config.early_stopping == "never",
        "early_stopping", config.early_stopping, "true | false | never",
    )  # fmt: skip
    require(config.draft.kind == "model", "draft.kind", config.draft.kind, "model: a draft that can search itself")
    confidence = config.draft.confidence_bound()
    require(confidence is None, "draft.confidence", confidence, "null in a beam search")
    assert isinstance(config.draft, ModelConfig)
    for name, model in (("target", config.target), ("draft", config.draft)):
        require(model.weights == "trained", f"{name}.weights", model.weights, "trained: the beams depend on them")
    require_fixed(config.draft)
    check(beam_run(config))


def beam_run(config: BeamConfig) -> RunConfig:
    """The run that loads the same parts. Its engine is eager: what a beam search runs is the network itself."""
    return RunConfig(
        target=config.target, draft=config.draft, task=config.task, gamma=1, max_new_tokens=config.max_new_tokens,
        limit=config.limit, dtype=config.dtype, device=config.device, engine="eager", threads=config.threads,
        results=config.results,
    )  # fmt: skip
