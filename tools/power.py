"""The power of `specbench compare --baseline` on this machine: real runs of the shipped pair, each in a fresh process.

Usage:
    python tools/power.py [FOLDER]      (default results/power; run again after an interruption, it resumes)

One process measures a baseline; then come, interleaved, repeats without a change, runs of which 5% of the accepted
tokens are rejected, and runs whose passes take a ninth longer. Each is compared with the baseline as the command does
it. At most one of 50 repeats may alarm, 9 of 10 losses must be found: exit code 1 otherwise. A disturbed run is
measured again, as --again does. The faults are planted here, in the child process; specbench has no switch for them.

It also estimates how much repeats differ between processes, over what prompts explain: `analysis.regression.BETWEEN`,
whose values must not be below. All is written to FOLDER/power.json.
"""

import argparse
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
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specbench.analysis.regression import BETWEEN, between_processes, compare_with_baseline, measurement  # noqa: E402
from specbench.files import json_text  # noqa: E402
from specbench.records.measurements import read_measurements, write_measurements  # noqa: E402

REJECTED, SLOWER = 0.05, 0.1
KINDS = ("same", "alpha", "speed")
MOST_TRIES = 3  # of a disturbed run


def plant_rejections(share: float, draw: Random) -> None:
    """Reject this share of accepted tokens: a rejected token is emitted as if the target had drawn it, so completions
    remain the target's own. Along the target's completions, where α is measured, as many tokens count as rejected."""
    from specbench.algorithm import decoding
    from specbench.algorithm.acceptance.base import Verdict
    from specbench.experiment import measure

    verify: Callable[..., Any] = decoding.verdict_on_host
    agree: Callable[..., Any] = measure.agreements

    def verdict_on_host(*given: Any) -> Any:
        proposal, verdict = verify(*given)
        for place, index in enumerate(verdict.path):
            if draw.random() < share:
                return proposal, Verdict(verdict.path[:place], proposal.tokens[index])
        return proposal, verdict

    def agreements(*given: Any) -> Any:
        return [replace(one, beta=[b * (draw.random() >= share) for b in one.beta]) for one in agree(*given)]

    decoding.verdict_on_host = verdict_on_host
    measure.agreements = agreements


def plant_waiting(share: float) -> None:
    """Let each pass take 1 / (1 - share) times as long, by waiting busily after its verdict."""
    from specbench.algorithm import decoding

    verify: Callable[..., Any] = decoding.verdict_on_host
    passes: list[float] = []
    ended = time.perf_counter()

    def verdict_on_host(*given: Any) -> Any:
        nonlocal ended
        found = verify(*given)
        now = time.perf_counter()
        passes.append(now - ended)  # the first of a completion has what came before it, too
        ended = now + min(passes[-1], 2 * median(passes[-200:])) * share / (1 - share)
        while time.perf_counter() < ended:
            pass
        ended = time.perf_counter()
        return found

    decoding.verdict_on_host = verdict_on_host


def child(kind: str, seed: int, limit: int, temperature: float) -> None:
    """Measure once and print the measurement."""
    import specbench

    if kind == "alpha":
        plant_rejections(REJECTED, Random(seed))
    elif kind == "speed":
        plant_waiting(SLOWER)
    with tempfile.TemporaryDirectory() as results:
        run = specbench.run(
            target="t5-mini", draft="t5-nano", gamma=3, limit=limit, sampling={"temperature": temperature},
            resamples=100, results=results, quiet=True,
        )  # fmt: skip
    print(json_text(measurement(run.record)))


def measured(kind: str, seed: int, words: list[str]) -> dict[str, Any]:
    """The measurement of a fresh process; of a disturbed one that of another."""
    for _ in range(MOST_TRIES):
        command = [sys.executable, __file__, "--child", kind, "--seed", str(seed), *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if not row["disturbed_by"]:
            break
        print(f"{kind} {seed}: disturbed ({row['disturbed_by']})", file=sys.stderr)
    return row


def alarms(baseline: list[Any], row: Any) -> bool:
    """Whether a quantity moved. A run that is still disturbed fails the command, too, but finds nothing."""
    return any(one.fails for one in compare_with_baseline(baseline, [row]).tested)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", default=str(ROOT / "results" / "power"))
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--planted", type=int, default=10, help="runs of each loss")
    parser.add_argument("--limit", type=int, default=30, help="prompts of a run")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.seed, arguments.limit, arguments.temperature)
        return 0
    words = ["--limit", str(arguments.limit), "--temperature", str(arguments.temperature)]
    folder = Path(arguments.folder)
    planned = {"base": 1, "same": arguments.repeats, "alpha": arguments.planted, "speed": arguments.planted}
    files = {kind: folder / f"{kind}.jsonl" for kind in planned}
    rows = {kind: read_measurements(file, "FOLDER") if file.exists() else [] for kind, file in files.items()}
    while missing := [kind for kind in planned if len(rows[kind]) < planned[kind]]:
        kind = min(missing, key=lambda kind: (kind != "base", len(rows[kind]) / planned[kind]))
        rows[kind].append(measured(kind, len(rows[kind]), words))  # type: ignore[arg-type]
        write_measurements(files[kind], rows[kind], "FOLDER")
        print(f"{sum(map(len, rows.values()))} of {sum(planned.values())} processes", file=sys.stderr)
    found = {kind: sum(alarms(rows["base"], row) for row in rows[kind]) for kind in KINDS}
    repeats = rows["base"] + rows["same"]
    between = {name: between_processes(repeats, name) for name in BETWEEN if name in repeats[0]["quantities"]}
    first = repeats[0]
    document = {
        "commit": first["commit"], "created": first["created"], "hardware": first["hardware"], "of": planned,
        "alarms": found, "disturbed": sum(bool(row["disturbed_by"]) for some in rows.values() for row in some),
        "between": between,
    }  # fmt: skip
    (folder / "power.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))
    for name in [name for name, value in between.items() if value > BETWEEN[name]]:
        print(f"BETWEEN[{name!r}] = {BETWEEN[name]} is too low here: {between[name]:.4f}", file=sys.stderr)
    enough = all(found[kind] >= 0.9 * planned[kind] for kind in ("alpha", "speed"))
    return 0 if found["same"] <= max(1, arguments.repeats // 50) and enough else 1


if __name__ == "__main__":
    sys.exit(main())
