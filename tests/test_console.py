"""Progress on a terminal and in a log."""

import io

import pytest

from specbench.report.console import Screen, counted, terminal


def test_long_work_on_tables_says_how_far_it_is_and_short_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for total in (1, 17):
        with counted(total, "tables") as step:
            for _ in range(total):
                step()
        lines = capsys.readouterr().err.splitlines()
        assert (lines[:1], lines[-1:]) == ((["tables: 0 of 17"], ["tables: 17 of 17"]) if total == 17 else ([], []))


def test_progress_in_a_log_is_a_few_plain_lines() -> None:
    log = io.StringIO()
    with Screen(log) as screen:
        screen.say("loading target t5")
        for done in range(1, 101):
            screen.advance(done, 100)
    lines = log.getvalue().splitlines()
    assert lines[0] == "loading target t5"
    assert lines[-1] == "decoded 100 of 100 prompts"
    assert len(lines) == 6


def test_the_bar_shows_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a model in brackets was read as markup; `[/x]` was a traceback."""
    shown = io.StringIO()
    with Screen(shown) as screen:
        screen.say("loading [red] [/x]")
        console = terminal(shown)
        console.print(screen._progress)
    assert shown.getvalue().count("loading [red] [/x]") == 2
