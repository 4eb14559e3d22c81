"""Measure the kept records again: their configs, with the code as it is now. `make keep` then replaces the copies.

    python tools/measure_again.py [--runs N] [RESULTS]   RESULTS: the folder with kept/ that gets runs/

With `--runs 3` each config is measured in three fresh processes, so that its intervals cover what differs between
processes. A record of several processes has a name of its own: README and docs, which name some, are changed to it.

Run it from a commit without changes, on a machine where nothing else runs. Runs that are there are not repeated, so an
interrupted call resumes. A record that cannot be measured any more is named, and the others are.
"""

import argparse
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from specbench import api
from specbench.compose.to_schema import config_of_record
from specbench.config.schema import RunConfig
from specbench.errors import MachineError, UserError
from specbench.loading.model_loader import SharedModels
from specbench.records.catalog import Catalog, digest, kept_files
from specbench.records.kept_form import ENDING
from specbench.records.store import Head

ROOT = Path(__file__).parent.parent
COMMENT = re.compile(r"<!--.*?-->")


def by_models(head: Head) -> str:
    """An order in which runs of the same models follow one another."""
    return f"{head.config['target']} {head.config['draft']} {head.run_id}"


def in_processes(config: RunConfig, runs: int | None) -> RunConfig:
    """`config` in so many processes; as it was measured if it stops by itself or needs all processes for one run."""
    alone = config.until is not None or config.target.tp_plan
    return config if runs is None or alone else replace(config, runs=runs)


def renamed(page: str, names: Iterable[tuple[str, str]]) -> str:
    """`page` with the digests of records in its comments replaced by those that were measured in their place."""
    new = {digest(before): digest(after) for before, after in names}
    return COMMENT.sub(lambda found: re.sub(r"[0-9a-f]{8}", lambda one: new.get(one[0], one[0]), found[0]), page)


def main(argv: list[str]) -> int:
    """Returns how many records could not be measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", nargs="?", default="results")
    parser.add_argument("--runs", type=int, help="fresh processes for each config (default: as they were measured)")
    arguments = parser.parse_args(argv)
    copies = {file.name.removesuffix(ENDING) for file in kept_files(arguments.results)}
    heads = sorted((head for head in Catalog(arguments.results).heads if head.run_id in copies), key=by_models)
    models, failed, names = SharedModels(), 0, list[tuple[str, str]]()
    for number, head in enumerate(heads, 1):
        print(f"{number}/{len(heads)} {head.run_id}", file=sys.stderr, flush=True)
        try:
            config = in_processes(config_of_record(head.config), arguments.runs)
            found = api.decode(replace(config, results=arguments.results), sys.stderr, models)
        except (UserError, MachineError) as error:
            failed += 1
            print(f"{head.run_id}: {error}", file=sys.stderr)
        else:
            if found is not None and found.record["run_id"] != head.run_id:
                names.append((head.run_id, found.record["run_id"]))
    models.close()
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if names else []:
        text = page.read_text(encoding="utf-8")
        if (changed := renamed(text, names)) != text:
            page.write_text(changed, encoding="utf-8")
            print(f"{page.name}: names the new records; make keep tables figures docs-numbers", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
