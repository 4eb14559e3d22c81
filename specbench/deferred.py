"""torch and numpy, imported when they are first used.

An acceptance rule is one file, which holds its keys and its formulas. `--help` and the command line read the keys, and
must not wait for torch.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["np", "torch"]


class _Deferred(ModuleType):
    """A module that is imported when a name of it is first looked up."""

    def __getattr__(self, name: str) -> object:
        found = getattr(import_module(self.__name__), name)
        self.__dict__[name] = found  # a decoding loop looks names up between two steps of half a millisecond
        return found


if TYPE_CHECKING:
    import numpy as np
    import torch
else:
    np, torch = _Deferred("numpy"), _Deferred("torch")
