"""The `/metrics` page of a server, in Prometheus' text format: counters of vLLM and llama.cpp, gauges of SGLang.

vLLM and llama.cpp count the same things under the same names after their prefix. They count a pass before they look for
the end of a text in it, so that tokens after the end count as if the text continued.
"""

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from specbench.errors import UserError
from specbench.interop.readings.document import Document
from specbench.interop.readings.reading import (
    ACCEPTED,
    DIFFERENT_LENGTHS,
    DRAFTED,
    LENGTH,
    PASSES,
    RATE,
    Printed,
    Reading,
    Tally,
    marginals,
    totals,
)

SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
FAMILY = "spec_decode_num_"
NAMES = {PASSES: "drafts", DRAFTED: "draft_tokens", ACCEPTED: "accepted_tokens"}
PER_POSITION = "accepted_tokens_per_pos"


class Counters(NamedTuple):
    """The counters of a page; `at_position`: accepted tokens by position; `series`: label sets of a name."""

    passes: int
    drafted: int
    accepted: int
    at_position: list[int]
    series: int


@dataclass
class Samples:
    """Values by name, summed over labels, and by draft position. `series`: number of label sets by name."""

    by_name: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    by_position: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    series: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def is_page(document: Document, prefix: str) -> bool:
    """Whether the document holds metrics whose names begin with `prefix`."""
    return not document.is_json and document.has(*(f"\n{before}{prefix}" for before in ("", "# HELP ", "# TYPE ")))


def samples(document: Document, prefix: str) -> Samples:
    """The values whose names begin with `prefix`. Raises UserError at a line that breaks off."""
    found = Samples()
    for number, line in enumerate(document.lines, 1):
        if not line.startswith(prefix):
            continue
        match = SAMPLE.fullmatch(line)
        try:
            value = float(match[3]) if match else None
        except ValueError:
            value = None
        if match is None or value is None:
            raise UserError(f"{document.path}, line {number}: a metric without a value; the file is cut off or damaged")
        if not math.isfinite(value):  # a summary without observations; a counter that is needed will be missed
            continue
        name = match[1].removeprefix(prefix).removesuffix("_total")
        labels = dict(LABEL.findall(match[2] or ""))
        if name.endswith("_created"):
            continue
        if name.endswith(PER_POSITION) and labels.get("position", "").isdigit():
            found.by_position[int(labels["position"])] += value
            continue
        found.by_name[name] += value
        found.series[name] += 1
    return found


def read_counters(prefix: str, engine: str, remedy: str, document: Document, since: Document | None) -> Reading:
    """The reading of the counters `<prefix>spec_decode_num_*`."""
    now = _counters(document, prefix, engine, remedy)
    if since is not None:
        now = _grown(now, _counters(since, prefix, engine, remedy), document, since)
    passes, drafted, accepted, at_position, series = now
    if not passes:
        raise UserError(f"{document.path}: no pass has been counted yet; read it again after some requests")
    tally = Tally.of_sums(accepted, drafted, passes, str(document.path), at_position)
    base = f"{prefix}{FAMILY}"
    printed = totals({key: f"{base}{name}_total" for key, name in NAMES.items()}, tally, ends="in")
    printed += marginals(base + PER_POSITION + "_total{{{}}} / drafts", at_position, passes)
    printed.append(Printed("accepted_tokens / draft_tokens", accepted / drafted, RATE, ends="in"))
    printed.append(Printed("1 + accepted_tokens / drafts", 1 + accepted / passes, LENGTH, ends="in"))
    if since is None:
        notes = ["counters since the server started: --since EARLIER leaves out what was counted before, as a warm-up"]
    else:
        notes = [f"what the counters grew by since {since.path}"]
    if series > 1:
        notes.append(f"summed over {series} engines or models")
    if tally.rejections is None:
        notes.append(DIFFERENT_LENGTHS)
    return Reading(printed, [tally], ends="in", notes=notes)


def _grown(now: Counters, before: Counters, document: Document, earlier: Document) -> Counters:
    """The increase of each counter since `before`. Raises UserError if one fell."""
    positions = [
        later - (before.at_position[place] if place < len(before.at_position) else 0)
        for place, later in enumerate(now.at_position)
    ]
    passes, drafted, accepted = (later - first for later, first in zip(now[:3], before[:3], strict=True))
    if min(passes, drafted, accepted, *positions) < 0:
        raise UserError(
            f"{document.path}: counted less than {earlier.path}; the files are swapped, or the server started anew"
        )
    return Counters(passes, drafted, accepted, positions, now.series)


def _counters(document: Document, prefix: str, engine: str, remedy: str) -> Counters:
    """The counters of a page. Raises UserError if the page is damaged, or without speculative decoding."""
    found = samples(document, prefix)
    values = {key: found.by_name.get(FAMILY + name) for key, name in NAMES.items()}
    absent = [NAMES[key] for key, value in values.items() if value is None]
    if len(absent) == len(NAMES):
        raise UserError(f"{document.path}: metrics of {engine} without speculative decoding ({FAMILY}*); {remedy}")
    if absent:
        raise UserError(f"{document.path}: no {prefix}{FAMILY}{absent[0]}; the file is cut off or not the whole page")
    if not all(map(math.isfinite, [*found.by_position.values(), *(value or 0.0 for value in values.values())])):
        raise UserError(f"{document.path}: a counter of {engine} is not a finite number; the file is damaged")
    passes, drafted, accepted = (round(values[key] or 0) for key in (PASSES, DRAFTED, ACCEPTED))
    at_position = [round(found.by_position[place]) for place in sorted(found.by_position)]
    if at_position and sum(at_position) != accepted:
        raise UserError(
            f"{document.path}: {sum(at_position)} accepted tokens by position and {accepted} in all; the file is cut "
            "off, or not one page"
        )
    return Counters(passes, drafted, accepted, at_position, found.series[FAMILY + "drafts"])


def read_sglang(document: Document) -> Reading:
    """The reading of two gauges of the last interval; no counts."""
    found = samples(document, "sglang:")
    gauges = {"spec_accept_length": LENGTH, "spec_accept_rate": RATE}
    printed = [
        Printed(f"sglang:{name}", found.by_name[name] / found.series[name], meaning, "mean of windows", "out")
        for name, meaning in gauges.items()
        if found.series.get(name)
    ]
    if not printed:
        raise UserError(
            f"{document.path}: metrics of SGLang without speculative decoding (spec_accept_*); start the server with "
            "--speculative-algorithm"
        )
    notes = ["gauges of the last interval, without counts: for α read meta_info of responses"]
    return Reading(printed, notes=notes)
