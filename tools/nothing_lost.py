"""Show that a change of structure changed no result: run ids, numbers, tokens, schema and help, before and after.

Usage:
    python tools/nothing_lost.py write FOLDER       in a checkout before the change, and in one after it
    python tools/nothing_lost.py compare BEFORE AFTER

`compare` prints what differs and fails if anything does. A difference that is meant, such as a key that was removed, is
listed in the commit that makes it.
"""

import filecmp
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FREE = ("unigram", "bigram", "ngram", "random", "lookup", "retrieval", "early-exit", "lookahead")  # of weights
HEADS = ("blockwise", "medusa", "hydra", "eagle", "eagle3", "pass")
DRAFTS = {"t5-mini": ("t5-nano", *FREE, *HEADS, "specdec"), "gpt-mini": ("gpt-nano", *FREE, *HEADS)}
# Drafts made of others, and trees: the overrides of one run per line.
MADE = (
    "target=t5-mini draft=layer-skip draft.skip=[mlp1]",
    "target=t5-mini draft=cascade draft.inner.kind=lookup",
    "target=t5-mini tree=sequoia gamma=tree",
    "target=t5-mini tree=dynamic gamma=tree",
    "target=gpt-mini draft=eagle tree=dynamic gamma=tree",
    "target=t5-mini accept=block sampling.temperature=1",
    "target=t5-mini draft=bigram batch=3",
)
SHORT = "limit=3 warmup=0 dtype=float32 max_new_tokens=16"
VERBS = (
    "run",
    "sweep",
    "alpha",
    "recommend",
    "bench",
    "results",
    "tables",
    "figures",
    "report",
    "explain",
    "train",
    "list",
)


def specbench(*words: str) -> str:
    """The standard output of a command, run in this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "COLUMNS": "160"}
    command = [sys.executable, "-m", "specbench", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True).stdout


def write_ids(file: Path) -> None:
    """The run id of every choice in `conf/` and of every job of every experiment, or why it has none."""
    sys.path.insert(0, str(ROOT))
    from specbench.cli.overrides import read
    from specbench.compose.hydra_app import jobs_of
    from specbench.config.schema import RunConfig

    try:
        from specbench.experiment.identity import identify
    except ImportError:  # before the rooms were rebuilt
        from specbench.runs.identity import identify  # type: ignore[no-redef]

    listed = json.loads(specbench("list", "--format", "json"))
    sweeps = [[f"{row['kind'] if 'kind' in row else row['group']}={row['name']}"] for row in listed]
    sweeps = [
        words for words in sweeps if words[0].split("=")[0] in ("target", "draft", "task", "accept", "experiment")
    ]
    found = {}
    for words in sweeps:
        try:
            jobs = jobs_of(read(words, RunConfig).overrides)
        except Exception as error:
            found[" ".join(words)] = f"{type(error).__name__}: {error}"
            continue
        for job in jobs:
            name = " ".join([*words, *job.overrides])
            try:
                found[name] = job.error if job.config is None else identify(job.config)
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
    file.write_text(json.dumps(found, indent=1, sort_keys=True))


def write_tokens(file: Path) -> None:
    """The tokens of every draft on both targets that ship, in fp32, and of both decoders."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for target, drafts in DRAFTS.items():
            for temperature in (0, 1):
                sampling = f"sampling.temperature={temperature}"
                specbench(
                    "sweep",
                    f"target={target}",
                    f"draft={','.join(drafts)}",
                    sampling,
                    f"results={folder}",
                    *SHORT.split(),
                )
        for words in MADE:
            specbench("run", *words.split(), f"results={folder}", *SHORT.split())
        for record in sorted(Path(folder, "runs").glob("*.json*")):
            read = gzip.open if record.suffix == ".gz" else open
            with read(record, "rt") as stream:
                prompts = json.load(stream)["prompts"]
            found[record.name] = [
                [prompt["baseline"]["tokens"], prompt["speculative"]["tokens"], prompt.get("beta")]
                for prompt in prompts
            ]
    file.write_text(json.dumps(found, indent=0, sort_keys=True))


def write(folder: Path) -> None:
    """Everything that `compare` compares."""
    folder.mkdir(parents=True, exist_ok=True)
    write_ids(folder / "ids.json")
    specbench("tables", "--format", "markdown,csv,latex", "--output", str(folder / "tables"))
    specbench("tables", "--score", "--format", "markdown,csv", "--output", str(folder / "tables"))
    specbench("figures", "--format", "svg", "--output", str(folder / "figures"))
    for drawn in (folder / "figures").glob("*.svg"):
        drawn.unlink()  # their numbers stand beside them as CSV
    (folder / "schema.json").write_text(specbench("results", "--schema"))
    for verb in VERBS:
        (folder / f"help-{verb}.txt").write_text(specbench(verb, "--help"))
    write_tokens(folder / "tokens.json")


def compare(before: Path, after: Path) -> int:
    """How many files differ; prints the entries of JSON files, and otherwise the file's name."""
    names = sorted({file.relative_to(side) for side in (before, after) for file in side.rglob("*") if file.is_file()})
    different = 0
    for name in names:
        one, other = before / name, after / name
        if one.exists() and other.exists() and filecmp.cmp(one, other, shallow=False):
            continue
        different += 1
        print(f"{name}: {'differs' if one.exists() and other.exists() else 'is on one side only'}")
        if name.suffix == ".json" and one.exists() and other.exists():
            first, second = json.loads(one.read_text()), json.loads(other.read_text())
            for key in sorted({*first, *second}):
                if first.get(key) != second.get(key):
                    print(f"  {key}: {str(first.get(key))[:150]} | {str(second.get(key))[:150]}")
    print(f"{len(names)} files, {different} differ")
    return different


if __name__ == "__main__":
    verb, *folders = sys.argv[1:]
    if verb == "compare":
        sys.exit(compare(*map(Path, folders)) > 0)
    write(Path(folders[0]).resolve())
