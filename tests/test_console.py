"""Progress on a terminal and in a log."""

import io

from specbench.cli.console import Screen


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
