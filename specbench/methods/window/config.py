"""The keys of `draft=window`."""

from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import DraftConfig
from specbench.config.window_keys import WindowKeys

USUAL = 512


@dataclass
class WindowConfig(DraftConfig, WindowKeys):
    """The target's own weights, over a window of its cache."""

    kind: str = "window"
    builder: ClassVar[str | None] = "specbench.methods.window.draft:WindowBuilder"
    inside_target: ClassVar[bool] = True

    @property
    def tokens(self) -> int:
        """The window's size."""
        return self.window or USUAL

    def label(self) -> str:
        return f"{self.kind}-{self.window_label(self.tokens)}"

    def check(self, key: str) -> None:
        self.check_window(key)
