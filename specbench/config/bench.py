"""The keys of `specbench bench`: those of a run, and a few of its own."""

from dataclasses import dataclass

from specbench.config.checks import check, require_fixed
from specbench.config.draft_kinds import TrainedConfig
from specbench.config.keys import fresh, key
from specbench.config.ranges import MAX_BATCH, MAX_GAMMA, require
from specbench.config.schema import RunConfig, SamplingConfig
from specbench.errors import UserError


@dataclass
class BenchConfig(RunConfig):
    """The keys of `specbench bench`."""

    limit: int | None = key(8, "prompts")
    gammas: list[int] = fresh(lambda: [2, 4, 7], "the gammas to compare speculative decoding at")
    parts: str = key(
        "abcdefg",
        "parts of the table: a generate, b assisted, c prompt lookup, d a step, e a pass, f growth, g batches",
    )
    batches: list[int] = fresh(lambda: [4, 16], "the batches of part g")
    repeats: int = key(3, "times that each decoder decodes each prompt")
    step_by_step: bool = key(False, "also time a draft whose steps cannot be captured as one CUDA graph")
    bandwidth: float | None = key(None, "GB/s, for the lower bound of a step; unset: measured by a copy")
    launch_us: float = key(1.5, "microseconds to launch a kernel, for the lower bound of a step")


def check_bench(config: BenchConfig) -> None:
    """Check every value, before anything is loaded.

    Raises:
        UserError: the first value out of range.
    """
    check(config)
    require_fixed(config.draft)
    if isinstance(config.draft, TrainedConfig):
        raise UserError(
            f"draft={config.draft.kind}: its target hands over more than logits, which generate cannot read; use run"
        )
    for name, default in vars(SamplingConfig()).items():
        value = getattr(config.sampling, name)
        require(value == default, f"sampling.{name}", value, "left out: bench times greedy decoding")
    require(config.tree.shape == "none", "tree", config.tree.shape, "none: generate does not support trees")
    require(
        config.accept.rule == "exact",
        "accept.rule",
        config.accept.rule,
        "exact, as in the decoding it is compared with",
    )
    require(
        bool(config.gammas) and all(1 <= gamma <= MAX_GAMMA for gamma in config.gammas),
        "gammas", config.gammas, f"a list of numbers from 1 to {MAX_GAMMA}",
    )  # fmt: skip
    require(
        bool(config.parts) and set(config.parts) <= set("abcdefg"),
        "parts",
        config.parts,
        "letters from a to g, as in ab",
    )
    require(
        bool(config.batches) and all(2 <= batch <= MAX_BATCH for batch in config.batches),
        "batches", config.batches, f"a list of numbers from 2 to {MAX_BATCH}",
    )  # fmt: skip
    require(config.batch == 1, "batch", config.batch, "1: part g times batches=[4,16]")
    require(config.repeats >= 1, "repeats", config.repeats, "at least 1")
    require(config.bandwidth is None or config.bandwidth > 0, "bandwidth", config.bandwidth, "above 0 (GB/s)")
    require(config.launch_us >= 0, "launch_us", config.launch_us, "at least 0 (us)")
