"""The power of `specbench compare --baseline` on this machine: real runs of the shipped pair, each in a fresh process.

Usage:
    python tools/power.py [FOLDER]      (default results/power; run again after an interruption, it resumes)

At each temperature one process measures a baseline; then come, interleaved, repeats without a change and runs with a
planted fault:

    alpha   5% of the accepted tokens are rejected
    speed   a pass takes a ninth longer
    lossy   every 20th rejected token is emitted although it was rejected: about one token in 200

Each is compared with the baseline as the command does it. At most one of 50 repeats may alarm, and 9 of 10 faults must
be found: exit code 1 otherwise. At T > 0 faults of kind lossy need not be found: the result says how many are, since
the proof of so few tokens finds only larger faults. A disturbed run is measured again, as --again does.

Faults are planted here, in the child process, in both loops: in Python's, and in a copy of `passes.h` that the child
compiles, where passes of engine=native run. A plant counts what it changed; a run that recorded passes which no plant
saw, or in which nothing was changed, ends the tool.

It also estimates how much more repeats differ between processes than prompts explain: the values of
`analysis.changes.BETWEEN` must not be lower. All is written to FOLDER/power.json.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, cast

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specbench.analysis.as_measurement import measurement  # noqa: E402
from specbench.analysis.baseline import between_processes, compare_with_baseline  # noqa: E402
from specbench.analysis.changes import BETWEEN  # noqa: E402
from specbench.files import json_text, write_atomically  # noqa: E402
from specbench.records.measurements import Measurement  # noqa: E402

REJECTED, SLOWER, EVERY = 0.05, 0.1, 20
PLANTS = ("alpha", "speed", "lossy")
KINDS = ("base", "same", *PLANTS)
MOST_TRIES = 3  # of a disturbed run
Row = dict[str, Any]


class Plant:
    """A fault in both loops; counts the passes that it saw, and what it changed."""

    # Places of a pass in C, in this file of `specbench/kernels`: its verdict, its beginning and its end.
    FILE = "passes.h"
    JUDGED = "    memcpy(of->drafted + pass * of->gamma, drafted, count * sizeof(int64_t));\n"
    BEGINS = "    Speculation all = {draft, target, of, .scratch = {scratch, scratch_size, most_threads}};\n"
    ENDS = "            done->over_s = now_s(), all->pass++;\n"
    COUNTERS = "static double now_s(void) {\n"

    def __init__(self, kind: str, seed: int) -> None:
        self.kind, self.draw = kind, Random(seed)
        self.passes = self.changed = self.rejections = 0
        self.ended, self.took = time.perf_counter(), list[float]()
        self._in_python()
        self._in_c(seed)

    def counts(self) -> tuple[int, int]:
        """Passes seen and changes made, in both loops."""
        from specbench.kernels import is_available, library

        in_c = (
            [ctypes.c_int64.in_dll(library(), f"planted_{name}").value for name in ("passes", "changed")]
            if is_available()
            else [0, 0]
        )
        return self.passes + in_c[0], self.changed + in_c[1]

    def _in_python(self) -> None:
        from specbench.algorithm import decoding
        from specbench.experiment import measure

        verify: Callable[..., Any] = decoding.verdict_on_host
        agree: Callable[..., Any] = measure.agreements

        def verdict_on_host(*given: Any) -> Any:
            proposal, verdict = verify(*given)
            self.passes += 1
            return proposal, self._wrong(proposal.tokens, verdict)

        def agreements(*given: Any) -> Any:
            """Along the target's completions, where α is measured, as many tokens count as rejected."""
            return [
                replace(one, beta=[b * (self.draw.random() >= REJECTED) for b in one.beta]) for one in agree(*given)
            ]

        decoding.verdict_on_host = verdict_on_host
        if self.kind == "alpha":
            measure.agreements = agreements

    def _wrong(self, tokens: Any, verdict: Any) -> Any:
        """The verdict on `tokens` with the fault; a rejected token is emitted as if the target had drawn it."""
        from specbench.algorithm.acceptance.base import Verdict

        path = list(verdict.path)
        if self.kind == "alpha":
            for place, index in enumerate(path):
                if self.draw.random() < REJECTED:
                    self.changed += 1
                    return Verdict(path[:place], tokens[index])
        elif self.kind == "lossy" and len(path) < len(tokens):
            self.rejections += 1
            if self.rejections % EVERY == 0:
                self.changed += 1
                return Verdict(path, tokens[len(path)])
        elif self.kind == "speed":
            now = time.perf_counter()
            self.took.append(now - self.ended)  # the first of a completion also includes the time before it
            self.ended = now + min(self.took[-1], 2 * median(self.took[-200:])) * SLOWER / (1 - SLOWER)
            while time.perf_counter() < self.ended:
                pass
            self.ended = time.perf_counter()
            self.changed += 1
        return verdict

    def _in_c(self, seed: int) -> None:
        """The same in a copy of the kernels, which are compiled when the run first needs them."""
        from specbench import kernels

        files = kernels.sources()
        code = files[self.FILE]
        counted = (
            f"int64_t planted_passes, planted_changed; static double planted_since;\n"
            f"static uint64_t planted_draw = {seed + 1}; static int64_t planted_rejections;\n"
        )
        judged = "    planted_passes += of->gamma > 0;\n" + {
            "alpha": f"""    for (int64_t i = 0; i < accepted; i++) {{
        planted_draw = planted_draw * 6364136223846793005u + 1442695040888963407u;
        if ((planted_draw >> 11) * 0x1p-53 < {REJECTED}) {{ token = drafted[accepted = i]; planted_changed++; }}
    }}
""",
            "lossy": f"""    if (accepted < count && ++planted_rejections % {EVERY} == 0) {{
        token = drafted[accepted];
        planted_changed++;
    }}
""",
        }.get(self.kind, "")
        begins = "    planted_since = now_s();\n"
        ends = (
            f"""                if (of->gamma > 0) {{
                    double until = now_s() + (now_s() - planted_since) * {SLOWER / (1 - SLOWER)};
                    while (now_s() < until);
                    planted_changed++;
                }}
                planted_since = now_s();
"""
            if self.kind == "speed"
            else ""
        )
        for place, more in (
            (self.COUNTERS, counted), (self.JUDGED, judged), (self.BEGINS, begins), (self.ENDS, ends)
        ):  # fmt: skip
            if code.count(place) != 1:
                sys.exit(f"tools/power.py: {self.FILE} has {code.count(place)} lines {place.strip()!r}: plant anew")
            code = code.replace(place, place + more if place is self.BEGINS else more + place)
        folder = Path(tempfile.mkdtemp())
        for name, text in (files | {self.FILE: code}).items():
            (folder / name).write_text(text, encoding="utf-8")
        kernels.SOURCE = folder / kernels.SOURCE.name


def child(kind: str, seed: int, limit: int, temperature: float, threads: int | None) -> None:
    """Measure once and print the measurement, and what was planted."""
    import specbench
    from specbench.errors import MachineError

    plant = Plant(kind, seed) if kind in PLANTS else None
    keys: dict[str, Any] = {
        "target": "t5-mini", "draft": "t5-nano", "gamma": 3, "limit": limit, "sampling": {"temperature": temperature},
        "quiet": True, "threads": threads,
    }  # fmt: skip
    row: Row
    with tempfile.TemporaryDirectory() as results:
        try:
            record = specbench.run(**keys, results=results).record
        except MachineError as error:  # a sampled run first proves its loop at T = 0
            row, recorded = {"refused": str(error), "disturbed_by": None}, 1
        else:
            row, recorded = dict(measurement(record)), record["summary"]["passes"]
    if plant is not None:
        passes, changed = plant.counts()
        row |= {"recorded": recorded, "passes": passes, "changed": changed}
    print(json_text(row))


def measured(kind: str, seed: int, words: list[str]) -> Row:
    """The measurement of a fresh process, or of another one if it was disturbed.

    Ends the tool if a process fails, or its plant was not hit.
    """
    for _ in range(MOST_TRIES):
        command = [sys.executable, __file__, "--child", kind, "--seed", str(seed), *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        row: Row = json.loads(done.stdout.splitlines()[-1])
        if kind in PLANTS and (row["passes"] < row["recorded"] or not row["changed"]):
            sys.exit(
                f"{kind} {seed}: not planted: {row['recorded']} passes were recorded, of which the plant saw "
                f"{row['passes']} and changed {row['changed']}; this version runs passes elsewhere"
            )
        if not row["disturbed_by"]:
            break
        print(f"{kind} {seed}: disturbed ({row['disturbed_by']})", file=sys.stderr)
    return row


def alarms(baseline: list[Any], row: Row) -> bool:
    """Whether a quantity moved or completions are not the target's.

    A measurement that is still disturbed also fails the command, but finds nothing.
    """
    if "refused" in row:
        return True
    found = compare_with_baseline(baseline, [cast(Measurement, row)])
    return any(one.fails for one in found.tested) or bool(found.wrong or found.contradicting)


def read(file: Path) -> list[Row]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def at(temperature: float, folder: Path, words: list[str], planned: dict[str, int]) -> dict[str, Any]:
    """All runs at a temperature, and what was found; `words` are the options of each process."""
    words = [*words, "--temperature", str(temperature)]
    files = {kind: folder / f"T{temperature:g}-{kind}.jsonl" for kind in planned}
    rows = {kind: read(file) for kind, file in files.items()}
    folder.mkdir(parents=True, exist_ok=True)
    while missing := [kind for kind in planned if len(rows[kind]) < planned[kind]]:
        kind = min(missing, key=lambda kind: (kind != "base", len(rows[kind]) / planned[kind]))
        rows[kind].append(measured(kind, len(rows[kind]), words))
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows[kind])
        write_atomically(files[kind], text, "FOLDER")
        print(f"T={temperature:g}: {sum(map(len, rows.values()))} of {sum(planned.values())}", file=sys.stderr)
    repeats = cast(list[Measurement], rows["base"] + rows["same"])
    first = repeats[0]
    return {
        "commit": first["commit"], "created": first["created"], "hardware": first["hardware"], "of": planned,
        "alarms": {kind: sum(alarms(rows["base"], row) for row in rows[kind]) for kind in KINDS[1:]},
        "disturbed": sum(bool(row["disturbed_by"]) for some in rows.values() for row in some),
        "planted": {
            kind: {name: sum(row[name] for row in rows[kind]) for name in ("recorded", "passes", "changed")}
            for kind in PLANTS
        },
        "between": {
            name: between_processes(repeats, name) for name in BETWEEN if name in first["quantities"]
        },
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", default=str(ROOT / "results" / "power"))
    parser.add_argument("--repeats", type=int, default=50, help="at the first temperature; a fifth at others")
    parser.add_argument("--planted", type=int, default=10, help="runs with each fault")
    parser.add_argument("--limit", type=int, default=30, help="prompts of a run")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--threads", type=int, help="of each run (default: as `run` chooses)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--temperature", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.seed, given.limit, given.temperature, given.threads)
        return 0
    folder, document, passed = Path(given.folder), {}, True
    words = ["--limit", str(given.limit), *(["--threads", str(given.threads)] if given.threads else [])]
    for number, temperature in enumerate(given.temperatures):
        repeats = given.repeats if number == 0 else max(1, given.repeats // 5)
        planned = {"base": 1, "same": repeats} | dict.fromkeys(PLANTS, given.planted)
        found = document[f"T={temperature:g}"] = at(temperature, folder, words, planned)
        for name in [name for name, value in found["between"].items() if value > BETWEEN[name]]:
            print(f"BETWEEN[{name!r}] = {BETWEEN[name]} is too low here: {found['between'][name]:.4f}", file=sys.stderr)
        needed = PLANTS if temperature == 0 else PLANTS[:2]
        passed &= all(found["alarms"][kind] >= 0.9 * planned[kind] for kind in needed)
        passed &= found["alarms"]["same"] <= max(1, repeats // 50)
    (folder / "power.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
