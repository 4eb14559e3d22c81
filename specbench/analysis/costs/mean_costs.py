"""c and v of a run: means over all its passes, over the mean step of the target alone.

So the drafted tokens of the mean pass times c, plus v, plus the overhead, are the target steps that the mean pass
takes, and tokens per pass over them is the measured speedup. In a batch a step or a pass counts once, not once per row.
"""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.acceptance.by_position import levels
from specbench.analysis.costs import rows_of
from specbench.analysis.distinct import groups_of
from specbench.analysis.several_processes import of_processes
from specbench.records.decoded import Pass
from specbench.records.run_record import PromptRecord
from specbench.stats import Interval, over_rows

POWERS_OF_C = (1, -1, -1, 1, -1, 1)
POWERS_OF_V = (1, -1, -1, 1)


def draft_cost(prompts: Sequence[PromptRecord], level: float | None = None) -> Interval | None:
    """c: the mean time to draft a token (in a tree, a level), divided by the mean step; None without drafted tokens.

    The time of passes for which the draft proposed nothing is part of it.
    """
    if not any(one.drafted for prompt in prompts for one in prompt["speculative"].passes):
        return None
    return _of_times(prompts, columns_of_c, POWERS_OF_C, level)


def verify_cost(prompts: Sequence[PromptRecord], level: float | None = None) -> Interval:
    """v: the mean verification of a pass over the mean step."""
    return _of_times(prompts, partial(columns_of_part, part="verify_s"), POWERS_OF_V, level)


def accept_cost(prompts: Sequence[PromptRecord]) -> float:
    """The overhead: the mean time of accepting in a pass over the mean step."""
    columns = [columns_of_part(prompt, "accept_s") for prompt in prompts]
    return float(_product(np.sum(columns, axis=0), POWERS_OF_V))


def mean_step_s(prompts: Sequence[PromptRecord]) -> float:
    """Seconds of the mean step of the target alone."""
    seconds, steps = np.sum([_steps(prompt) for prompt in prompts], axis=0)
    return float(seconds / steps)


def columns_of_part(prompt: PromptRecord, part: Literal["draft_s", "verify_s", "accept_s"]) -> tuple[float, ...]:
    """Seconds of a part of the passes and their number, seconds of the steps and their number."""
    trace = prompt["speculative"]
    rows = rows_of(trace)
    seconds = sum(getattr(one, part) / of for one, of in zip(trace.passes, rows, strict=True))
    return (seconds, sum(1 / of for of in rows), *_steps(prompt))


def columns_of_c(prompt: PromptRecord) -> tuple[float, ...]:
    """Columns of drafting (`columns_of_part`), then the levels that were drafted, and in how many passes of a row."""
    passes = prompt["speculative"].passes
    return (*columns_of_part(prompt, "draft_s"), float(sum(map(levels, passes))), float(len(passes)))


def _steps(prompt: PromptRecord) -> tuple[float, float]:
    trace = prompt["baseline"]
    rows = rows_of(trace)
    return sum(s / of for s, of in zip(trace.steps_s, rows, strict=True)), sum(1 / of for of in rows)


def _of_times(
    prompts: Sequence[PromptRecord],
    columns: Callable[[PromptRecord], tuple[float, ...]],
    powers: Sequence[int],
    level: float | None,
) -> Interval:
    """The product of these column totals to their powers, with its interval over prompts and processes."""
    runs = of_processes(prompts)
    by_process = [float(_product(np.sum([columns(prompt) for prompt in one], axis=0), powers)) for one in runs]
    return over_rows(
        [columns(prompt) for prompt in prompts], partial(_product, powers=powers), level=level,
        by_process=by_process if len(runs) > 1 else (), groups=groups_of(prompts),
    )  # fmt: skip


def _product(totals: NDArray[np.float64], powers: Sequence[int]) -> NDArray[np.float64]:
    """The product of totals [..., K] to these powers."""
    found: NDArray[np.float64] = np.prod(totals ** np.array(powers, float), axis=-1)
    return found


def _is_full(one: Pass, gamma: int | None) -> bool:
    return gamma is None or one.parents is not None or one.drafted == gamma


def experts_read(prompts: Sequence[PromptRecord], gamma: int | None) -> float | None:
    """Mean experts read by a full pass, divided by the mean of a step; None without experts."""
    of_steps = [count for prompt in prompts for count in prompt["baseline"].step_experts or ()]
    passes = [one for prompt in prompts for one in prompt["speculative"].passes if _is_full(one, gamma)]
    of_passes = [sum(one.experts) for one in passes if one.experts is not None]
    return fmean(of_passes) / fmean(of_steps) if of_passes and of_steps else None
