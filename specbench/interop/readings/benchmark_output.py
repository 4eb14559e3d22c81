"""The results that the engines' own benchmarks print at their end, as text on the screen and as JSON.

`vllm bench serve` has the difference of the server's counters. `sglang.bench_serving` has a mean without counts.
`trtllm-bench` counts tokens written and iterations, and supposes that every iteration drafted as many tokens as the
longest: one that drafted fewer, or none, looks like one of the longest that was rejected.
"""

import math
import re
from collections.abc import Mapping

from specbench.errors import UserError
from specbench.interop.readings.document import Document, number, whole_number, whole_numbers
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
    together,
    totals,
)

TITLE = "Serving Benchmark Result"
VLLM = "spec_decode_"
NAMES = {PASSES: "num_drafts", DRAFTED: "draft_tokens", ACCEPTED: "accepted_tokens"}
POSITIONS = "per_position_acceptance_rates"
TEXT = {PASSES: "Drafts", DRAFTED: "Draft tokens", ACCEPTED: "Accepted tokens"}
LINE = re.compile(r"(Drafts|Draft tokens|Accepted tokens|\s+Position \d+):\s+(\d+(?:\.\d+)?)\s*")
SGLANG = re.compile(r"Accept length:\s+(\d+(?:\.\d+)?)\s*")
PERCENT = 0.00005  # a rate by position is printed in percent with two decimals
TENSORRT = ("num_draft_tokens", "num_accepted_draft_tokens", "draft_acceptance_rate", "acceptance_length")
TENSORRT_LINE = re.compile(
    r"\[(DT|ADT|DAR|AL)\] AVERAGE\s*: (\d+(?:\.\d+)?)|"
    r"(Number of requests|Average Output Length \(tokens\)):\s+(\d+(?:\.\d+)?)"
)


def is_tensorrt(document: Document) -> bool:
    """Whether the document is a report of `trtllm-bench`, as JSON or as text."""
    if document.is_json:
        return document.holds("decoding_stats") or document.holds_all("request_info", "world_info")
    return document.has("[DAR] AVERAGE", "= REQUEST DETAILS")


def read_vllm_json(document: Document) -> Reading:
    """The reading of `--save-result` or `--append-result`."""
    tallies, names = [], {key: VLLM + name for key, name in NAMES.items()}
    for value in document.values:
        if value.fields.get(VLLM + NAMES[PASSES]) is None:
            continue
        passes, drafted, accepted = whole_numbers(value.fields, names.values(), value.where)
        rates = value.fields.get(VLLM + POSITIONS) or []
        if not isinstance(rates, list):
            raise UserError(f"{value.where}: {VLLM}{POSITIONS} is not a list of rates")
        rates = [number(rate, value.where, VLLM + POSITIONS) for rate in rates]
        tallies.append(_tally(accepted, drafted, passes, rates, value.where, 0.0))
    return _vllm(document, tallies, names)


def read_vllm_text(document: Document) -> Reading:
    """The reading of what `vllm bench serve` prints."""
    tallies, sums, rates = list[Tally](), dict[str, int](), list[float]()

    def tally_run() -> None:
        if not sums:
            return
        if absent := [name for name in TEXT.values() if name not in sums]:
            raise UserError(f"{document.path}: no '{absent[0]}:' beside '{next(iter(sums))}:'; the file is cut off")
        passes, drafted, accepted = (sums[name] for name in TEXT.values())
        tallies.append(_tally(accepted, drafted, passes, rates, str(document.path), PERCENT))

    for line in document.lines:
        if TITLE in line:
            tally_run()
            sums, rates = {}, []
        elif match := LINE.fullmatch(line):
            if match[1] in TEXT.values():
                sums[match[1]] = _count(match[2], document)
            else:
                rates.append(float(match[2]) / 100)
    tally_run()
    return _vllm(document, tallies, TEXT)


def read_sglang_json(document: Document) -> Reading:
    """The reading of the mean that `sglang.bench_serving` asks the server for."""
    found = [
        number(value.fields["accept_length"], value.where, "accept_length")
        for value in document.values
        if value.fields.get("accept_length") is not None
    ]
    return _sglang(document, "accept_length", found)


def read_sglang_text(document: Document) -> Reading:
    """The reading of the mean that `sglang.bench_serving` prints."""
    found = [float(match[1]) for line in document.lines if (match := SGLANG.fullmatch(line))]
    return _sglang(document, "Accept length", found)


def read_tensorrt(document: Document) -> Reading:
    """The reading of `--report_json` of `trtllm-bench`, or of what it prints."""
    where = str(document.path)
    found = _tensorrt_json(document) if document.is_json else _tensorrt_text(document)
    drafted, accepted, rate, length = (found.get(name) for name in TENSORRT)
    requests, written = found.get("num_requests"), found.get("avg_output_length")
    if drafted is None or accepted is None or rate is None or length is None:
        raise UserError(f"{where}: a report of trtllm-bench without draft tokens; give a speculative_config")
    if requests is None or written is None:
        raise UserError(f"{where}: no number of requests or no mean output length; the file is cut off")
    count = whole_number(requests, where, "the number of requests")
    passes = round(count * (written - accepted))
    if not drafted or passes < 1:
        raise UserError(f"{where}: a report of trtllm-bench in which nothing was drafted")
    tally = Tally.of_sums(round(count * accepted), round(count * drafted), passes, where)
    names = {DRAFTED: "num_draft_tokens, average × requests", ACCEPTED: "num_accepted_draft_tokens, average × requests"}
    printed = totals(names, tally, ends="out")
    for name, value, meaning in ((TENSORRT[2], rate, RATE), (TENSORRT[3], length, LENGTH)):
        printed.append(Printed(f"{name}, average", value, meaning, "mean of requests", "out"))
    notes = [
        f"means over {count} requests: passes are tokens written less accepted, and α is by moments",
        "trtllm-bench supposes that every iteration drafted the most: where one drafted fewer tokens or none, α is "
        "too low",
    ]
    return Reading(printed, [tally], ends="out", notes=notes)


def _tally(accepted: int, drafted: int, passes: int, rates: list[float], where: str, rounding: float) -> Tally:
    """The tally of sums and rates by position of all passes; rates that do not add up to the sums are left out."""
    at_position = [round(rate * passes) for rate in rates]
    if abs(sum(at_position) - accepted) > len(rates) * (passes * rounding + 0.5 * (rounding > 0)):
        at_position = []
    return Tally.of_sums(accepted, drafted, passes, where, at_position)


def _vllm(document: Document, tallies: list[Tally], names: Mapping[str, str]) -> Reading:
    tallies = [one for one in tallies if one.drafted]
    if not tallies:
        raise UserError(
            f"{document.path}: a benchmark of vLLM without speculative decoding; start the server with "
            "--speculative-config"
        )
    tally = together(tallies)
    printed = totals(names, tally, ends="in")
    printed.append(Printed("acceptance rate", tally.rate or 0.0, RATE, ends="in"))
    printed.append(Printed("acceptance length", tally.length or 1.0, LENGTH, ends="in"))
    printed += marginals("position {}", tally.accepted_at, tally.passes)
    notes = ["what the server's counters grew by during the benchmark; other requests count, too"]
    if len(tallies) > 1:
        notes.append(f"{len(tallies)} benchmarks together")
    if tally.rejections is None:
        notes.append(DIFFERENT_LENGTHS)
    return Reading(printed, [tally], ends="in", notes=notes)


def _sglang(document: Document, name: str, found: list[float]) -> Reading:
    if not found:
        raise UserError(
            f"{document.path}: a benchmark of SGLang without speculative decoding; start the server with "
            "--speculative-algorithm"
        )
    printed = [Printed(name, sum(found) / len(found), LENGTH, ends="out")]
    notes = ["the server's mean since its start, without counts: for α read meta_info of responses"]
    return Reading(printed, notes=notes)


def _tensorrt_json(document: Document) -> dict[str, float]:
    found: dict[str, float] = {}
    for value in document.values:
        stats, about = value.fields.get("decoding_stats"), value.fields.get("request_info")
        for name in TENSORRT:
            inner = stats.get(f"{name}_percentiles") if isinstance(stats, dict) else None
            if isinstance(inner, dict):
                found[name] = number(inner.get("average"), value.where, f"{name}_percentiles.average")
        for name in ("num_requests", "avg_output_length"):
            if isinstance(about, dict) and name in about:
                found[name] = number(about[name], value.where, name)
        break
    return found


def _tensorrt_text(document: Document) -> dict[str, float]:
    short: dict[str, str] = dict(zip(("DT", "ADT", "DAR", "AL"), TENSORRT, strict=True))
    short |= {"Number of requests": "num_requests", "Average Output Length (tokens)": "avg_output_length"}
    found: dict[str, float] = {}
    for line in document.lines:
        if match := TENSORRT_LINE.search(line):
            found[short[match[1] or match[3]]] = float(match[2] or match[4])
    return found


def _count(text: str, document: Document) -> int:
    """A count as printed, maybe with a point. Raises UserError if it is no finite number."""
    number = float(text)
    if not math.isfinite(number):
        raise UserError(f"{document.path}: a count of {text}; the file is damaged")
    return int(number)
