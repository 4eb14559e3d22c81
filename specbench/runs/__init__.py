"""One run: from a checked config to a record on disk.

`build` makes the task, target and draft; `execute` decodes every prompt with and without the draft and writes the
record.
"""

from specbench.runs.distributed import rank
from specbench.runs.model_loader import SharedModels
from specbench.runs.runner import Progress, Result, execute, follow

__all__ = ["Progress", "Result", "SharedModels", "execute", "follow", "rank"]
