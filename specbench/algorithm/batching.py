"""Several prompts at once: continuous batching.

Rows run in lockstep. The drafts' reads of all rows are answered first, in one run if they are due together; when all
rows have drafted, the target reads all proposals in one run. Each row accepts as many tokens as its own verdict allows
and continues from there: no row is cut to the shortest. When a row ends, the next waiting prompt takes its place before
the next pass.

A pass of the batch is timed as a whole: all rows receive the same moments, so the times of `Pass` and `Trace.steps_s`
are walltimes, which include waiting for other rows, and `Trace.decode_s` is the row's share of them: shares sum to the
time of the batch. While prompts of joining rows are read, the clock of the others is paused; that time is in
`Trace.start_s`.

Requests that arrive over time (`Arrivals`) join when they have arrived and a row is free. Each turn of the batch (rows
that join, then a pass of all rows) can be watched (`Turn`): its times leave out nothing that the machine did.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from specbench.algorithm.decoding import Decoding, Moment
from specbench.engine.batch import batch_of, read_together
from specbench.engine.clock import RUNS
from specbench.engine.reads import Read
from specbench.engine.session import Model
from specbench.engine.time_marks import marking
from specbench.records.decoded import Trace

WITHIN = Moment.DRAFTED, Moment.VERIFIED  # a pass


@dataclass
class _Row:
    """A running sequence, its pending reads, and the number of rows in each of its passes."""

    index: int
    decoding: Decoding
    asked: Read | Moment
    rows: list[int] = field(default_factory=list)

    def go_on(self, answer: Any) -> Trace | None:
        """Run until the next read, or until the trace is complete."""
        try:
            self.asked = self.decoding.send(answer)
        except StopIteration as over:
            return _shared(over.value, self.rows)
        return None


@dataclass(frozen=True)
class Turn:
    """Rows `joined` between `began_s` and `started_s`; from then to `ended_s` all of `rows` had a pass.

    Sequences are numbered in their order. Times are of the clock of the arrivals, or of the target's.
    """

    joined: Sequence[int]
    rows: Sequence[int]
    began_s: float
    started_s: float
    ended_s: float


class Arrivals:
    """Requests that arrive at `times` (seconds, not decreasing, from the moment when this is made).

    While nothing runs and nothing has arrived, the clock moves on to the next arrival; nobody sleeps.
    """

    def __init__(self, decodings: Iterable[Decoding], times: Sequence[float], now: Callable[[], float]) -> None:
        self._waiting, self._times, self._now = enumerate(decodings), times, now
        self._taken, self._earlier_s = 0, now()

    def clock(self) -> float:
        """Seconds since the beginning, with the time that was skipped."""
        return self._now() - self._earlier_s

    def take(self, most: int, idle: bool) -> list[tuple[int, Decoding]]:
        """Up to `most` requests that have arrived; if `idle`, the next one at least, unless none is left."""
        if idle and self._taken < len(self._times):
            self._earlier_s -= max(0.0, self._times[self._taken] - self.clock())
        now, ready = self.clock(), self._taken
        while ready < len(self._times) and self._times[ready] <= now + 1e-9:  # what was skipped is rounded
            ready += 1
        found = list(islice(self._waiting, min(most, ready - self._taken)))
        self._taken += len(found)
        return found


def together(
    decodings: Iterable[Decoding] | Arrivals, rows: int, target: Model, watch: Callable[[Turn], None] | None = None
) -> list[Trace]:
    """Run `decodings`, at most `rows` of them at a time, in order, and return their traces.

    `target` is the model whose sessions they use; `watch` is called after every turn.
    """
    arrivals = decodings if isinstance(decodings, Arrivals) else None
    waiting = enumerate(() if isinstance(decodings, Arrivals) else decodings)
    clock = (lambda: 0.0) if watch is None else target.now if arrivals is None else arrivals.clock
    at_work: list[_Row] = []
    traces: dict[int, Trace] = {}
    mark = marking(target)
    stopped_s, moment = 0.0, mark()
    while True:
        joining, turn_began = [], clock()
        free = rows - len(at_work)
        if new := list(islice(waiting, free)) if arrivals is None else arrivals.take(free, idle=not at_work):
            turn_began = turn_began if at_work else clock()  # without the wait for an arrival
            began, ran = target.now(), RUNS.seconds
            joining = [_Row(index, decoding, next(decoding)) for index, decoding in new]
            stopped_s, RUNS.seconds = stopped_s + target.now() - began, ran
        if not at_work:
            moment = mark() - stopped_s
        for row in joining:
            row.go_on(moment)
        at_work += joining
        if not at_work:
            return [traces[index] for index in range(len(traces))]
        turn_started, indices = clock(), [row.index for row in at_work]
        while not all(row.asked is Moment.OVER for row in at_work):
            if due := _due(at_work, target):
                for row, logits_LV in zip(due, read_together([_read(row) for row in due]), strict=True):
                    row.go_on(logits_LV)
            else:
                moment = mark() - stopped_s
                for row in at_work:
                    if row.asked in WITHIN:
                        row.go_on(moment)
        moment = mark() - stopped_s
        staying = []
        for row in at_work:
            row.rows.append(len(at_work))
            if (trace := row.go_on(moment)) is None:
                staying.append(row)
            else:
                traces[row.index] = trace
        at_work = staying
        if watch is not None:
            watch(Turn([row.index for row in joining], indices, turn_began, turn_started, clock()))


def _read(row: _Row) -> Read:
    assert isinstance(row.asked, Read)
    return row.asked


def _due(at_work: Sequence[_Row], target: Model) -> list[_Row]:
    """The rows whose reads are answered next, all by the same model.

    The target's reads come last, after the reads of all drafts. Inside a cascade the cheaper model's reads come first.
    """
    waiting = [row for row in at_work if isinstance(row.asked, Read)]
    if not waiting:
        return []
    batches = [batch_of(_read(row).session) for row in waiting]
    ranks = [(batch is target, batch.operations if batch is not None else 0.0) for batch in batches]
    first = min(ranks)
    return [row for row, rank in zip(waiting, ranks, strict=True) if rank == first]


def _shared(trace: Trace, rows: list[int]) -> Trace:
    """`trace` with the row's share of the time of its passes; `rows` is the number of rows in each pass."""
    times = trace.steps_s or [one.draft_s + one.verify_s + one.accept_s for one in trace.passes]
    return replace(trace, decode_s=sum(time / of for time, of in zip(times, rows, strict=True)), rows=rows)
