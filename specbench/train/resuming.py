"""The recipe of the training in a folder.

Only the same recipe resumes from checkpoints, the fitted tokenizer and the target's completions. Beside them
lies its fingerprint: the values that change the training, and digests of the files that they name.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from specbench import border
from specbench.border import Unreadable
from specbench.errors import UserError
from specbench.files import digest, write_atomically
from specbench.train.checkpoints import CHECKPOINTS, SECONDS, has_ended, json_object, last_whole
from specbench.train.recipe_places import portable, resolve
from specbench.train.recipe_schema import PLAN_OF, Recipe

FINGERPRINT = "training.json"
LEFT = (CHECKPOINTS, "tokenizer", "target-greedy.jsonl", "target-sampled.jsonl", SECONDS)
# What says how a training is shown, saved or measured, and not what is trained.
NOT_IDENTITY = (
    "name", "takes", "output", "force", "compile", "threads", "progress", "log_steps", "save_steps", "eval_steps",
    "data.eval_path", "data.eval_rows", "data.test", "data.test_rows", "data.passages.test", "optim.max_minutes",
    "distill.outputs", "distill.states",
)  # fmt: skip
# What says how a training is shown or saved, and changes neither its weights nor its card.
NOT_RESULT = (
    "output", "force", "compile", "threads", "progress", "log_steps", "save_steps", "eval_steps", "distill.outputs",
)  # fmt: skip
FILES = ("data.path", "data.exclude", "data.passages.path", "data.passages.exclude", "tokenizer.extra")
MODELS = ("model.start_from", "tokenizer.start_from", "distill.target", "distill.start_from")
WEIGHTS = (".safetensors", ".bin", ".json", ".model")
READ = 2**20  # bytes of a file of weights that its digest reads at either end
NAMED = 3  # differences that a message names


def fingerprint(recipe: Recipe) -> dict[str, Any]:
    """The values of `recipe` that change a training, by their keys, without those at their default.

    A key that another version adds changes nothing as long as it is at its default.
    """
    usual = dict(_flat(asdict(Recipe())))
    own = {name: value for name, value in _flat(portable(asdict(recipe))) if value != usual.get(name)}
    own = {name: value for name, value in own.items() if not _belongs(name, NOT_IDENTITY)}
    contents = dict(_contents(asdict(recipe)))
    plain: dict[str, Any] = json.loads(json.dumps(own | ({"contents": contents} if contents else {})))
    return plain


def _flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Each value with its key, `optim.lr`."""
    for name, part in value.items():
        if isinstance(part, Mapping) and part:
            yield from _flat(part, f"{before}{name}.")
        else:
            yield f"{before}{name}", part


def _belongs(name: str, keys: Iterable[str]) -> bool:
    return any(name == key or name.startswith(f"{key}.") for key in keys)


def _contents(recipe: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Digests of the files that each key names; models of the hub are named by their revision."""
    for keys, digest_of in ((FILES, digest), (MODELS, digest_of_weights)):
        for key in keys:
            value: Any = recipe
            for part in key.split("."):
                value = value[part]
            places = [Path(resolve(one)) for one in ([value] if isinstance(value, str) else value or [])]
            if found := [digest_of(place) for place in places if place.exists()]:
                yield key, found


def digest_of_weights(folder: Path) -> str:
    """Digest of the names, the sizes and both ends of a model's files: reading all of a large one takes minutes."""
    found = hashlib.sha256()
    for file in sorted(folder.iterdir()) if folder.is_dir() else [folder]:
        if file.suffix not in WEIGHTS or file.name == FINGERPRINT:
            continue
        size = file.stat().st_size
        found.update(f"{file.name} {size}".encode())
        with open(file, "rb") as opened:
            found.update(opened.read(READ))
            opened.seek(max(0, size - READ))
            found.update(opened.read(READ))
    return found.hexdigest()


def claim(recipe: Recipe, output: Path) -> bool:
    """Write the fingerprint of `recipe` into `output`, where only the same recipe is taken up again.

    With `force` the work of any earlier training there is discarded. Raises UserError if another one has left work.

    Returns:
        Whether nothing of an earlier training is there, so that a start that fails may be undone (`release`).
    """
    left, now = _left(output), fingerprint(recipe)
    is_free = recipe.force or not (left or any(output.glob("*.safetensors")))
    if recipe.force:
        _discard(left)
    elif not is_free and (before := _of_today(json_object(output / FINGERPRINT))) != now:
        raise UserError(
            f"output={recipe.output}: this folder holds another training ({_difference(before, now)}); give it a "
            "folder of its own, output=FOLDER, or discard what is there with force=true"
        )
    write_atomically(output / FINGERPRINT, json.dumps(now, indent=1, ensure_ascii=False) + "\n", "output=FOLDER")
    return is_free


def release(output: Path) -> None:
    """Remove what a start has written that no training followed: with other values the recipe is another one."""
    _discard([*_left(output), output / FINGERPRINT])


def is_done(recipe: Recipe, output: Path) -> bool:
    """Whether nothing of `recipe`, the recipe of the training in `output`, is left to train or to measure.

    Its card belongs to this recipe, and is newer than the last checkpoint and than the files that it was measured on.
    """
    card = output / "README.md"
    if not card.is_file() or not any(output.glob("*.safetensors")):
        return False
    if (checkpoint := last_whole(output, told=False)) is None:
        return False
    written = card.stat().st_mtime
    data = recipe.data
    measured_on = [Path(resolve(file)) for file in (*data.test.values(), *data.passages.test.values())]
    if any(place.stat().st_mtime > written for place in (checkpoint, *measured_on) if place.exists()):
        return False
    return has_ended(recipe, output, checkpoint) and _read_recipe(output / "recipe.yaml") == _of_result(recipe)


def _of_result(recipe: Recipe) -> dict[str, Any]:
    """The values of a recipe that its result or its card depends on, as `recipe.yaml` holds them."""
    flat = _flat(portable(asdict(recipe)))
    return {name: value for name, value in flat if not _belongs(name, NOT_RESULT)}


def _read_recipe(file: Path) -> dict[str, Any] | None:
    """Read these values of a file; None if it holds no recipe."""
    try:
        found = yaml.safe_load(border.read_text(file))
    except (Unreadable, yaml.YAMLError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    return {name: value for name, value in _flat(found) if not _belongs(name, NOT_RESULT)}


def _left(output: Path) -> list[Path]:
    return [place for name in LEFT if (place := output / name).exists()]


def _discard(places: Iterable[Path]) -> None:
    for place in places:
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)


# Before a recipe had its `kind`, what it trained was told by the option that was not zero, and by switches beside it.
ASKED = {
    "eagle.steps": "eagle", "specdec.queries": "specdec", "pard.steps": "pard", "block.size": "dflash",
    "look_ahead.number": "pass", "blockwise.heads": "blockwise",
}  # fmt: skip
SWITCHES = {"eagle.mtp": "mtp", "eagle.parallel": "peagle", "eagle.taps": "eagle3", "block.rank": "dspark"}
GONE = ("heads.kind", "eagle.mtp", "eagle.parallel", "eagle.fused")


def _of_today(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """A fingerprint as this version writes it."""
    asked = [name for name in ASKED if found and found.get(name)]
    if found is None or "kind" in found or not (asked or "heads.kind" in found):
        return found
    kind = str(found.get("heads.kind")) if not asked else ASKED[asked[0]]
    plan = f"{PLAN_OF[kind]}." if kind in PLAN_OF else ""
    kind = next((one for name, one in SWITCHES.items() if name.startswith(plan) and found.get(name)), kind)
    usual = dict(_flat(asdict(Recipe())))
    kept = {name: value for name, value in found.items() if name not in GONE and (name not in ASKED or value)}
    return {"kind": kind} | {name: value for name, value in kept.items() if name not in ASKED or value != usual[name]}


def _difference(before: dict[str, Any] | None, now: dict[str, Any]) -> str:
    """The first keys in which two fingerprints differ, in words."""
    if before is None:
        return f"its recipe is not known: it has no {FINGERPRINT}"
    usual = dict(_flat(asdict(Recipe())))
    there, here = (usual | {name: value for name, value in one.items() if name != "contents"} for one in (before, now))
    said = [
        f"{name}={_word(there.get(name))} there, {_word(here.get(name))} now"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name)
    ]
    old, new = (one.get("contents", {}) for one in (before, now))
    named = {one.partition("=")[0] for one in said}
    said += [
        f"other files as {name}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and name not in named
    ]
    more = f" and {len(said) - NAMED} more" if len(said) > NAMED else ""
    return f"{'; '.join(said[:NAMED])}{more}"


def _word(value: Any) -> str:
    """A value as the command line writes it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
