"""Scripts of the repository as modules, though they lie in no package."""

import importlib.util
from pathlib import Path
from types import ModuleType


def loaded(file: Path) -> ModuleType:
    """The script in `file`, run as a module of its own."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
