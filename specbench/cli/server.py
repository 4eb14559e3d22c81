"""`specbench server`: measure any server with an OpenAI-compatible API, with a draft against without."""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import TYPE_CHECKING

from specbench.cli.overrides import read
from specbench.cli.results import print_records
from specbench.cli.usage import usage
from specbench.compose.hydra_app import launch_one
from specbench.config.server import ServerConfig, check_server
from specbench.errors import UserError
from specbench.records.run_record import Row
from specbench.report.console import Screen
from specbench.tasks import check_own_rows

if TYPE_CHECKING:
    from specbench.records.store import Result

ABOUT = """
Measure a server with a draft (URL) against the same target without one (plain=URL): any server with an
OpenAI-compatible API. Both answer each prompt in turn. Shows the speedup with its interval, the time to the first token
and per token, alpha and tokens per pass by the server's own counts, and whether the completions are the target's
(target=NAME names the weights). Writes a record that results, compare, explain and tables read.
Exit code 0: measured; 1: a test shows that the completions are not the target's. docs/server.md

  specbench server http://127.0.0.1:8001/v1 plain=http://127.0.0.1:8000/v1
  specbench server URL plain=URL target=NAME sampling.temperature=1 batch=1,4,16
  specbench server start=llama.cpp target=NAME draft=lookup gamma=3
"""
DOING, DONE = "asking", "asked {} of {} prompts"


def main(argv: list[str]) -> int:
    """Run `specbench server` with the words `argv`."""
    line = "URL [plain=URL] | start=ENGINE [key=value ...]"
    command = read(
        with_url(argv), ServerConfig, lambda: usage("server", ABOUT, ServerConfig, line=line, groups=("task",))
    )
    # A target's usual draft says nothing of the draft that a server used.
    unknown = [] if any(re.match(r"draft(\.kind)?=", word) for word in command.overrides) else ["draft=random"]
    return launch_one(partial(job, command.form), ServerConfig, [*command.argv, *unknown], "server") or 0


def job(form: str, config: ServerConfig) -> int:
    """Measure what `config` asks for, and show it in `form`."""
    check_server(config)
    check_own_rows(config.task, config.limit, later_turns=True)
    from specbench.interop.server.measure_server import measure
    from specbench.interop.starting.measure_started import measure_started

    with Screen(sys.stderr, DOING, DONE) as screen:
        results = (measure if config.start is None else measure_started)(config, screen)
    show(results, form)
    return 0 if all(one.record["summary"]["lossless"] for one in results) else 1


def show(results: list[Result], form: str) -> None:
    """Print measured servers: one as its numbers, several as a table, or rows for programs."""
    rows: list[Row] = [{"run_id": one.record["run_id"], **one.record["summary"]} for one in results]
    if form != "table":
        print_records(form, rows)
        return
    for one in results:
        Screen(sys.stderr).show(one)


def with_url(argv: list[str]) -> list[str]:
    """The words with the address as `url=`. Raises UserError if there are two."""
    words, found = list[str](), list[str]()
    for place, word in enumerate(argv):
        before = argv[place - 1] if place else ""
        is_value = before.startswith("--") and "=" not in before
        is_address = not word.startswith("-") and not is_value and ("://" in word.partition("=")[0] or "=" not in word)
        (found if is_address else words).append(word)
    if len(found) > 1:
        raise UserError(f"server: one address, not {len(found)} ({', '.join(found)}); the other server is plain=URL")
    return [*(f"url={one}" for one in found), *words]
