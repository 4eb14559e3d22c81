"""Measure the kept records again: their configs, with the code as it is now. `make keep` then replaces the copies.

    python tools/measure_again.py [--runs N] [--target NAME] [--drafts KIND,...] [--chains] [RESULTS]

RESULTS is the folder with kept/ that gets runs/.

With `--runs 3` three fresh processes, one after the other, measure all configs; so the models are loaded three times,
not three times for each config. Each config gets one record, whose intervals cover what differs between processes. A
record of several processes has a name of its own: README and docs, which name some, are changed to it.

Run it from a commit without changes, on a machine where nothing else runs. Runs that are there are not repeated, so an
interrupted call resumes. A record that cannot be measured any more is named, and the others are.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from specbench import api
from specbench.compose.to_schema import config_of_record
from specbench.config.schema import RunConfig
from specbench.errors import MachineError, UserError
from specbench.loading.model_loader import SharedModels
from specbench.records import store
from specbench.records.catalog import Catalog, digest, kept_files
from specbench.records.kept_form import ENDING
from specbench.records.store import Head

ROOT = Path(__file__).parent.parent
COMMENT = re.compile(r"<!--.*?-->")


def by_models(head: Head) -> str:
    """An order in which runs of the same models follow one another."""
    return f"{head.config['target']} {head.config['draft']} {head.run_id}"


def kind_of(head: Head) -> str:
    """The kind of draft of a record."""
    kind: str = (head.config.get("draft") or {}).get("kind", "model")
    return kind


def in_processes(config: RunConfig, runs: int | None) -> RunConfig:
    """`config` in so many processes; as it was measured if it stops by itself or needs all processes for one run."""
    alone = config.until is not None or config.target.tp_plan
    return config if runs is None or alone else replace(config, runs=runs)


def renamed(page: str, names: Iterable[tuple[str, str]]) -> str:
    """`page` with the digests of records in its comments replaced by those that were measured in their place."""
    new = {digest(before): digest(after) for before, after in names}
    return COMMENT.sub(lambda found: re.sub(r"[0-9a-f]{8}", lambda one: new.get(one[0], one[0]), found[0]), page)


def measure_part(config: RunConfig, number: int, models: SharedModels) -> None:
    """Process `number`'s share of `config`, with the γ of the first process; nothing if that has no record."""
    from specbench.experiment.identity import identify
    from specbench.experiment.processes import of_process
    from specbench.experiment.run_parts import resolve
    from specbench.experiment.runner import execute, finished
    from specbench.report.console import Screen

    config = resolve(config)
    if config.runs == 1 or number >= config.runs or store.record_file(config.results, identify(config)).exists():
        return
    first = of_process(config, 0)
    with Screen(sys.stderr) as screen:
        begun = finished(store.record_file(first.results, identify(first)), screen)
        if begun is not None or number == 0:
            execute(of_process(config, number), screen, models, None if begun is None else begun["gamma"])


def measure(heads: Sequence[Head], arguments: argparse.Namespace) -> tuple[int, list[tuple[str, str]]]:
    """How many configs failed, and the names of the records before and after; none of one process's shares."""
    models, failed, names = SharedModels(), 0, list[tuple[str, str]]()
    for place, head in enumerate(heads, 1):
        print(f"{place}/{len(heads)} {head.run_id}", file=sys.stderr, flush=True)
        try:
            config = replace(in_processes(config_of_record(head.config), arguments.runs), results=arguments.results)
            if arguments.process is not None:
                measure_part(config, arguments.process, models)
                continue
            found = api.decode(config, sys.stderr, models)
        except (UserError, MachineError) as error:
            failed += 1
            print(f"{head.run_id}: {error}", file=sys.stderr)
        else:
            if found is not None and found.record["run_id"] != head.run_id:
                names.append((head.run_id, found.record["run_id"]))
    models.close()
    return failed, names


def main(argv: list[str]) -> int:
    """Returns how many records could not be measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", nargs="?", default="results")
    parser.add_argument("--runs", type=int, help="fresh processes for each config (default: as they were measured)")
    parser.add_argument("--target", help="only records of this target")
    parser.add_argument("--drafts", help="only records of these kinds of draft, with commas")
    parser.add_argument("--chains", action="store_true", help="only records without a tree")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    copies = {file.name.removesuffix(ENDING) for file in kept_files(arguments.results)}
    wanted = [
        head
        for head in Catalog(arguments.results).heads
        if head.run_id in copies
        and (arguments.target is None or head.run_id.startswith(arguments.target + "-"))
        and (arguments.drafts is None or kind_of(head) in arguments.drafts.split(","))
        and not (arguments.chains and head.summary.get("tree"))
    ]  # fmt: skip
    heads = sorted(wanted, key=by_models)
    if arguments.process is not None:
        return measure(heads, arguments)[0]
    for number in range(arguments.runs or 0):
        subprocess.run([sys.executable, __file__, *argv, "--process", str(number)])  # what fails is named again below
    failed, names = measure(heads, arguments)
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages if Path(arguments.results).resolve() == ROOT / "results" else []:  # they name no other folder's
        text = page.read_text(encoding="utf-8")
        if (changed := renamed(text, names)) != text:
            page.write_text(changed, encoding="utf-8")
            print(f"{page.name}: names the new records; make keep tables figures docs-numbers", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
