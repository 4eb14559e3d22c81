"""A folder of weights as a cache of the hub, for servers that only serve what such a cache lists."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from specbench.files import json_digest, own_cache, write_atomically

REVISION = "0" * 40  # of the weights
NAME = "generation_config.json"


def hub_cache(folder: Path, model: str, generation: Mapping[str, object]) -> Path:
    """A cache with one model, `model`: links to the files of `folder`, and this generation config."""
    cache = own_cache() / "engines" / f"{folder.name}-{json_digest([str(folder.resolve()), generation])}.hub"
    there = cache / f"models--{model}"
    snapshot = there / "snapshots" / REVISION
    snapshot.mkdir(parents=True, exist_ok=True)
    write_atomically(there / "refs" / "main", REVISION)
    for link in snapshot.iterdir():
        if link.is_symlink() and not link.exists():  # to a file that was deleted since
            link.unlink(missing_ok=True)
    for file in folder.iterdir():
        link = snapshot / file.name
        if file.is_file() and file.name != NAME and not link.exists():
            with contextlib.suppress(FileExistsError):  # made by another start meanwhile
                link.symlink_to(file.resolve())
    write_atomically(snapshot / NAME, json.dumps(generation))
    return cache
