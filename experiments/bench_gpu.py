"""All that is to be measured on a GPU, in parts of at most eight minutes: `make bench-gpu PYTHON=python3 VENV=none`.

    python experiments/bench_gpu.py [PART ...] [--list] [--small] [--again] [--wheels FOLDER] [--results FOLDER]
    python experiments/bench_gpu.py --fetch FOLDER [--python 3.12] [--has FILE]

It needs Python 3.11 or later with torch and transformers, and no network: packages that are missing come from a folder
of wheels, which `--fetch` fills on a machine with a network, for the Python named by `--python` on Linux (x86-64);
`--has` names a file of the packages that the machine with the GPU has (`pip freeze` there), which are not fetched.
`tools/gpu_tree.py` lays out the smallest tree that runs the parts.

All imports are tried before the first part. A part that has run is not run again. A part that was stopped, by its limit
or by hand, has kept what it had: a run its prompts, a training its checkpoints, a benchmark its rows; called again it
goes on. Records, tables and logs lie in the results folder, `parts.json` there says what ran. `--small` is the same in
small shapes on a CPU.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MINUTES = 8  # of a part
SECONDS_TO_END = 20  # that a part has to write what it keeps, after it was told to stop
STOPPED = 124, 130  # exit codes of a part that its limit, or whoever runs it, has stopped
# The machine with the GPU has these, built for its driver. They are not fetched, and neither is what they bring.
OF_THE_MACHINE = ("torch", "transformers")
# A page of the report needs it, which no part draws.
OF_NO_PART = ("plotly",)
# The part `tests` requires these of the development packages.
FOR_TESTS = ("hypothesis", "pytest", "pytest-timeout")
# No wheels of these are published. They are pure Python, so any interpreter builds them.
BUILT = ("antlr4-python3-runtime", "rouge-score")
# What a wheel for Linux on x86-64 may call its platform, newest first.
PLATFORMS = [f"manylinux{name}_x86_64" for name in ("_2_28", "_2_27", "_2_26", "_2_24", "_2_17", "2014", "2010", "1")]
# What the parts import, themselves or through another package; a test compares it with the code.
IMPORTS = [
    "torch", "transformers", "accelerate", "datasets", "evaluate", "filelock", "google.protobuf", "hydra",
    "huggingface_hub", "jinja2", "markupsafe", "matplotlib", "numpy", "omegaconf", "pandas", "pyarrow", "pydivsufsort",
    "regex", "rich", "rouge_score.rouge_scorer", "sacrebleu", "safetensors.torch", "sentencepiece", "tabulate",
    "tokenizers", "tqdm", "xxhash", "yaml",
]  # fmt: skip
TEST_IMPORTS = ["hypothesis", "pytest", "pytest_timeout"]
# Run by a part's interpreter: prints each import that fails, with the package that another one lacks.
TRY = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        lacks = (error.name or name).partition(".")[0]
        print("MISSING", name if lacks == name.partition(".")[0] else f"{lacks} (for {name})", sep="\\t")
    except Exception as error:
        print("MISSING", f"{name} ({type(error).__name__})", sep="\\t")
"""

XXL = "target=random-t5-xxl draft=random-t5-small {t5}"
LLAMA = "target=random-llama3.1-8b draft=random-llama3.2-1b {llama}"
EXPERTS = "target=random-qwen3-30b-a3b draft=random-qwen3-0.6b {experts}"
SIMULATED = "gamma=5 simulate.alpha=0.75 sampling.temperature=0 max_new_tokens=64"
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
SHORT = "limit=8 max_new_tokens=64 repeats=1"
# A model of 135M parameters and one of 1.5B on the CPU of the machine with the GPU, which has more cores than ours.
THREADS = (1, 2, 4, 8, 16)
OF_135M = ("hidden_size=576", "intermediate_size=1536", "num_hidden_layers=30", "num_attention_heads=9",
           "num_key_value_heads=3", "head_dim=64", "vocab_size=49152")  # fmt: skip
OF_1500M = ("hidden_size=1536", "intermediate_size=8960", "num_hidden_layers=28", "num_attention_heads=12",
            "num_key_value_heads=2", "head_dim=128", "vocab_size=151936")  # fmt: skip
# The paper's GPT-like pair: learning rates and minutes, and what is trained for a part of these.
RATES = {"97m": 0.001, "6m": 0.003}
MINUTES_OF = {"97m": 3, "6m": 1}
SHORTER = {"half": 0.5, "quarter": 0.25}


def _on_threads(count: int, parts: str, sizes: Sequence[str]) -> str:
    """Parts of the benchmark on so many threads of the CPU."""
    target = " ".join(f"target.architecture.{size}" for size in sizes)
    vocabulary = f"draft.architecture.{sizes[-1]}"
    return (
        f"bench target=random-llama-5m draft=random-llama-5m {target} {vocabulary} "
        f"limit=4 max_new_tokens=64 repeats=3 gammas=[5] parts={parts} threads={count} {{cpu}}"
    )


def _trained(size: str, name: str = "", share: float = 1, more: str = "") -> str:
    """A training of a model of the paper's GPT-like pair; all have the tokenizer of the first target."""
    tokenizer = "tokenizer.start_from={results}/gpt-97m" if size == "6m" or name else ""
    return (
        f"train recipe=gpt-{size} {tokenizer} {{text}} {{pair}} optim.lr={RATES[size]} "
        f"optim.max_minutes={MINUTES_OF[size] * share} {{steps}} {more} output={{results}}/gpt-{size}{name}"
    )


def _alpha(drafts: str, name: str = "", more: str = "") -> str:
    """The alpha of drafts for a target of that pair."""
    return (
        f"alpha target=gpt-97m target.path={{results}}/gpt-97m{name} draft={drafts} task=lm1b {{sentences}} {more} "
        "tokens=10000 max_new_tokens=64 {here}"
    )


PARTS = {
    "tests": "pytest -q -p no:cacheprovider -m gpu tests/engine/test_engines.py tests/engine/test_invariant.py"
    " tests/engine/operations/test_fused.py tests/engine/cuda/test_captured_verdict.py",
    # Each kernel beside the operations that it stands for; then none starts before its predecessor has ended.
    "kernels": "experiments/bench_kernels.py --output {results}/kernels.json {kernels}",
    "kernels-late": "experiments/bench_kernels.py --late --output {results}/kernels-late.json {kernels}",
    "pair": "bench target=t5-mini draft=t5-nano limit=8 repeats=3 {here}",
    **{name: f"run {XXL} task=ende-mini {keys} limit=20 max_new_tokens=64 {{here}}" for name, keys in SETTINGS.items()},
    "steps": f"bench {XXL} {SHORT} gammas=[5,7] parts=def {{here}}",
    "generate": f"bench {XXL} {SHORT} gammas=[7] parts=abg {{here}} results={{results}}/generate",
    "invariant": f"bench {XXL} {SHORT} gammas=[7] parts=de numerics=invariant {{here}} results={{results}}/invariant",
    "llama": f"bench {LLAMA} {SHORT} gammas=[5] parts=abde {{here}}",
    # Records of runs hold the peak of memory, joules, c and v of their own passes.
    **{
        f"llama-batch-{rows}": f"run {LLAMA} {SIMULATED} batch={rows} limit={max(8, 2 * rows)} {{here}}"
        for rows in (1, 4, 16)
    },
    **{
        f"llama-context-{tokens}": f"run {LLAMA} {SIMULATED} context={tokens} limit=4 {{here}}"
        for tokens in (512, 2048)
    },
    "llama-prompts": f"bench {LLAMA} {SHORT} gammas=[5] parts=i {{here}} results={{results}}/prompts",
    "experts": f"bench {EXPERTS} {SHORT} gammas=[3] parts=def {{here}}",
    "experts-run": f"run {EXPERTS} {SIMULATED} limit=8 {{here}}",
    # No engine of ours has quantised kernels on a GPU: the shape is timed on that machine's CPU.
    "quantised": "run target=random-llama3.2-1b draft=quantised draft.bits=8 task=lm-mini engine=native "
    f"{SIMULATED} limit=4 {{quantised}}",
    "train-target": f"train recipe=t5-mini model.start_from=specbench/shipped/models/t5-mini {ROWS} {{train}} "
    "output={results}/t5-mini",
    "train-draft": f"train recipe=t5-nano model.start_from=specbench/shipped/models/t5-nano {ROWS} {{train}} "
    "{outputs} output={results}/t5-nano",
    # The paper's GPT-like pair, trained by the clock on the text that tools/gpu_tree.py --add has taken along, a draft
    # that learns from its target, and pairs that have seen fewer tokens.
    "train-97m": _trained("97m"),
    "train-6m": _trained("6m"),
    "train-6m-distilled": _trained("6m", "-distilled", more="distill.target={results}/gpt-97m"),
    **{f"train-{size}-{name}": _trained(size, f"-{name}", share) for name, share in SHORTER.items() for size in RATES},
    **{
        f"gpt-t{temperature}": "sweep target=gpt-97m target.path={results}/gpt-97m draft=gpt-6m "
        "draft.path={results}/gpt-6m task=lm1b {sentences} task.prompt_words=5 gamma=2,3,5,7 "
        f"sampling.temperature={temperature} max_new_tokens=64 limit=40 {{here}}"
        for temperature in (0, 1)
    },
    # Over 10,000 tokens, as the paper: unconditional text at T = 1 (after four words at T = 0), then after five words.
    "alpha": _alpha("unigram,bigram,{results}/gpt-6m"),
    "alpha-given": _alpha("unigram,bigram,{results}/gpt-6m", more="task.prompt_words=5"),
    "alpha-distilled": _alpha("{results}/gpt-6m-distilled"),
    **{f"alpha-{name}": _alpha(f"{{results}}/gpt-6m-{name}", f"-{name}") for name in SHORTER},
    # Steps, passes and prompts beside transformers'; for the large model only steps and passes.
    **{f"threads-{count}": _on_threads(count, "bdei", OF_135M) for count in THREADS},
    **{f"threads-{count}-large": _on_threads(count, "de", OF_1500M) for count in THREADS},
    "tables": "tables --results {results} --format markdown --output {results}/tables",
}


def _architecture(*values: str) -> str:
    """The keys that give both models these values."""
    return " ".join(f"{model}.architecture.{value}" for model in ("target", "draft") for value in values)


# What stands for the names in braces: as it is meant, and small.
FULL = {
    "t5": "",
    "llama": "",
    "experts": "",
    "quantised": "device=cpu dtype=bfloat16 threads=16 results={results}/threads",
    "kernels": "--device cuda",
    "here": "device=cuda dtype=bfloat16 results={results}",
    "cpu": "device=cpu dtype=bfloat16 results={results}/threads",
    "train": "optim.max_steps=300 data.passages.rows=4000",
    "outputs": "",
    "text": "data.path=[data/wiki-sentences.txt.xz] data.hub=null",
    "sentences": "task.path=data/lm1b-test.txt.gz task.train_path=data/wiki-sentences.txt.xz",
    "steps": "optim.max_steps=100000 optim.warmup_steps=200 compile=true",
    "pair": "optim.beta2=0.95 model.dropout=0 progress=false log_steps=200 save_steps=1000",
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
    "experts": _architecture(
        "hidden_size=64",
        "num_hidden_layers=2",
        "num_attention_heads=4",
        "num_key_value_heads=2",
        "head_dim=16",
        "vocab_size=1000",
    )
    + " target.architecture.num_experts=8 target.architecture.num_experts_per_tok=2 "
    "target.architecture.moe_intermediate_size=32 draft.architecture.intermediate_size=128",
    "quantised": "device=cpu dtype=bfloat16 threads=1 results={results}/threads limit=2 max_new_tokens=16 "
    "target.architecture.hidden_size=64 target.architecture.intermediate_size=128 "
    "target.architecture.num_hidden_layers=2 target.architecture.num_attention_heads=2 "
    "target.architecture.num_key_value_heads=2 target.architecture.head_dim=32 target.architecture.vocab_size=1000",
    "kernels": "--device cpu --small",
    "here": "device=cpu dtype=bfloat16 results={results} limit=2 max_new_tokens=16",
    # One thread: this machine may have no more.
    "cpu": "device=cpu dtype=bfloat16 results={results}/threads limit=2 max_new_tokens=16 threads=1 parts=bde "
    + _architecture(
        "hidden_size=64",
        "intermediate_size=128",
        "num_hidden_layers=2",
        "num_attention_heads=2",
        "num_key_value_heads=2",
        "head_dim=32",
        "vocab_size=4000",
    ),
    "text": "data.path=[specbench/shipped/data/sum-mini-train.jsonl.gz] data.text=article data.hub=null "
    "data.max_rows=60 tokenizer.size=400",
    "sentences": "task.path=specbench/shipped/data/sum-mini-train.jsonl.gz task.reference_field=article "
    "task.train_path=specbench/shipped/data/sum-mini-train.jsonl.gz",
    "steps": "optim.max_minutes=0.05 optim.max_steps=30 optim.batch_size=4 optim.warmup_steps=2 "
    "model.d_model=32 model.d_ff=64 model.heads=2 model.decoder_layers=1 data.max_target=32 threads=1 bf16=false",
    "pair": "optim.beta2=0.95 model.dropout=0 progress=false log_steps=2 save_steps=1000",
    "train": "optim.max_steps=2 optim.batch_size=2 data.max_rows=40 data.passages.rows=10",
    "outputs": "distill.max_new_tokens=4",
}


def words(part: str, small: bool, results: str) -> list[str]:
    """The command of `part`, after the interpreter's name. If a key is given twice, the last value counts."""
    settings = {name: text.format(results=results) for name, text in (SMALL if small else FULL).items()}
    command = shlex.split(PARTS[part].format(results=results, **settings))
    if command[0].endswith(".py"):
        return command
    return ["-m", *command] if command[0] == "pytest" else ["-m", "specbench", *command]


def missing(parts: Sequence[str], variables: dict[str, str]) -> list[str]:
    """What `parts` import and their interpreter, with these environment variables, does not find."""
    names = [*IMPORTS, *(TEST_IMPORTS if "tests" in parts else [])]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TRY, *names], cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True
    )
    found = [line.partition("\t")[2] for line in done.stdout.splitlines() if line.startswith("MISSING\t")]
    return found or ([f"one of {', '.join(names)} (exit code {done.returncode})"] if done.returncode else [])


def not_installed(wheels: Path) -> list[str]:
    """The packages among `wheels`, as NAME==VERSION, that this interpreter does not have in any version."""
    found = []
    for wheel in sorted(wheels.glob("*.whl")):
        name, number, *_ = wheel.name.split("-")
        try:
            version(name)
        except PackageNotFoundError:
            found.append(f"{name}=={number}")
    return found


def environment(wheels: Path | None, site: Path, parts: Sequence[str]) -> dict[str, str]:
    """The environment variables of a part's process. Packages that are missing are installed from `wheels` into `site`.

    Exits with one line that names everything missing if an import of `parts` fails then.
    """
    if wheels is not None and (lacking := not_installed(wheels)):
        options = ["--quiet", "--no-index", "--no-deps", "--find-links", str(wheels), "--target", str(site)]
        if subprocess.run([sys.executable, "-m", "pip", "install", *options, *lacking]).returncode:
            here = f"{sys.version_info.major}.{sys.version_info.minor}"
            sys.exit(f"--wheels {wheels}: not for this interpreter: fetch again with --fetch FOLDER --python {here}")
    paths = [str(ROOT), str(site), os.environ.get("PYTHONPATH", "")]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    if lacking := missing(parts, variables):
        way = "give --wheels FOLDER (make bench-gpu WHEELS=FOLDER), see --fetch"
        if wheels is not None:
            way = f"not in --wheels {wheels}: fetch again, or install by hand"
        sys.exit(f"missing: {', '.join(lacking)}: {way}")
    return variables


def run(part: str, command: Sequence[str], log: Path, variables: dict[str, str]) -> tuple[int, float]:
    """Exit code and seconds of a part, whose output is added to `log` and its end to the screen. It is stopped with all
    its processes after MINUTES (then the code is 124), and when this process is (130)."""
    print(f"== {part}: {shlex.join(command)}", flush=True)
    began = time.monotonic()
    with open(log, "a", encoding="utf-8") as written:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env=variables, stdout=written, stderr=written, start_new_session=True
        )
        try:
            code = process.wait(timeout=60 * MINUTES)
        except subprocess.TimeoutExpired:
            code = 124
        except KeyboardInterrupt:
            code = 130
        finally:
            _end(process)
    print("".join(f"   {line}\n" for line in log.read_text(encoding="utf-8").splitlines()[-12:]), flush=True)
    return code, time.monotonic() - began


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the process and all that it started, so that it may write what it keeps, and kill what remains."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=SECONDS_TO_END)
    with contextlib.suppress(ProcessLookupError):  # nothing remains
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_parts(
    chosen: dict[str, list[str]], again: bool, state: Path, variables: dict[str, str], done: dict[str, Any]
) -> None:
    """Run what is not in `done`, which is what `state` says, or did not end well; write each into both when it ends.

    Raises KeyboardInterrupt after it has written what was interrupted.
    """
    for part, command in chosen.items():
        before = done.get(part, {"code": None, "command": command})
        if not again and before["code"] == 0 and before["command"] == command:
            print(f"== {part}: has run")
            continue
        if not again and before["code"] in STOPPED:
            print(f"== {part}: was stopped after {before['seconds']:.0f} s, and goes on")
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
        if code == 130:
            raise KeyboardInterrupt


def _name(requirement: str) -> str:
    """The package's name in a requirement, normalised as package indexes do."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]).lower()


def requirements() -> list[str]:
    """What pyproject.toml requires beside OF_THE_MACHINE and OF_NO_PART, and what the part `tests` requires."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tests = [one for one in project["optional-dependencies"]["dev"] if _name(one) in FOR_TESTS]
    return [one for one in project["dependencies"] if _name(one) not in OF_THE_MACHINE + OF_NO_PART] + tests


def listed(file: Path) -> set[str]:
    """The packages that a file names, one per line, as `pip freeze` and `pip list` print them."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return {_name(line) for line in lines if re.match(r"[A-Za-z0-9]", line.strip())}


def lacking(there: set[str], python: str) -> list[str]:
    """What a machine with only the packages `there` lacks of `requirements` and of what these require: NAME==VERSION.

    A package's requirements are taken from the version that is installed here, for Linux and the Python named.
    """
    from packaging.requirements import Requirement

    of_machine = {"extra": "", "python_version": python, "sys_platform": "linux", "platform_system": "Linux"}
    left, found = requirements(), dict[str, str]()
    there = {*there, *OF_THE_MACHINE}
    while left:
        wanted = Requirement(left.pop())
        name = _name(wanted.name)
        if name in there or name in found or (wanted.marker is not None and not wanted.marker.evaluate(of_machine)):
            continue
        found[name] = f"{name}=={version(name)}"
        left += requires(name) or []
    return sorted(found.values())


def pins() -> dict[str, str]:
    """The versions that are tested: of a package's normalised name NAME==VERSION."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {_name(line): line for line in lines if "==" in line}


def _stand_in(name: str, number: str, folder: Path) -> None:
    """Write an empty wheel, so that a package which requires `name` brings neither it nor what it requires."""
    stem = f"{name}-{number}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


def fetch(folder: Path, python: str, has: Path | None = None) -> None:
    """Download the wheels of `requirements`, and of what they require, for `python` on Linux (x86-64) into `folder`.

    `has`: a file of the packages that are there already (`listed`), which are left out. pip evaluates
    `python_version` in requirements with the interpreter that runs it. What that misses is named when the imports are
    tried.
    """
    pip = [sys.executable, "-m", "pip"]
    pinned = pins()
    with tempfile.TemporaryDirectory() as temporary:
        own, wheels = Path(temporary) / "own", Path(temporary) / "wheels"
        own.mkdir()
        for name in OF_THE_MACHINE:
            number = f"{pinned[name].partition('==')[2]}+machine"
            pinned[name] = f"{name}=={number}"
            _stand_in(name, number, own)
        wanted = requirements() if has is None else lacking(listed(has), python)
        alone = [] if has is None else ["--no-deps"]
        if built := [pinned[name] for name in BUILT if has is None or name in map(_name, wanted)]:
            subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(own), *built], check=True)
        constraints = Path(temporary) / "constraints.txt"
        constraints.write_text("".join(f"{pin}\n" for pin in pinned.values()), encoding="utf-8")
        options = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
        options += ["--abi", f"cp{python.replace('.', '')}", *(f"--platform={name}" for name in PLATFORMS)]
        options += ["--find-links", str(own), "--constraint", str(constraints), "--dest", str(wheels)]
        subprocess.run([*pip, "download", *alone, *options, *wanted], check=True)
        folder.mkdir(parents=True, exist_ok=True)
        kept = [wheel for wheel in sorted(wheels.iterdir()) if "+machine" not in wheel.name]
        size = sum(wheel.stat().st_size for wheel in kept)
        for wheel in kept:
            shutil.move(wheel, folder / wheel.name)
    print(f"{folder}: {len(kept)} wheels for Python {python}, {size / 1e6:.1f} MB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{' | '.join(PARTS)} (default: all, in this order)")
    parser.add_argument("--list", action="store_true", help="print the commands and stop")
    parser.add_argument("--small", action="store_true", help="small shapes on the CPU, to try it")
    parser.add_argument("--again", action="store_true", help="run parts again that have run")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels for packages that are missing")
    parser.add_argument("--fetch", type=Path, metavar="FOLDER", help="fill such a folder, and stop")
    parser.add_argument("--python", default="3.12", metavar="3.N", help="with --fetch: for this Python (default 3.12)")
    parser.add_argument("--has", type=Path, metavar="FILE", help="with --fetch: what the machine has, left out")
    parser.add_argument("--results", help="the folder to write (default results/gpu, with --small results/gpu-small)")
    given = parser.parse_args()
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}: choose among {', '.join(PARTS)}")
    if not re.fullmatch(r"3\.\d+", given.python) or int(given.python.partition(".")[2]) < 11:
        parser.error(f"--python {given.python}: must be a version such as 3.12, at least 3.11")
    if given.has is not None and not given.has.is_file():
        parser.error(f"--has {given.has}: no such file; `pip freeze` of the machine with the GPU writes it")
    if given.fetch is not None:
        try:
            fetch(given.fetch, given.python, given.has)
        except subprocess.CalledProcessError as error:
            sys.exit(f"--fetch {given.fetch}: pip {error.cmd[3]} failed: nothing was written")
        return 0
    if given.wheels is not None and not given.wheels.is_dir():
        parser.error(f"--wheels {given.wheels}: no such folder; --fetch makes it")
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends a part as Ctrl-C does
    signal.signal(signal.SIGINT, signal.default_int_handler)  # parts of a call in the background would ignore it
    with tempfile.TemporaryDirectory() as site:
        try:
            run_parts(chosen, given.again, state, environment(given.wheels, Path(site), list(chosen)), done)
        except KeyboardInterrupt:
            sys.exit("interrupted: what has run is kept; the same command goes on")
    failed = {part: done[part]["code"] for part in chosen if done[part]["code"]}
    for part in chosen:
        how = f"exit code {failed[part]}" if part in failed else "done"
        print(f"{part:14} {done[part]['seconds']:6.0f} s  {how}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
