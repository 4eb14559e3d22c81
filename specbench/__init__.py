"""specbench: measure speculative decoding on your models and prompts.

The rooms, top first; imports run downward only (checked by `make check`):
`api` > `cli` > `choose` > `bench | runs | report` > `measure | train` > `decoding | beam` > `drafts | gamma | tasks` >
`records` > `models | acceptance | quality` >
`sampling | config | theory | trees | stats | environment | hub | files | markdown` > `errors`.
ARCHITECTURE.md walks through them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specbench.api import Alphas, Ranking, Run, alpha, recommend, run
__all__ = ["Alphas", "Ranking", "Run", "alpha", "recommend", "run"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The functions of `specbench.api`, imported when they are asked for: `specbench --help` should not wait."""
    if name in __all__:
        from specbench import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
