"""A session or draft session with some of its methods replaced."""

from typing import Any


class Around:
    """All that a subclass does not define is `inner`'s."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "proposing" and hasattr(type(self), "propose"):
            raise AttributeError(name)  # or the replacement would be passed by
        return getattr(self.inner, name)
