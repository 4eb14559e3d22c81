"""The smallest tree that runs the parts of `experiments/bench_gpu.py`, to be sent to a machine with a GPU.

    python tools/gpu_tree.py FOLDER [PART ...] [--wheels FOLDER] [--add FILE ...]

It copies the package, its choices, and only those shipped files and tests that the parts need (default: all parts),
with the wheels that `bench_gpu.py --fetch --has` has fetched and any FILE of your own (into `data/`), and prints its
size. If the size is above 60 MiB, it exits with 1 and leaves nothing. On the other machine:

    cd FOLDER && python3 experiments/bench_gpu.py --wheels wheels PART ...
"""

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
MOST = 60 * 2**20  # bytes
ALWAYS = ("specbench", "conf", "experiments", "pyproject.toml", "constraints.txt", "LICENSE")
OF_TESTS = ("tests/__init__.py", "tests/conftest.py", "tests/support")
MODELS = "specbench/shipped/models"
COMMIT = "COMMIT"  # of the code, for its records: the tree is no checkout


def bench_gpu() -> ModuleType:
    """The script whose parts these are."""
    spec = importlib.util.spec_from_file_location("bench_gpu", ROOT / "experiments" / "bench_gpu.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def paths(commands: Iterable[Sequence[str]], tracked: Sequence[str]) -> list[str]:
    """The `tracked` files that these commands need. Commands name the shipped models that they read."""
    words = {word for command in commands for text in command for word in re.split(r"[=/,:\[\]]", text)}
    tests = [text for command in commands if "pytest" in command for text in command if text.endswith(".py")]
    places = [*ALWAYS, *(OF_TESTS if tests else ()), *tests]

    def is_needed(path: str) -> bool:
        if path.startswith(f"{MODELS}/"):
            return path.removeprefix(f"{MODELS}/").partition("/")[0] in words
        return any(path == place or path.startswith(f"{place}/") for place in places)

    return [path for path in tracked if is_needed(path)]


def lay_out(folder: Path, chosen: Sequence[str], added: dict[str, Path]) -> int:
    """Copy `chosen`, paths in this repository, and `added`, files by their path there; returns the bytes of all."""
    sources = {path: ROOT / path for path in chosen} | added
    for path, source in sources.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)
    return sum(source.stat().st_size for source in sources.values())


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout


def main() -> int:
    script = bench_gpu()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new folder")
    parser.add_argument("parts", nargs="*", metavar="PART", help="of bench_gpu.py (default: all)")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels to take along, as wheels/")
    parser.add_argument("--add", type=Path, nargs="+", default=[], metavar="FILE", help="to take along, in data/")
    given = parser.parse_args()
    if unknown := [part for part in given.parts if part not in script.PARTS]:
        parser.error(f"no part {', '.join(unknown)}: choose among {', '.join(script.PARTS)}")
    if given.folder.exists():
        parser.error(f"{given.folder}: exists; name a new folder")
    wheels = [] if given.wheels is None else sorted(given.wheels.glob("*.whl"))
    if given.wheels is not None and not wheels:
        parser.error(f"--wheels {given.wheels}: holds no wheels; bench_gpu.py --fetch fills it")
    if missing := [str(file) for file in given.add if not file.is_file()]:
        parser.error(f"--add {missing[0]}: no such file")
    if twice := [name for name, number in Counter(file.name for file in given.add).items() if number > 1]:
        parser.error(f"--add: two files are named {twice[0]}; rename one")
    commands = [script.words(part, False, "results/gpu") for part in given.parts or script.PARTS]
    chosen = paths(commands, _git("ls-files", "-z").split("\0")[:-1])
    added = {f"wheels/{wheel.name}": wheel for wheel in wheels} | {f"data/{file.name}": file for file in given.add}
    size = lay_out(given.folder, chosen, added)
    pages_apart = ("--", ":/", ":(top,exclude)*.md")  # as `environment.commit`
    changed = "+changes" if _git("status", "--porcelain", "--untracked-files=no", *pages_apart) else ""
    (given.folder / COMMIT).write_text(f"{_git('rev-parse', 'HEAD').strip()}{changed}\n", encoding="utf-8")
    if size > MOST:
        shutil.rmtree(given.folder)
        sys.exit(f"{given.folder}: {size / 2**20:.1f} MiB, above {MOST / 2**20:.0f}: name fewer parts, or add less")
    print(f"{given.folder}: {len(chosen) + len(added)} files, {size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
