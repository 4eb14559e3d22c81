"""The models that the jobs of one process hand on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench.loading.model_loader import SharedModels


_sharing = False  # whether the jobs of this process hand their models on
_models: "SharedModels | None" = None


@contextmanager
def shared_models() -> Iterator[None]:
    """Within this, the jobs of this process hand their models on; after it, the memory is free."""
    global _sharing, _models
    _sharing = True
    try:
        yield
    finally:
        if _models is not None:
            _models.close()
        _sharing, _models = False, None


def loader_of_process() -> "SharedModels | None":
    """The models that the jobs of this process share; None if they share none."""
    global _models
    if _sharing and _models is None:
        from specbench.loading.model_loader import SharedModels

        _models = SharedModels()
    return _models
