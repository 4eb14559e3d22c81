"""Check what is to be published: `python tools/check_wheel.py dist [--tag v1.2.3]`. Standard library only.

A wheel holds the package, `conf/`, `experiments/`, and all that ships, and nothing else. It is smaller than PyPI's
limit, and its version equals the source archive's and the tag's. The source archive holds no results.
"""

import argparse
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_BYTES = 80_000_000  # PyPI takes files of 100 MB
INSIDE = {"conf": "specbench/conf", "experiments": "specbench/experiments", "specbench": "specbench"}  # checkout: wheel
NEVER = re.compile(r"(^|/)(tests?|results|tools|\.git.*|__pycache__)/|\.(pyc|so|jsonl\.lock)$")


def wanted(root: Path) -> set[str]:
    """The files of a checkout that a wheel holds, as the wheel names them."""
    found = set()
    for folder, inside in INSIDE.items():
        for file in (root / folder).rglob("*"):
            if file.is_file() and not NEVER.search(f"{folder}/{file.relative_to(root / folder)}"):
                found.add(f"{inside}/{file.relative_to(root / folder)}")
    return found


def faults(dist: Path, root: Path = ROOT, tag: str = "") -> Iterator[str]:
    """Faults of the files of `dist`, one line each."""
    wheels, archives = sorted(dist.glob("*.whl")), sorted(dist.glob("*.tar.gz"))
    if len(wheels) != 1 or len(archives) != 1:
        yield f"{dist}: has {len(wheels)} wheels and {len(archives)} source archives, and must have one of each"
        return
    (wheel,), (archive,) = wheels, archives
    version = wheel.name.split("-")[1]
    if archive.name != f"specbench_toolkit-{version}.tar.gz" or not wheel.name.startswith("specbench_toolkit-"):
        yield f"{wheel.name} and {archive.name}: must be specbench_toolkit of one version"
    if tag and tag != f"v{version}":
        yield f"{wheel.name}: the tag is {tag}; set __version__ in specbench/__init__.py"
    for file in (wheel, archive):
        if file.stat().st_size > MOST_BYTES:
            yield f"{file.name}: {file.stat().st_size / 1e6:.0f} MB; the most is {MOST_BYTES / 1e6:.0f} MB"
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if not name.endswith("/")}
        entries = [opened.read(name).decode() for name in names if name.endswith(".dist-info/entry_points.txt")]
    inside = {name for name in names if ".dist-info/" not in name}
    yield from (f"{wheel.name}: lacks {name}" for name in sorted(wanted(root) - inside))
    yield from (f"{wheel.name}: must not hold {name}" for name in sorted(inside - wanted(root)))
    if not any("specbench = specbench.cli:main" in text for text in entries):
        yield f"{wheel.name}: has no command `specbench`"
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        yield f"{wheel.name}: has no licence"
    with tarfile.open(archive) as packed:
        members = [member.name.partition("/")[2] for member in packed.getmembers() if member.isfile()]
    yield from (f"{archive.name}: must not hold {name}" for name in sorted(members) if name.startswith("results/"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--tag", default="", help="the tag that is released; empty for none")
    given = parser.parse_args()
    found = list(faults(given.dist, tag=given.tag))
    print("\n".join(found) if found else "as it should be")
    sys.exit(bool(found))
