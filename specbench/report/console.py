"""The terminal: text of others as it is, progress of a run (a bar, or lines in a log), and the table of a finished run.

rich takes a while to import, and most commands print without it, so it is imported at its use.
"""

import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from specbench.escaping import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from specbench.records.store import Result


def terminal(stream: IO[str] | None = None, soft_wrap: bool = True) -> "Console":
    """A console on `stream` (unset: stdout) that shows text as it is.

    Brackets are brackets unless `print` is called with `markup=True`, and control characters are left out, so that a
    name or a completion of a record cannot colour or hide lines or move the cursor.
    """
    return _console_class()(file=stream, highlight=False, soft_wrap=soft_wrap, markup=False)


@cache
def _console_class() -> "type[Console]":
    """The class of `terminal`."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Terminal(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                # Control segments are rich's own: they draw the bar.
                yield segment if segment.control else Segment(printable(segment.text), segment.style)

    return Terminal


def wide_console(least: int = 120) -> "Console":
    """A console of at least `least` columns on stdout, so that a table keeps its columns in a pipe."""
    console = terminal()
    console.width = max(console.width, least)
    return console


def plain_table(titles: Iterable[str], left: Collection[str] = (), title: str | None = None) -> "Table":
    """A table without lines: the columns titled as in `left` are aligned left, all others right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", title_style="")
    for name in titles:
        table.add_column(name, justify="left" if name in left else "right")
    return table


FEWEST_STEPS = 4  # that show progress
LOG_LINES = 5  # progress lines of a run without a terminal
SLOW_S = 5.0  # a step that takes less leaves no line in a log, so that a short run prints only its result
BARE = "{} of {}"  # progress in a unit that depends on what is being done
# Matches a line that says what is being done, maybe by which of several processes.
STEP = re.compile(r"(process \d+ of \d+: )?([a-z]+ing |the target writes |(target|draft\S*) .* is in memory$)")


@contextmanager
def counted(total: int, what: str) -> Iterator[Callable[[], None]]:
    """A function to call before each of `total` steps, for progress on stderr; a few steps are quick and show none."""
    started = itertools.count()
    if total < FEWEST_STEPS:
        yield lambda: None
        return
    with Screen(sys.stderr, what, f"{what}: {{}} of {{}}", slow_s=0) as screen:

        def step() -> None:
            screen.advance(next(started), total)

        yield step
        screen.advance(total, total)


class Screen:
    """Progress on `stream`, a bar on a terminal and plain lines in a log; and the final table on stdout.

    In a log a step, or a part of the prompts, has a line once it takes `slow_s` (unset: SLOW_S).
    """

    def __init__(
        self,
        stream: IO[str],
        doing: str = "decoding",
        done: str = "decoded {} of {} prompts",
        slow_s: float | None = None,
    ) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._doing, self._done = doing, done
        self._console = terminal(stream, soft_wrap=False)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._task = self._progress.add_task("starting", total=None)
        self._slow_s = SLOW_S if slow_s is None else slow_s
        self._printed = time.monotonic()
        self._said = doing  # what is being done, for progress whose unit depends on it
        self._step: threading.Timer | None = None  # prints a line of the log when its step turns out to be slow

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end_step()
        if self._console.is_terminal:
            self._progress.stop()

    def say(self, text: str) -> None:
        self._progress.update(self._task, description=text)
        self._said = text
        self._end_step()
        if self._console.is_terminal:
            return
        if not self._slow_s or not STEP.match(text):
            self.note(text)
            return
        self._step = threading.Timer(self._slow_s, self.note, [text])
        self._step.daemon = True
        self._step.start()

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.cancel()

    def note(self, text: str) -> None:
        """A line that does not go away, above the bar on a terminal."""
        self._console.print(text, soft_wrap=True)

    def advance(self, done: int, total: int, now: str = "") -> None:
        also = f", {now}" if now else ""
        self._progress.update(self._task, description=self._doing + also, completed=done, total=total)
        self._end_step()
        is_due = (done * LOG_LINES) // total > ((done - 1) * LOG_LINES) // total
        if not self._console.is_terminal and is_due and time.monotonic() - self._printed >= self._slow_s:
            what = f"{self._said}: " if self._done == BARE else ""
            said = self._done.format(done, total)
            self.note(what + (said.removesuffix("s") if total == 1 else said) + also)
            self._printed = time.monotonic()

    def line(self, result: "Result", place: str = "") -> None:
        """A finished run among many: one line, and what must not be overlooked. The table of all follows on stdout.

        `place` precedes it: which of how many it is.
        """
        from specbench.records.marks import prompts_for_proof
        from specbench.report.findings import lines
        from specbench.report.remarks import disturbed, remarks, simulated
        from specbench.report.summary_text import brief

        summary = result.record["summary"]
        console = terminal(sys.stderr)
        state = "already there" if result.reused else "written"
        console.print(f"{place}{result.record['run_id']}: {brief(summary)} ({state})")
        if summary.get("simulated"):
            console.print(simulated(summary))
        elif (not summary["lossless"] and not summary.get("lossy")) or prompts_for_proof(dict(summary)) is not None:
            console.print(remarks(summary)[0])
        if summary.get("disturbed"):
            console.print(disturbed(summary))
        for line in lines(result.record):
            console.print(line)

    def show(self, result: "Result") -> None:
        """The table of a finished run."""
        from rich.table import Table

        from specbench.records.served import is_served
        from specbench.report.findings import lines
        from specbench.report.remarks import remarks
        from specbench.report.summary_text import headline, largest_loss
        from specbench.report.views import rows

        console = terminal()
        if not console.is_terminal:
            console.width = 120
        if is_served(result.record):
            self._show_served(console, result)
            return
        summary = result.record["summary"]
        console.print(headline(summary, result.record["environment"]["threads"]), markup=True)
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold")
        table.add_column(justify="right")
        table.add_column(style="dim")
        for row in rows(summary):
            table.add_row(*row)
        console.print(table)
        for line in (*lines(result.record), *remarks(summary)):
            console.print(line)
        if (loss := largest_loss(result.record)) is not None:
            console.print(loss)
        state = "already there; force=true runs it again" if result.reused else "written"
        console.print(f"record: {result.file} ({state})")

    def _show_served(self, console: "Console", result: "Result") -> None:
        """The numbers of a measured server."""
        from specbench.report.served_text import answer, contended, headline, rows

        summary: Any = result.record["summary"]
        console.print(answer(summary), markup=True)
        console.print(headline(summary), markup=True)
        table = plain_table(("", "", ""), left=("",))
        table.show_header = False
        for row in rows(summary):
            table.add_row(*row)
        console.print(table)
        if summary.get("disturbed"):
            console.print(contended(summary))
        state = "already there; force=true measures it again" if result.reused else "written"
        console.print(f"record: {result.file} ({state})")
