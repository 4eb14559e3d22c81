"""Where prompts and references come from: the hub, your own rows, or the small sets that ship.

A `Task` streams `Example`s and training text. It handles fields and files, and is independent of tokens and models.
"""

from specbench.tasks.conversation import Message, interleaved
from specbench.tasks.task import Example, Task, check_own_rows, require_prompt, shuffled

__all__ = ["Example", "Message", "Task", "check_own_rows", "interleaved", "require_prompt", "shuffled"]
