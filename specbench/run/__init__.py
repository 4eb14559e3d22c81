"""One run: from a checked config to a record on disk.

`build` makes the task, target and draft; `execute` decodes every prompt both ways and writes the record.
"""

from specbench.run.execution import Progress, Result, execute, follow
from specbench.run.ranks import rank

__all__ = ["Progress", "Result", "execute", "follow", "rank"]
