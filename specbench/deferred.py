"""Modules whose names are looked up when they are first used: torch and numpy, and the old import paths of plug-ins.

An acceptance rule is one file, which holds its keys and its formulas. `--help` and the command line read the keys, and
must not wait for torch.

Packages outside this project that were written before the rooms were rebuilt still work: an old module stands for
several new ones, in which its names are looked up in turn. New code imports from where the names are. The finder is
asked only after all others, so nothing else becomes slower.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["install", "np", "torch"]

# Old module: the new ones that have its names. All that the documentation has named.
MOVED: dict[str, tuple[str, ...]] = {
    "specbench.acceptance": ("specbench.algorithm.acceptance.base", "specbench.algorithm.acceptance.rules.exact"),
    "specbench.acceptance.base": ("specbench.algorithm.acceptance.base",),
    "specbench.config.ranges": ("specbench.config.keys",),
    "specbench.drafts": ("specbench.algorithm.draft", "specbench.algorithm.acceptance.base"),
    "specbench.drafts.base": ("specbench.algorithm.draft",),
    "specbench.models": (
        "specbench.engine.session",
        "specbench.text.vocabulary",
        "specbench.text.tokenizer",
        "specbench.engine.weights.load",
    ),
    "specbench.models.eager": ("specbench.engine.eager.model",),
    "specbench.runs": (),
    "specbench.runs.draft_builders": ("specbench.methods.build",),
    "specbench.runs.draft_builders.base": ("specbench.methods.build",),
    "specbench.runs.model_loader": ("specbench.loading.model_loader",),
    "specbench.serving": ("specbench.interop.serving",),
    "specbench.serving.engine": ("specbench.interop.serving.engine",),
    "specbench.interop.serving.timing": ("specbench.interop.serving.engine",),
    "specbench.serving.openai": ("specbench.interop.serving.openai",),
    "specbench.serving.assisted": ("specbench.interop.serving.assisted",),
}


class _Deferred(ModuleType):
    """A module with the names of `places`, imported when a name is first looked up."""

    def __init__(self, name: str, places: Sequence[str]) -> None:
        super().__init__(name)
        self._places = places

    def __getattr__(self, name: str) -> object:
        for module in map(import_module, self._places):
            if hasattr(module, name):
                # Kept: a decoding loop looks names up between two steps of half a millisecond.
                return self.__dict__.setdefault(name, getattr(module, name))
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


if TYPE_CHECKING:
    import numpy as np
    import torch
else:
    np, torch = _Deferred("numpy", ["numpy"]), _Deferred("torch", ["torch"])


class OldPaths(MetaPathFinder, Loader):
    """Finds the modules in `MOVED`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Deferred(spec.name, MOVED[spec.name])

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: the names are looked up when they are asked for."""


def install() -> None:
    """Make the old paths importable; a second call does nothing."""
    if not any(isinstance(finder, OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(OldPaths())
