"""A recommendation document in another engine's terms: the best row it can express, and why not a better."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from specbench.config.paths import shipped
from specbench.config.schema import SamplingConfig
from specbench.errors import UserError
from specbench.interop.serving.settings.engines import EAGLE, ENGINES
from specbench.interop.serving.settings.wanted import NotExpressible, Recommended, Weights
from specbench.recorded import to_json
from specbench.records.choosing import LoadSpan
from specbench.records.run_record import Row

SPAN = re.compile(r"(\d+)-(\d*):(\d+)")


class FileContent(TypedDict):
    """A file that an engine's command reads: its name and content."""

    name: str
    content: str


class EngineSettings(TypedDict):
    """The settings of an engine.

    `refused` holds a line for each better candidate that the engine cannot express; if it can express none, `command`
    is empty and `gamma` None. `no_gain` says that the ranking shows no gain for the candidate, if it shows none.
    """

    engine: str
    checked: str
    page: str
    candidate: str | None
    gamma: int | None
    estimated: float | None
    measure: NotRequired[str]  # what `estimated` is; absent: the calibrated speedup
    command: str
    settings: Mapping[str, Any]
    no_gain: NotRequired[str]
    file: FileContent | None
    notes: list[str]
    refused: list[str]


def settings_for(document: Mapping[str, Any], engine: str, schedule: Sequence[LoadSpan] = ()) -> EngineSettings:
    """The settings of `engine` for the best candidate of `document`, one of `specbench recommend`.

    Raises UserError if the document lacks a field that this requires.
    """
    known = ENGINES[engine]
    found: EngineSettings = {
        "engine": engine, "checked": known.checked, "page": known.page, "candidate": None, "gamma": None,
        "estimated": None, "command": "", "settings": {}, "file": None, "notes": [], "refused": [],
    }  # fmt: skip
    document = to_json(document)  # as it is saved, also if it was just made
    try:
        for row in document["rows"]:
            wanted = recommended(document, row, schedule)
            try:
                if how := row.get("vocabulary"):
                    raise NotExpressible(f"no settings of {known.title} are known here for vocabulary={how}")
                if row.get("tree"):
                    raise NotExpressible(f"{known.title} drafts no token trees like ours")
                settings = known.settings(wanted)
            except NotExpressible as reason:
                found["refused"] = list(dict.fromkeys([*found["refused"], f"{row['candidate']}: {reason}"]))
                continue
            found |= {
                "candidate": row["candidate"], "gamma": row["gamma"], "estimated": row["estimated"]["value"],
                "command": settings.command, "settings": settings.values, "notes": list(settings.notes),
                "file": None if settings.file is None else {"name": settings.file[0], "content": settings.file[1]},
            }  # fmt: skip
            if (why := without_gain(row["estimated"])) is not None:
                found["no_gain"] = why
            break
    except (KeyError, TypeError, IndexError, StopIteration) as error:
        raise UserError(f"--from: no document of `specbench recommend` ({type(error).__name__}: {error})") from error
    return found


def without_gain(estimated: Mapping[str, Any]) -> str | None:
    """A remark that a calibrated speedup is no gain, or might be none; None if its interval lies above 1."""
    value, low, high = (estimated.get(name) for name in ("value", "low", "high"))
    if value is None or (low is not None and low > 1) or "low" not in estimated:
        return None
    interval = "one prompt" if low is None or high is None else f"95%: {low:.2f}–{high:.2f}"
    return (
        f"no gain is shown here ({value:.2f}×, {interval}): serve without a draft, or measure these settings against "
        "that: specbench server URL plain=URL"
    )


def recommended(document: Mapping[str, Any], row: Row, schedule: Sequence[LoadSpan] = ()) -> Recommended:
    """The candidate and gamma of `row` in plain values."""
    config = config_of(document, row)
    draft, sampling = config["draft"], config["sampling"]
    return Recommended(
        target=weights_of(config["target"]),
        kind=draft["kind"],
        draft=draft_weights(draft),
        options=draft,
        gamma=row["gamma"],
        rule=row["accept"],
        temperature=sampling["temperature"],
        top_k=sampling["top_k"],
        top_p=sampling["top_p"],
        processing=SamplingConfig(**sampling).processing(),
        schedule=tuple(schedule),
        encoder_decoder=bool(document.get("encoder_decoder")),
    )


def config_of(document: Mapping[str, Any], row: Row) -> Mapping[str, Any]:
    """The config of the candidate of `row`: there is one for each, in the order of the rows of alpha."""
    found: Mapping[str, Any] = next(
        config
        for config, alpha in zip(document["configs"], document["alpha_rows"], strict=True)
        if (alpha["draft"], alpha["accept"]) == (row["draft"], row["accept"])
    )
    return found


def parse_schedule(text: str) -> tuple[LoadSpan, ...]:
    """`1-8:5,9-32:2,33-:0`: γ=5 for up to 8 sequences at a time, 2 for up to 32, and no drafts for more.

    Raises UserError if it is not that, or leaves a gap.
    """
    spans = []
    first = 1
    for part in text.split(","):
        found = SPAN.fullmatch(part.strip())
        if found is None:
            raise UserError(f"--schedule {text}: must be spans of batch sizes with their γ, 1-8:5,9-32:2,33-:0")
        span = LoadSpan(int(found[1]), int(found[2]) if found[2] else None, int(found[3]))
        if span.first != first or (span.last is not None and span.last < span.first):
            raise UserError(f"--schedule {text}: {part.strip()} must begin at {first} and not end before it")
        spans.append(span)
        first = 0 if span.last is None else span.last + 1  # nothing can follow an open end
    if not any(span.gamma for span in spans):
        raise UserError(f"--schedule {text}: drafts at no batch size; give a γ above 0, or serve without a draft")
    return tuple(spans)


def draft_weights(draft: Mapping[str, Any]) -> Weights | None:
    """The weights of a draft, of kinds that engines read; of EAGLE those that do not ship."""
    own = draft["kind"] == "model" or (draft["kind"] in EAGLE and bool(draft.get("path") or draft.get("hub")))
    return weights_of(draft) if own else None


def weights_of(model: Mapping[str, Any]) -> Weights:
    """Where the weights are: the first of path, hub and shipped that is set, as a run takes them."""
    if model.get("path"):
        return Weights(model["path"])
    if model.get("hub"):
        return Weights(model["hub"], model.get("revision"))
    if model.get("shipped"):
        return Weights(str(shipped("models", model["shipped"])))
    return Weights(model.get("name") or "MODEL")
