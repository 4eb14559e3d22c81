"""The jobs of the workflow `gpu sweep`, from .github/sweeps.yml: one for each sweep on each kind of GPU.

Prints a line for $GITHUB_OUTPUT: `jobs=[{"name": "table2-h100", "words": "experiment=table2", "gpu": "h100"}, …]`.
`--sweep NAME` and `--gpu KIND` leave one of them; empty values leave all. It needs PyYAML and nothing else.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import yaml

FILE = Path(__file__).parent.parent / ".github" / "sweeps.yml"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def jobs(file: Path, sweep: str = "", gpu: str = "") -> list[dict[str, str]]:
    """Every sweep of `file` on every kind of GPU, or those named.

    Raises:
        ValueError: the file is not what it should be, or lacks the sweep or the kind.
    """
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    sweeps, gpus = (content.get(key) if isinstance(content, dict) else None for key in ("sweeps", "gpus"))
    if not isinstance(sweeps, dict) or not isinstance(gpus, list) or not sweeps or not gpus:
        raise ValueError(f"{file.name}: must have `sweeps`, names with words, and `gpus`, a list of labels")
    for name in (*sweeps, *gpus):
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f"{file.name}: {name!r} names files and labels: letters, digits, '.', '_' and '-' only")
    for named, known, what in ((sweep, sweeps, "sweep"), (gpu, gpus, "gpu")):
        if named and named not in known:
            raise ValueError(f"{what}={named}: {file.name} has {', '.join(known)}")
    return [
        {"name": f"{name}-{kind}", "words": str(words), "gpu": kind}
        for name, words in sweeps.items() if sweep in ("", name) for kind in gpus if gpu in ("", kind)
    ]  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--sweep", default="")
    parser.add_argument("--gpu", default="")
    given = parser.parse_args()
    try:
        print(f"jobs={json.dumps(jobs(given.file, given.sweep, given.gpu))}")
    except ValueError as error:
        sys.exit(str(error))
