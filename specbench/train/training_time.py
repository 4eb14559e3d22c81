"""How long a training took, added up over the times it was killed and resumed.

Independent of what is trained.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback


class Clock(TrainerCallback):
    """Keeps the seconds in a file beside the checkpoints, written whenever a checkpoint is."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.seconds = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        resumed = state.global_step > 0 and self.file.is_file()
        self.before = float(self.file.read_text()) if resumed else 0.0
        self.started = time.monotonic()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._keep()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._keep()

    def _keep(self) -> None:
        self.seconds = self.before + time.monotonic() - self.started
        self.file.write_text(f"{self.seconds:.3f}\n")
