"""llama.cpp: the server's log, its `timings`, and the final output of `llama-speculative`.

Tokens accepted after the end of a text count. Rates by position are over all passes with a draft, also over those that
drafted fewer tokens than that position (a draft ends early if its own probability falls below --draft-p-min).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from specbench.errors import UserError
from specbench.interop.readings.document import Document, whole_numbers
from specbench.interop.readings.reading import (
    ACCEPTED,
    DRAFTED,
    LENGTH,
    PASSES,
    RATE,
    Printed,
    Reading,
    Tally,
    contradiction,
    marginals,
    mean_of_requests,
    together,
    totals,
)

REQUEST = re.compile(r"draft acceptance(?: rate)?\s*=\s*(\d\.\d+)\s*\(\s*(\d+) accepted\s*/\s*(\d+) generated\)(.*)")
MEAN = re.compile(r"mean (?:acceptance length|len)\s*=\s*(\d+\.\d+)")
PER_POSITION = re.compile(r"(?:acceptance rate per position|acc(?: rate)?(?:/| per )pos)\s*=\s*\(([^)]*)\)")
STATISTICS = re.compile(
    r"statistics\s+([\w-]+): #calls(?:\(b,g,a\)\s*=\s*\d+ (\d+) \d+)?.*?#gen drafts\s*=\s*(\d+), "
    r"#acc drafts\s*=\s*(\d+), #gen tokens\s*=\s*(\d+), #acc tokens\s*=\s*(\d+)(.*)"
)
BEGUN = re.compile(r"draft acceptance(?: rate)?\s*=|statistics\s+[\w-]+:.*#gen drafts")  # of either, cut off or whole
PASS = re.compile(r"slot\s+\S+ id\s+(\d+) \| task (-?\d+) \|.*accepted\s+(\d+)/\s*(\d+) draft tokens")
PASS_MARK = "draft tokens, new n_tokens"
PROGRAM = re.compile(r"^.*\b(n_draft|n_drafted|n_accept)\s*= (\d+)\s*$")
PROGRAM_NAMES = ("n_draft", "n_drafted", "n_accept")
TIMINGS = {DRAFTED: "draft_n", ACCEPTED: "draft_n_accepted"}
ROUNDS, WRITTEN = "draft_rounds", "predicted_n"
COUNTED = {PASSES: "#gen drafts", DRAFTED: "#gen tokens", ACCEPTED: "#acc tokens"}
ALL_KINDS = "all kinds"


def is_log(document: Document) -> bool:
    """Whether the document is a log of `llama-server`, or what `llama-speculative` prints."""
    if document.is_json or document.has(PASS_MARK):
        return False
    told = document.has("draft acceptance", "#gen drafts") and any(map(BEGUN.search, document.lines))
    return told or (document.has("n_drafted") and "n_drafted" in _sums(document))


def read_log(document: Document) -> Reading:
    """The reading of llama.cpp's log.

    It counts the lines of requests; without such lines the last statistics of each kind of draft, otherwise the counts
    at the program's end.
    """
    requests, statistics, rates, lengths = list[Tally](), dict[str, Tally](), list[float](), list[float]()
    counted = Tally(0, 0, 0)  # what the statistics said before the newest request
    for number, line in enumerate(document.lines, 1):
        where = f"{document.path}, line {number}"
        if match := REQUEST.search(line):
            if requests:
                requests[-1], counted = _with_passes(requests[-1], statistics, counted)
            rate, accepted, drafted, rest = match[1], int(match[2]), int(match[3]), match[4]
            mean = MEAN.search(rest)
            requests.append(_tally(accepted, drafted, float(mean[1]) if mean else None, _positions(rest), where))
            rates.append(float(rate))
            lengths += [float(mean[1])] if mean else []
        elif match := STATISTICS.search(line):
            drafts, firsts, drafted, accepted = (int(match[group]) for group in (3, 4, 5, 6))
            tally = _of_statistics(drafts, firsts, drafted, accepted, match[7], where)
            # A call drafts for one pass of the target, and may find nothing to draft.
            statistics[match[1]] = replace(tally, undrafted=max(0, int(match[2] or 0) - drafts))
        elif BEGUN.search(line):
            raise UserError(f"{where}: a line on drafts that breaks off; the file is cut off or damaged")
    if not requests and not statistics:
        return _program(document)
    if not requests:
        used = {name: tally for name, tally in statistics.items() if tally.drafted}
        if not used:
            raise UserError(f"{document.path}: the statistics of llama.cpp say that nothing was drafted")
        return _with_kinds(_of_sums(_chain(used), used), used)
    requests[-1], _ = _with_passes(requests[-1], statistics, counted)
    requests = [one for one in requests if one.drafted]
    if not requests:
        raise UserError(f"{document.path}: the log of llama.cpp says that nothing was drafted")
    tally = together(requests)
    names = {DRAFTED: "generated", ACCEPTED: "accepted"}
    by_request, notes = True, _notes(tally)
    last = _chain(statistics)
    if tally.passes is None and (last.drafted, last.accepted) == (tally.drafted, tally.accepted):
        tally, by_request = replace(last, rejections=None, reached_at=(), accepted_at=()), False
    if not lengths and not tally.accepted_at and tally.passes is not None:
        names = {PASSES: "#gen drafts", **names}
        notes = ["passes are the drafts that the statistics count; positions are not in it: α is by moments"]
    printed = [*totals(names, tally, ends="in"), mean_of_requests("draft acceptance", rates, RATE, "in")]
    if lengths:
        printed.append(mean_of_requests("mean acceptance length", lengths, LENGTH, "in"))
    printed += marginals("acceptance rate per position", tally.accepted_at, tally.passes)
    notes += _undrafted(tally)
    reading = Reading(printed, requests if by_request else [tally], by_request=by_request, ends="in", notes=notes)
    return _with_kinds(reading, {name: one for name, one in statistics.items() if one.drafted})


def read_passes(document: Document) -> Reading:
    """The reading of the verbose log, which has a line for each pass with a draft."""
    requests: dict[tuple[str, str], Counter[tuple[int, int]]] = defaultdict(Counter)
    for number, line in enumerate(document.lines, 1):
        if match := PASS.search(line):
            accepted, drafted = int(match[3]), int(match[4])
            Tally.of_passes([(drafted, accepted)], f"{document.path}, line {number}")  # an error names the line
            requests[match[1], match[2]][drafted, accepted] += 1
    tallies = [Tally.of_histogram(passes, str(document.path)) for passes in requests.values()]
    if not tallies:
        raise UserError(f"{document.path}: no line of llama.cpp with 'accepted N/M draft tokens' after slot and task")
    tally = together(tallies)
    printed = totals({DRAFTED: "draft tokens, summed", ACCEPTED: "accepted, summed"}, tally, ends="in")
    notes = [f"{tally.passes} passes with a draft, one line each; passes without one have no line"]
    return Reading(printed, tallies, by_request=True, ends="in", notes=notes)


def read_timings(document: Document) -> Reading:
    """The reading of `timings` of responses: drafted and accepted tokens; for mlx-vlm also passes (`draft_rounds`).

    mlx-vlm counts accepted tokens after the end of a completion, and writes its first token before the first round.
    """
    tallies = []
    for value in document.values:
        timings: Mapping[str, Any] = value.fields.get("timings") or {}
        if not isinstance(timings, dict) or not timings.get(TIMINGS[DRAFTED]):
            continue
        drafted, accepted = whole_numbers(timings, TIMINGS.values(), value.where)
        if timings.get(ROUNDS):
            rounds, written = whole_numbers(timings, (ROUNDS, WRITTEN), value.where)
            tally = Tally.of_sums(accepted, drafted, rounds, value.where)
            tallies.append(replace(tally, emitted=max(0, written - 1)))
        else:
            tallies.append(Tally.of_sums(accepted, drafted, None, value.where))
    if not tallies:
        raise UserError(f"{document.path}: timings of llama.cpp without draft_n; start the server with a draft")
    tally = together(tallies)
    printed = totals({PASSES: ROUNDS, **TIMINGS}, tally, ends="in")
    printed.append(Printed("draft_n_accepted / draft_n", tally.rate or 0.0, RATE, ends="in"))
    if tally.length is not None:
        printed.append(Printed(f"({WRITTEN} - 1) / {ROUNDS}", tally.length, LENGTH, ends="out"))
        notes = ["tokens accepted after the end of a completion count in α, not in tokens per pass"]
    else:
        notes = ["passes are not in it: give --gamma for α, or read the server's log"]
    return Reading(printed, tallies, by_request=True, ends="in", notes=notes)


def _program(document: Document) -> Reading:
    """The end of `llama-speculative`: sums of one text."""
    found = _sums(document)
    for name in PROGRAM_NAMES:
        if name not in found:
            raise UserError(f"{document.path}: no '{name} ='; the file is cut off")
    longest, drafted, accepted = (found[name] for name in PROGRAM_NAMES)
    tally = Tally.of_sums(accepted, drafted, None, str(document.path))
    if not drafted:
        raise UserError(f"{document.path}: the log of llama.cpp says that nothing was drafted")
    printed = totals({DRAFTED: "n_drafted", ACCEPTED: "n_accept"}, tally, "one request", "in")
    printed.append(Printed("accept", accepted / drafted, RATE, "one request", "in"))
    return Reading(
        printed, [tally], ends="in", notes=[f"passes are not in it: --gamma {longest} if each drafted {longest}"]
    )


def _sums(document: Document) -> dict[str, int]:
    """The sums that the program prints at its end, by name."""
    matches = (PROGRAM.search(line) for line in document.lines)
    return {match[1]: int(match[2]) for match in matches if match is not None}


def _positions(rest: str) -> list[float]:
    match = PER_POSITION.search(rest)
    return [float(rate) for rate in match[1].split(",")] if match and match[1].strip() else []


def _tally(accepted: int, drafted: int, mean: float | None, rates: list[float], where: str) -> Tally:
    """The tally of a line, with the passes from the finer of its two rounded means."""
    if accepted > drafted:
        raise contradiction(where, accepted, drafted)
    total = sum(rates)
    if accepted and total:
        passes = round(accepted / total)
    elif accepted and mean is not None and mean > 1:
        passes = round(accepted / (mean - 1))
    else:
        return Tally.of_sums(accepted, drafted, None, where)
    # Trailing positions that no draft reached are printed as 0.
    while rates and drafted < passes * len(rates) and rates[-1] == 0:
        rates = rates[:-1]
    return Tally.of_sums(accepted, drafted, passes, where, [round(rate * passes) for rate in rates])


def _of_statistics(drafts: int, firsts: int, drafted: int, accepted: int, rest: str, where: str) -> Tally:
    """`#acc drafts` are passes that accepted the first token at least."""
    at_position = [round(rate * drafts) for rate in _positions(rest)] or ([firsts] if drafted == drafts else [])
    return Tally.of_sums(accepted, drafted, drafts, where, at_position)


def _chain(statistics: Mapping[str, Tally]) -> Tally:
    """The passes of all kinds of draft, of which each is asked until one drafts."""
    tally = together(list(statistics.values()))
    calls = max(((one.passes or 0) + one.undrafted for one in statistics.values()), default=0)
    return replace(tally, undrafted=max(0, calls - (tally.passes or 0)))


def _of_sums(tally: Tally, kinds: Iterable[str]) -> Reading:
    """The reading of the statistics of one or several kinds of draft."""
    printed = [*totals(COUNTED, tally, ends="in"), *marginals("#acc rate/pos", tally.accepted_at, tally.passes)]
    notes = [f"sums since the server's start, of {', '.join(kinds)}", *_notes(tally), *_undrafted(tally)]
    return Reading(printed, [tally], ends="in", notes=notes)


def _with_kinds(reading: Reading, used: Mapping[str, Tally]) -> Reading:
    """`reading`; if the log has several kinds of draft, with a reading for each over its own passes."""
    if len(used) < 2:
        return reading
    kinds = {name: _of_sums(replace(one, undrafted=0), [name]) for name, one in used.items()}
    return replace(reading, kinds={ALL_KINDS: reading, **kinds})


def _undrafted(tally: Tally) -> list[str]:
    if not tally.undrafted or tally.passes is None:
        return []
    total = tally.passes + tally.undrafted
    return [f"nothing was drafted for {tally.undrafted} of {total} passes (#calls): tokens per pass is over all"]


def _with_passes(request: Tally, statistics: Mapping[str, Tally], before: Tally) -> tuple[Tally, Tally]:
    """A request with its passes, and the sums that the statistics have come to.

    The statistics count drafts since the server's start, and each draft is verified by one pass. What they grew by is
    the request's if drafted and accepted tokens agree, so that no other request was served meanwhile.
    """
    now = _chain(statistics)
    if now.passes is None or now.drafted is None:
        return request, now
    grown = (now.accepted - before.accepted, now.drafted - (before.drafted or 0))
    if grown != (request.accepted, request.drafted):
        return request, now
    passes, undrafted = now.passes - (before.passes or 0), now.undrafted - before.undrafted
    return replace(request, passes=request.passes or passes, undrafted=max(0, undrafted)), now


def _notes(tally: Tally) -> list[str]:
    if tally.rejections is not None:
        return []
    if tally.passes is None:
        return ["passes are not in it: give --gamma for α"]
    return ["passes drafted different numbers of tokens (--draft-p-min): α is by moments"]
