"""The keys of drafts that attend to a window of the text."""

from dataclasses import dataclass

from specbench.config.keys import key, require

SINKS = 4


@dataclass
class WindowKeys:
    """How far back a draft attends."""

    window: int | None = key(
        None, "the newest tokens that the draft attends to; unset: all, with draft=window 512 (docs/drafts.md#window)"
    )
    sinks: int = key(SINKS, "tokens at the beginning of the text that a draft with a window attends to as well")

    def window_label(self, tokens: int) -> str:
        """Name in tables of a window of so many tokens: '512'; also the number of sinks, if it is unusual."""
        return str(tokens) + ("" if self.sinks == SINKS else f"-sinks{self.sinks}")

    def check_window(self, key: str) -> None:
        """Raise UserError if a key is out of range."""
        require(self.window is None or self.window >= 1, f"{key}.window", self.window, "at least 1, or null")
        require(self.sinks >= 0, f"{key}.sinks", self.sinks, "at least 0")
