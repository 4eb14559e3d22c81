"""specbench: measure speculative decoding on your models and prompts.

ARCHITECTURE.md walks through the rooms; imports run downward only, which `make check` checks.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

from specbench import deferred

if TYPE_CHECKING:
    from specbench.api import Alphas, Ranking, Run, alpha, recommend, run
__all__ = ["Alphas", "Ranking", "Run", "alpha", "recommend", "run"]

if sys.platform == "darwin":  # read when torch is imported: what Apple's GPU lacks runs on the CPU instead of raising
    os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")
__version__ = "0.1.0"
deferred.install()


def __getattr__(name: str) -> Any:
    """The functions of `specbench.api`, imported when they are asked for: `specbench --help` should not wait."""
    if name in __all__:
        from specbench import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The names of the module and of `specbench.api`, for completion in a notebook."""
    return sorted({*globals(), *__all__})
