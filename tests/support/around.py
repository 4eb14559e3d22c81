"""A session or draft session with some of its methods replaced."""

from functools import partial
from typing import Any

from specbench.algorithm.draft import DraftSession


class Around:
    """All that a subclass does not define is `inner`'s."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "proposing" and hasattr(type(self), "propose"):
            return partial(DraftSession.proposing, self)  # or the replacement would be passed by
        return getattr(self.inner, name)


DraftSession.register(Around)  # what it wraps has the defaults
