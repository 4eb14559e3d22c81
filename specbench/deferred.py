"""torch and numpy, imported when they are first used.

An acceptance rule is one file, which holds its keys and its formulas. `--help` and the command line read the keys, and
must not wait for torch.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["np", "torch"]


class _Deferred(ModuleType):
    """A module that is imported when a name of it is first looked up; from then on it is as quick as the module."""

    def __getattr__(self, name: str) -> object:
        module = import_module(self.__name__)
        vars(self).update(vars(module))
        return getattr(module, name)


if TYPE_CHECKING:
    import numpy as np
    import torch
else:
    np, torch = _Deferred("numpy"), _Deferred("torch")
