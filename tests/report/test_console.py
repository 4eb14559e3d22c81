"""Progress on a terminal and in a log."""

import io
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from specbench.report import console
from specbench.report.console import BARE, Screen, counted, terminal


class Hours:
    """A clock that stands still until a test moves it, and timers that go by it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def monotonic(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        for timer in [one for one in self.timers if one.due <= self.now]:
            self.timers.remove(timer)
            timer.call(*timer.given)

    def timer(self, seconds: float, call: Callable[..., None], given: list[str]) -> "Timer":
        return Timer(self, self.now + seconds, call, given)


class Timer:
    daemon = False

    def __init__(self, of: Hours, due: float, call: Callable[..., None], given: list[str]) -> None:
        self.of, self.due, self.call, self.given = of, due, call, given

    def start(self) -> None:
        self.of.timers.append(self)

    def cancel(self) -> None:
        if self in self.of.timers:
            self.of.timers.remove(self)


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> Hours:
    """Time passes for a screen as a test says, however busy the machine is."""
    found = Hours()
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=found.monotonic))
    monkeypatch.setattr(console, "threading", SimpleNamespace(Timer=found.timer))
    return found


def test_long_work_on_tables_says_how_far_it_is_and_short_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for total in (1, 17):
        with counted(total, "tables") as step:
            for _ in range(total):
                step()
        lines = capsys.readouterr().err.splitlines()
        assert (lines[:1], lines[-1:]) == ((["tables: 0 of 17"], ["tables: 17 of 17"]) if total == 17 else ([], []))


def test_progress_in_a_log_is_a_few_plain_lines() -> None:
    log = io.StringIO()
    with Screen(log, slow_s=0) as screen:
        screen.say("loading target t5")
        for done in range(1, 101):
            screen.advance(done, 100)
    lines = log.getvalue().splitlines()
    assert lines[0] == "loading target t5"
    assert lines[-1] == "decoded 100 of 100 prompts"
    assert len(lines) == 6


def test_progress_without_a_unit_of_its_own_says_what_is_being_done() -> None:
    log = io.StringIO()
    with Screen(log, "working", BARE, slow_s=0) as screen:
        screen.say("scoring bigram")
        screen.advance(5, 5)
    assert log.getvalue().splitlines()[-1] == "scoring bigram: 5 of 5"


def test_a_long_line_of_a_log_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimates of several drafts broke off at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    log = io.StringIO()
    now = "α so far: t5-nano 0.886, bigram 0.400, lookup 0.295, retrieval 0.512"
    with Screen(log, "working", BARE, slow_s=0) as screen:
        screen.say("scoring t5-nano, bigram, lookup, retrieval")
        screen.advance(4, 20, now)
    assert log.getvalue().splitlines()[1:] == [f"scoring t5-nano, bigram, lookup, retrieval: 4 of 20, {now}"]


def test_a_short_run_leaves_no_steps_in_a_log_and_a_slow_step_is_named_while_it_lasts(hours: Hours) -> None:
    log = io.StringIO()
    with Screen(log, slow_s=0.2) as screen:
        screen.say("loading target t5")
        screen.say("its depths draft 2 tokens per pass at most")  # what a reader must know
        screen.say("target t5 is in memory")
        screen.say("loading draft t5")
        hours.pass_by(0.5)
        assert log.getvalue().splitlines() == ["its depths draft 2 tokens per pass at most", "loading draft t5"]
        screen.say("warming up")
        for done in range(1, 101):
            screen.advance(done, 100)
    hours.pass_by(0.3)
    assert log.getvalue().splitlines()[2:] == ["decoded 20 of 100 prompts"]


def test_the_bar_shows_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a model in brackets was read as markup; `[/x]` was a traceback."""
    shown = io.StringIO()
    with Screen(shown, slow_s=0) as screen:
        screen.say("loading [red] [/x]")
        console = terminal(shown)
        console.print(screen._progress)
    assert shown.getvalue().count("loading [red] [/x]") == 2


def test_one_prompt_is_singular() -> None:
    log = io.StringIO()
    with Screen(log, slow_s=0) as screen:
        screen.advance(1, 1)
    assert "decoded 1 of 1 prompt\n" in log.getvalue()


def test_steps_of_several_processes_leave_no_lines_either() -> None:
    log = io.StringIO()
    with Screen(log, slow_s=5) as screen:
        for said in (
            "process 1 of 2: starting",
            "process 1 of 2: loading target t5-mini",
            "process 1 of 2: warming up",
        ):
            screen.say(said)
    assert log.getvalue() == "process 1 of 2: starting\n"
