"""The form of a kept record: what tables, figures and pages draw from, in columns.

A kept record is read as any other (`records.store`). It differs from the record of the run in four ways:

- prompts, and what the target alone wrote, lie in a file of their own, which all records of these prompts share;
- times of single steps and passes have four significant digits;
- it has only those draft tokens of a pass that were compared with the target's;
- only one prompt, a typical one that the figure of a run shows, has all draft tokens, the strings of tokens, and a
  completion that differs from the target's own.

Prompts and passes are written as columns, a list for each key, which compress to half of what rows do.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from specbench import border
from specbench.border import Unreadable
from specbench.files import json_text
from specbench.recorded import hints_of, to_json
from specbench.records.decoded import Pass, Trace
from specbench.records.run_record import PromptRecord, Row, RunRecord

ENDING = ".json.xz"  # of a kept record
FOLDER = "prompts"  # of what records share, beside them
DIGEST = re.compile(r"[0-9a-f]{16}", re.ASCII)
ROOT = -1  # in `Pass.parents`
UNKNOWN = -1  # a draft token of a tree that a kept record lacks

Columns = dict[str, Any]  # by key the values of all rows; if the values are objects with the same keys, columns


class SharedPrompt(TypedDict):
    """A prompt, and the target's own completion."""

    prompt: str
    reference: str | None
    prompt_tokens: int
    text: str
    tokens: list[int]


class Shared(TypedDict):
    """The file that the records of some prompts share."""

    prompts: list[SharedPrompt]


class Shown(TypedDict):
    """The prompt that the figure of a run shows."""

    place: int
    text: Annotated[str, "its completion with the draft"]
    tokens: Annotated[list[list[int]], "the draft tokens of each pass"]


class KeptPasses(TypedDict):
    """The passes of all prompts, one after another."""

    of_prompts: Annotated[list[int], "how many each prompt has"]
    compared: Annotated[list[list[int]], "of a pass: the rejected token; of a tree, each rejected first child"]
    columns: Columns


class Kept(TypedDict):
    """What a kept record has in place of prompts."""

    shared: Annotated[str, "a digest, which names the file of the prompts"]
    columns: Columns
    rest: NotRequired[Annotated[list[Row], "by prompt: keys that some prompts lack"]]
    baseline: Columns
    speculative: Annotated[Columns, "tokens: null where the target alone wrote the same"]
    passes: KeptPasses
    shown: Shown


OF_PROMPT = ("prompt", "reference", "prompt_tokens")  # in `Shared`
APART = (*OF_PROMPT, "baseline", "speculative")
LEFT_OUT = ("text", "passes")  # of a trace


def small(record: RunRecord, place: int) -> tuple[Row, Shared]:
    """The kept form of a record's prompts and `pieces`, and what it shares; `place` locates a typical prompt."""
    place = record.get("shown", place)
    prompts: list[Any] = to_json(record["prompts"])
    ours, alone = [one["speculative"] for one in prompts], [one["baseline"] for one in prompts]
    shared: Shared = {"prompts": [_shared(one) for one in prompts]}
    passes = [one for trace in ours for one in trace["passes"]]
    known = [key for key in hints_of(PromptRecord) if key not in APART and any(key in one for one in prompts)]
    unlike = [_unlike(one, other) for one, other in zip(ours, alone, strict=True)]
    every = [key for key in known if all(key in one for one in prompts)]
    rest = [{key: one[key] for key in known if key in one and key not in every} for one in prompts]
    kept: Kept = {
        "shared": digest_of(shared),
        "columns": {key: _column([one[key] for one in prompts]) for key in every},
        "baseline": _of_class(Trace, alone, (*LEFT_OUT, "tokens")),
        "speculative": _of_class(Trace, unlike, LEFT_OUT),
        "passes": {
            "of_prompts": [len(trace["passes"]) for trace in ours],
            "compared": list(map(_compared, passes)),
            "columns": _of_class(Pass, passes, ("tokens",)),
        },
        "shown": {
            "place": place,
            "text": ours[place]["text"],
            "tokens": [one["tokens"] for one in ours[place]["passes"]],
        },
    }
    if any(rest):
        kept["rest"] = rest
    said = {*ours[place]["tokens"], *(token for tokens in kept["shown"]["tokens"] for token in tokens)}
    pieces = record["pieces"]
    return {"pieces": {str(one): pieces[str(one)] for one in sorted(said) if str(one) in pieces}, "kept": kept}, shared


def digest_of(shared: Shared) -> str:
    """The name of the file of `shared`, without its ending."""
    return hashlib.sha256(json_text(shared).encode()).hexdigest()[:16]


def shared_file(folder: Path, digest: str) -> Path:
    """The file of the prompts that kept records in `folder` name by `digest`."""
    return folder / FOLDER / f"{digest}{ENDING}"


def _shared(prompt: Row) -> SharedPrompt:
    alone = prompt["baseline"]
    return {
        "prompt": prompt["prompt"], "reference": prompt["reference"], "prompt_tokens": prompt["prompt_tokens"],
        "text": alone["text"], "tokens": alone["tokens"],
    }  # fmt: skip


def _unlike(ours: Row, alone: Row) -> Row:
    return ours | {"tokens": None if ours["tokens"] == alone["tokens"] else ours["tokens"]}


def _of_class(kind: type, rows: Sequence[Row], without: Sequence[str]) -> Columns:
    """The columns of objects of a class, whose absent keys are None; none for a key that is None in each."""
    found = {key: [row.get(key) for row in rows] for key in hints_of(kind) if key not in without}
    return {key: values for key, values in found.items() if any(value is not None for value in values)}


def _column(values: list[Any]) -> Any:
    """The values, or the columns of values that are objects with the same keys."""
    keys = list(values[0]) if isinstance(values[0], dict) else []
    if not keys or any(not isinstance(one, dict) or list(one) != keys for one in values):
        return values
    return {key: _column([one[key] for one in values]) for key in keys}


def _compared(one: Row) -> list[int]:
    """The draft tokens of a pass that were compared with the target's and do not stand in the completion."""
    tokens, parents, path = one["tokens"], one["parents"], one["path"]
    if parents is None or path is None:
        return list(tokens[one["accepted"] : one["accepted"] + 1])
    return [tokens[child] for child in _first_children(parents, path)]


def _first_children(parents: Sequence[int], path: Sequence[int]) -> list[int]:
    """The first children of the root and of each accepted node, but those that were accepted."""
    first = (parents.index(node) for node in (ROOT, *path) if node in parents)
    return [child for child in first if child not in path]


def restored(record: Row, file: Path) -> Row:
    """The record of which `record`, read from `file`, is the kept form; as it is, if it is whole.

    Raises Unreadable if it is damaged, or the file of its prompts is, or is missing.
    """
    if "kept" not in record:
        return record
    kept: Kept = record["kept"]
    border.check(kept, Kept)
    if not DIGEST.fullmatch(kept["shared"]):
        raise Unreadable(f"shared is {border.shown(kept['shared'])}, not a digest")
    prompts = _prompts(kept, _read_shared(shared_file(file.parent, kept["shared"])))
    return {key: value for key, value in record.items() if key != "kept"} | {
        "prompts": prompts,
        "shown": kept["shown"]["place"],
    }


def _read_shared(file: Path) -> list[SharedPrompt]:
    try:
        found: Shared = _parsed(file, file.stat().st_mtime_ns)
    except (OSError, Unreadable) as error:
        why = error if isinstance(error, Unreadable) else error.strerror
        raise Unreadable(f"its prompts lie in {FOLDER}/{file.name} beside it: {why}") from error
    return found["prompts"]


@lru_cache(maxsize=64)
def _parsed(file: Path, modified: int) -> Shared:
    found: Shared = border.parse(border.read_bytes(file), Shared)
    return found


def _prompts(kept: Kept, shared: Sequence[SharedPrompt]) -> list[Row]:
    """The prompts as in the record of a run."""
    count, own = len(shared), kept["passes"]
    columns = _rows(kept["columns"], count)
    rest: list[Row] = kept["rest"] if "rest" in kept else [{} for _ in shared]
    traces = zip(_rows(kept["baseline"], count), _rows(kept["speculative"], count), strict=True)
    passes = _rows(own["columns"], len(own["compared"]))
    border.check(passes, list[dict[str, Any]])
    if len(rest) != count or len(own["of_prompts"]) != count or sum(own["of_prompts"]) != len(passes):
        raise Unreadable(f"not a value for each of {count} prompts")
    if min(own["of_prompts"], default=0) < 0 or not 0 <= kept["shown"]["place"] < count:
        raise Unreadable("a number of passes, or of the prompt that is shown, is out of range")
    compared, made = iter(zip(passes, own["compared"], strict=True)), list[Row]()
    for place, (alone, ours) in enumerate(traces):
        base = shared[place]
        same = ours.get("tokens") is None
        tokens = base["tokens"] if same else ours["tokens"]
        border.check(tokens, list[int])
        ours |= {"tokens": list(tokens), "text": base["text"] if same else ""}
        ours["passes"] = [next(compared) for _ in range(own["of_prompts"][place])]
        ours["passes"] = _with_tokens(ours["passes"], ours["tokens"])
        if place == kept["shown"]["place"]:
            ours |= {"text": kept["shown"]["text"], "passes": _all_drafted(ours["passes"], kept["shown"]["tokens"])}
        alone |= {"text": base["text"], "tokens": list(base["tokens"]), "passes": []}
        apart = {key: item for key, item in base.items() if key in OF_PROMPT} | {"baseline": alone, "speculative": ours}
        own_keys = columns[place] | rest[place] | apart
        made.append({key: own_keys[key] for key in hints_of(PromptRecord) if key in own_keys})
    return made


def _rows(columns: Columns, count: int) -> list[Row]:
    """The `count` rows of which these are the columns."""
    made: list[Row] = [{} for _ in range(count)]
    for key, values in columns.items():
        of_key = _rows(values, count) if isinstance(values, dict) else values
        if not isinstance(of_key, list) or len(of_key) != count:
            raise Unreadable(f"{border.shown(key)}: not a value for each of {count} rows")
        for row, value in zip(made, of_key, strict=True):
            row[key] = value
    return made


class _Counts(TypedDict):
    """The counts that tell which tokens each pass accepted."""

    accepted: int
    emitted: int
    parents: NotRequired[list[int] | None]
    path: NotRequired[list[int] | None]


def _with_tokens(passes: Iterable[tuple[Row, list[int]]], completion: Sequence[int]) -> list[Row]:
    """Passes with their draft tokens: those that the completion has, and those `compared`."""
    made, done = list[Row](), 0
    for one, compared in passes:
        border.check(one, _Counts)
        accepted = list(completion[done : done + min(one["accepted"], one["emitted"])])
        made.append(one | {"tokens": _tokens(one, accepted, compared)})
        done += one["emitted"]
    return made


def _tokens(one: Row, accepted: list[int], compared: list[int]) -> list[int]:
    parents, path = one.get("parents"), one.get("path")
    if parents is None or path is None:
        return accepted + compared
    found = dict(zip(path, accepted, strict=False)) | dict(zip(_first_children(parents, path), compared, strict=False))
    return [found.get(node, UNKNOWN) for node in range(len(parents))]


def _all_drafted(passes: Sequence[Row], tokens: Sequence[list[int]]) -> list[Row]:
    if len(passes) != len(tokens):
        raise Unreadable("the prompt that is shown has not the draft tokens of each pass")
    return [one | {"tokens": own} for one, own in zip(passes, tokens, strict=True)]
