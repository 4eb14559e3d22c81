"""Cache fitted drafts on disk by content: one set of named arrays per file."""

import contextlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from specbench.files import json_digest, replacing

Arrays = dict[str, Any]  # of name to NDArray


def cached(folder: Path, kind: str, key: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays cached under `key`, made at the first call.

    `key` must name the whole content: text, tokenizer and how it was fitted. `kind` begins the file's name. A cache
    that is damaged or cannot be written costs time, not the run.
    """
    file = folder / f"{kind}-{json_digest(key, 20)}.npz"
    if file.exists():
        with contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile), np.load(file) as kept:
            return {name: kept[name] for name in kept.files}
    arrays = make()
    with contextlib.suppress(OSError), replacing(file) as opened:
        np.savez(opened, **arrays)
    return arrays
