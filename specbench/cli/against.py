"""`specbench check`: fail where alpha or a speedup moved from what was written down."""

import argparse
import json
import sys
from pathlib import Path

from specbench import store
from specbench.errors import UserError

MARGIN = 0.15


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("specbench check", description="Compare records with a baseline; exit 1 if moved.")
    parser.add_argument("--against", required=True, metavar="FILE", help="the baseline, a JSON file")
    parser.add_argument("--results", default="results", metavar="FOLDER", help="where records are (default: results)")
    parser.add_argument("--margin", type=float, default=MARGIN, help="speedup that may be lost (default: 0.15)")
    parser.add_argument("--write", action="store_true", help="write the baseline from the records instead")
    arguments = parser.parse_args(argv)

    from specbench.measure.baseline import baseline_of, moved

    rows, file = store.summaries(arguments.results), Path(arguments.against)
    if arguments.write:
        if not rows:
            raise UserError(f"--results={arguments.results}: there is no record to write down")
        store.write_atomically(file, json.dumps(baseline_of(rows), indent=1, ensure_ascii=False) + "\n")
        print(f"{file}: written")
        return 0
    try:
        baseline = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--against={file}: cannot be read ({error}); --write makes one from records") from error
    lines = moved(baseline, rows, arguments.margin)
    for line in lines:
        print(f"moved: {line}", file=sys.stderr)
    print(f"{len(baseline)} measurements, {len(lines)} moved")
    return 1 if lines else 0
