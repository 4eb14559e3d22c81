"""All that is to be measured on a GPU, in parts of at most ten minutes: `make bench-gpu PYTHON=python3 VENV=none`.

    python experiments/bench_gpu.py [PART ...] [--list] [--small] [--again] [--wheels FOLDER] [--results FOLDER]
    python experiments/bench_gpu.py --fetch FOLDER

It needs Python 3.11 with torch and transformers, and no network: packages that are missing come from a folder of
wheels, which `--fetch` fills on a machine with a network. A part that has run is not run again. Records, tables and
logs lie in the results folder, `parts.json` there says what ran. `--small` is the same in small shapes on a CPU.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MINUTES = 10  # of a part
# What specbench needs beside torch, transformers, accelerate, pandas, matplotlib and what these bring, in the order in
# which a machine for GPUs is likely to lack it; and the bytes of its wheel (Python 3.12, Linux on x86-64).
WHEELS = {
    "hydra-core==1.3.2": 154_547,
    "omegaconf==2.3.0": 79_500,
    "antlr4-python3-runtime==4.9.3": 144_590,
    "datasets==5.2.0": 608_276,
    "dill==0.4.1": 120_019,
    "multiprocess==0.70.19": 150_281,
    "evaluate==0.4.6": 84_069,
    "rouge-score==0.1.2": 24_985,
    "nltk==3.10.4": 1_722_994,
    "pydivsufsort==0.0.20": 2_337_189,
}
MOST_BYTES = 64 * 2**20

XXL = "target=random-t5-xxl draft=random-t5-small {t5}"
LLAMA = "target=random-llama3.1-8b draft=random-llama3.2-1b {llama}"
# The paper's alpha and best gamma with T5-small (Table 2), on prompts that ship: only lengths count.
SETTINGS = {
    "ende-t0": "gamma=7 simulate.alpha=0.75 sampling.temperature=0",
    "ende-t1": "gamma=7 simulate.alpha=0.62 sampling.temperature=1",
    "cnndm-t0": "gamma=5 simulate.alpha=0.65 sampling.temperature=0",
    "cnndm-t1": "gamma=5 simulate.alpha=0.53 sampling.temperature=1",
}
ROWS = (
    "data.path=[specbench/shipped/data/ende-mini-train.jsonl.gz] '~data.keep.src' '~data.join.src' "
    "data.join_related=false data.passages.path=[specbench/shipped/data/sum-mini-train.jsonl.gz]"
)
SHORT = "limit=8 max_new_tokens=64 repeats=1 simulate.alpha=0.75"
PARTS = {
    "tests": "pytest -q -p no:cacheprovider -m gpu tests/test_engines.py tests/test_invariant.py tests/test_fused.py",
    "pair": "bench target=t5-mini draft=t5-nano limit=8 repeats=3 {here}",
    **{name: f"run {XXL} task=ende-mini {keys} limit=20 max_new_tokens=64 {{here}}" for name, keys in SETTINGS.items()},
    "steps": f"bench {XXL} {SHORT} gammas=[5,7] parts=def {{here}}",
    "generate": f"bench {XXL} {SHORT} gammas=[7] parts=abg {{here}} results={{results}}/generate",
    "invariant": f"bench {XXL} {SHORT} gammas=[7] parts=de numerics=invariant {{here}} results={{results}}/invariant",
    "llama": f"bench {LLAMA} {SHORT} gammas=[5] parts=abde {{here}}",
    "train-target": f"train recipe=t5-mini model.start_from=specbench/shipped/models/t5-mini {ROWS} {{train}} "
    "output={results}/t5-mini",
    "train-draft": f"train recipe=t5-nano model.start_from=specbench/shipped/models/t5-nano {ROWS} {{train}} "
    "output={results}/t5-nano",
    "tables": "tables --results {results} --format markdown --output {results}/tables",
}


def _architecture(*values: str) -> str:
    """The keys that give both models these values."""
    return " ".join(f"{model}.architecture.{value}" for model in ("target", "draft") for value in values)


# What stands for the names in braces: as it is meant, and small.
FULL = {
    "t5": "",
    "llama": "",
    "here": "device=cuda dtype=bfloat16 results={results}",
    "train": "optim.max_steps=300 data.passages.rows=4000",
}
SMALL = {
    "t5": _architecture("d_model=64", "d_ff=128", "num_heads=2", "num_layers=2", "num_decoder_layers=2"),
    "llama": _architecture(
        "hidden_size=64",
        "intermediate_size=128",
        "num_hidden_layers=2",
        "num_attention_heads=4",
        "num_key_value_heads=2",
        "head_dim=16",
        "vocab_size=1000",
    ),
    "here": "device=cpu dtype=bfloat16 results={results} limit=2 max_new_tokens=16",
    "train": "optim.max_steps=2 optim.batch_size=2 data.max_rows=40 data.passages.rows=10 distill.max_new_tokens=4",
}


def words(part: str, small: bool, results: str) -> list[str]:
    """The command of `part`, after the interpreter's name. Of a key that is given twice the last value counts."""
    settings = {name: text.format(results=results) for name, text in (SMALL if small else FULL).items()}
    command = shlex.split(PARTS[part].format(results=results, **settings))
    return ["-m", *command] if command[0] == "pytest" else ["-m", "specbench", *command]


def missing() -> list[str]:
    """The packages of WHEELS that this interpreter does not have."""
    found = []
    for wheel in WHEELS:
        try:
            version(wheel.partition("==")[0])
        except PackageNotFoundError:
            found.append(wheel)
    return found


def environment(wheels: Path | None, site: Path) -> dict[str, str]:
    """The variables of a part's process. Packages that are missing are installed from `wheels` into `site`."""
    if lacking := missing():
        if wheels is None:
            names = " ".join(lacking)
            sys.exit(f"not installed: {names}: give --wheels FOLDER (make bench-gpu WHEELS=FOLDER), see --fetch")
        options = ["--quiet", "--no-index", "--no-deps", "--find-links", str(wheels), "--target", str(site)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *lacking], check=True)
    paths = [str(ROOT), str(site), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}


def run(part: str, command: Sequence[str], log: Path, variables: dict[str, str]) -> tuple[int, float]:
    """Exit code and seconds of a part, whose output goes to `log` and its end to the screen. It is killed with all its
    processes after MINUTES; then the code is 124."""
    print(f"== {part}: {shlex.join(command)}", flush=True)
    began = time.monotonic()
    with open(log, "w", encoding="utf-8") as written:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env=variables, stdout=written, stderr=written, start_new_session=True
        )
        try:
            code = process.wait(timeout=60 * MINUTES)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    print("".join(f"   {line}\n" for line in log.read_text(encoding="utf-8").splitlines()[-12:]), flush=True)
    return code, time.monotonic() - began


def run_parts(
    chosen: dict[str, list[str]], again: bool, state: Path, variables: dict[str, str], done: dict[str, Any]
) -> None:
    """Run what is not in `done`, which is what `state` says, or did not end well; write each into both when it ends."""
    for part, command in chosen.items():
        if not again and part in done and done[part]["code"] == 0 and done[part]["command"] == command:
            print(f"== {part}: has run")
            continue
        code, seconds = run(part, command, state.parent / f"{part}.log", variables)
        done[part] = {
            "code": code,
            "seconds": round(seconds, 1),
            "command": command,
            "at": datetime.now(UTC).isoformat(),
        }
        temporary = state.with_suffix(".new")
        temporary.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
        temporary.replace(state)


def fetch(folder: Path) -> None:
    """Download or build the wheels of WHEELS into `folder`."""
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder), *WHEELS], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{' | '.join(PARTS)} (default: all, in this order)")
    parser.add_argument("--list", action="store_true", help="print the commands and stop")
    parser.add_argument("--small", action="store_true", help="small shapes on the CPU, to try it")
    parser.add_argument("--again", action="store_true", help="run parts again that have run")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels for packages that are missing")
    parser.add_argument("--fetch", type=Path, metavar="FOLDER", help="fill such a folder, and stop")
    parser.add_argument("--results", help="the folder to write (default results/gpu, with --small results/gpu-small)")
    given = parser.parse_args()
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}: choose among {', '.join(PARTS)}")
    if given.fetch is not None:
        fetch(given.fetch)
        return 0
    results = given.results or ("results/gpu-small" if given.small else "results/gpu")
    chosen = {part: words(part, given.small, results) for part in PARTS if part in (given.parts or PARTS)}
    if given.list:
        for part, command in chosen.items():
            print(f"{part}: python {shlex.join(command)}")
        return 0
    folder = ROOT / results
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / "parts.json"
    done = json.loads(state.read_text(encoding="utf-8")) if state.is_file() else {}
    with tempfile.TemporaryDirectory() as site:
        run_parts(chosen, given.again, state, environment(given.wheels, Path(site)), done)
    failed = {part: done[part]["code"] for part in chosen if done[part]["code"]}
    for part in chosen:
        how = f"exit code {failed[part]}" if part in failed else "done"
        print(f"{part:14} {done[part]['seconds']:6.0f} s  {how}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
