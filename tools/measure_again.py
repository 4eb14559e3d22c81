"""Measure the kept records again: their configs, with the code as it is now. `make keep` then replaces the copies.

    python tools/measure_again.py [RESULTS]         RESULTS: the folder that has kept/ and gets runs/; default: results

Run it from a commit without changes, on a machine where nothing else runs. Runs that are there are not repeated, so an
interrupted call resumes. A record that cannot be measured any more is named, and the others are.
"""

import sys
from dataclasses import replace

from specbench import api
from specbench.compose.hydra_app import config_of_record
from specbench.errors import MachineError, UserError
from specbench.loading.model_loader import SharedModels
from specbench.records.catalog import Catalog, kept_folder
from specbench.records.store import Head


def by_models(head: Head) -> str:
    """An order in which runs of the same models follow one another."""
    return f"{head.config['target']} {head.config['draft']} {head.run_id}"


def main(results: str = "results") -> int:
    """Returns how many records could not be measured."""
    copies = {file.name.removesuffix(".json.gz") for file in kept_folder(results).glob("*.json.gz")}
    heads = sorted((head for head in Catalog(results).heads if head.run_id in copies), key=by_models)
    models, failed = SharedModels(), 0
    for number, head in enumerate(heads, 1):
        print(f"{number}/{len(heads)} {head.run_id}", file=sys.stderr, flush=True)
        try:
            api.decode(replace(config_of_record(head.config), results=results), sys.stderr, models)
        except (UserError, MachineError) as error:
            failed += 1
            print(f"{head.run_id}: {error}", file=sys.stderr)
    models.close()
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) > 0)
