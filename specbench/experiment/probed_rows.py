"""The prompts that `gamma=auto`, `gamma=adaptive` and `tree=sequoia` are probed on: rows that are not measured.

A gamma chosen on the prompts that it is measured on would look better than it is. They are the rows after `limit`. If
the task has too few of them, its last rows are used and left out of the measurement.
"""

from collections.abc import Sequence

from specbench.config.schema import RunConfig
from specbench.errors import UserError
from specbench.tasks import Example

MOST = 64
SHARE = 8  # if rows are short, one in so many is probed on


def is_probed(config: RunConfig) -> bool:
    """Whether the config's gamma or tree is chosen by a probe."""
    return config.gamma in ("auto", "adaptive") or config.tree.is_probed


def rows_to_read(config: RunConfig) -> int | None:
    """How many rows are measured and probed on together; None is all."""
    return config.limit if config.limit is None or not is_probed(config) else config.limit + MOST


def split_examples(config: RunConfig, examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """The examples to measure, and the examples to probe on.

    Raises UserError if one row would have to serve for both.
    """
    if not is_probed(config):
        return list(examples), []
    rows = len(examples)
    if rows < 2:
        asked, instead = f"gamma={config.gamma}", "give gamma a number"
        if config.tree.is_probed:
            asked, instead = f"tree={config.tree.shape}", "set tree.acceptance"
        raise UserError(
            f"{asked}: it is probed on prompts that are not measured, and task={config.task.name} has one row; give it "
            f"more, or {instead}"
        )
    probed = min(MOST, max(1, rows // SHARE))
    measured = min(rows if config.limit is None else config.limit, rows - probed)
    others = list(examples[measured : measured + MOST])
    return list(examples[:measured]), [one for one in others if len(one.turns) < 2] or others
