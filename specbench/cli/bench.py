"""`specbench bench`: our decoding against `transformers`', and where our time goes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from specbench.cli.bench_beam import BEAM_ABOUT, beam_job
from specbench.cli.bench_parts import prepared
from specbench.cli.formats import aside, print_rows
from specbench.cli.options import to_stderr
from specbench.cli.overrides import read
from specbench.cli.usage import usage
from specbench.compose.hydra_app import launch_one
from specbench.config.verbs import (
    UNUSED,
    BeamConfig,
    BenchConfig,
    check_bench,
    in_process,
    refused,
)
from specbench.errors import UserError
from specbench.escaping import file_name
from specbench.nouns import with_noun
from specbench.recorded import to_json
from specbench.records.run_record import SCHEMA_VERSION
from specbench.records.timed_documents import BenchDocument, BenchRow

if TYPE_CHECKING:
    from specbench.bench.peers import Peer, Work


T = TypeVar("T", BenchConfig, BeamConfig)


ABOUT = """
Time our greedy decoding against `generate` and our speculative decoding against assisted generation, on the same
networks and prompts, interleaved; a step against the time it takes to read its weights; the parts of a pass; and how
time grows with gamma, length and vocabulary. Writes results/bench/bench-NAME.json and .md.
`specbench bench beam` times speculative beam search: its keys are in `specbench bench beam --help`.
"""


def main(argv: list[str]) -> int:
    """Run `specbench bench` with the words `argv`."""
    if argv[:1] == ["beam"]:
        return _launch(argv[1:], "bench beam", BEAM_ABOUT, BeamConfig, beam_job)
    return _launch(argv, "bench", ABOUT, BenchConfig, job)


def _launch(argv: list[str], verb: str, about: str, schema: type[T], job: Callable[[str, T], None]) -> int:
    unused = refused(verb) if verb in UNUSED else ()
    command = read(argv, schema, lambda: usage(verb, about, schema, unused=unused))
    for words in each_context(command.argv):
        launch_one(partial(job, command.form), schema, words, verb)
    return 0


def each_context(words: list[str]) -> list[list[str]]:
    """`words` with each context of `context=1k,4k` in turn."""
    listed = next((word for word in words if word.startswith("context=") and "," in word), None)
    if listed is None:
        return [words]
    contexts = listed.removeprefix("context=").strip("[]").split(",")
    return [[f"context={one}" if word == listed else word for word in words] for one in contexts]


def _servers(config: BenchConfig) -> Mapping[str, Callable[[Work], Peer]]:
    """How those peers are started that run as servers. Raises UserError if one is not installed."""
    names = [name for name in config.peers if not in_process(name)]
    if not names:
        return {}
    from specbench.interop.starting.served_peers import served

    return {name: served(name, config, to_stderr) for name in names}


def job(form: str, config: BenchConfig) -> None:
    """Time the parts of `config`, print the table, and write both files.

    Raises UserError if `engine=auto` fell back to eager, which says little about our engines.
    """
    check_bench(config)
    served = _servers(config)
    folder, run, parts = prepared(config, "bench")
    if parts.fell_back is not None and "eager" in parts.engine:
        raise UserError(
            f"engine=auto: a model's step cannot be captured ({parts.fell_back}), and eager steps say little about "
            "this engine; engine=eager times them anyway"
        )
    import torch

    from specbench.bench.bench_files import table, write
    from specbench.bench.bench_setup import Bench
    from specbench.bench.benchmark import bench
    from specbench.bench.parts import why_step_by_step
    from specbench.config.model import name_of, weights_folder
    from specbench.environment import environment, hardware
    from specbench.experiment.runner import translated_errors
    from specbench.records.documents import saved_document

    setup = Bench(
        target=parts.target,
        draft=parts.draft,
        prompts=parts.prompts,
        gammas=config.gammas,
        max_new_tokens=config.max_new_tokens,
        dtype=getattr(torch, run.dtype),
        device=parts.device,
        repeats=config.repeats,
        warmup_s=parts.warmup_s,
        parts=config.parts,
        batches=tuple(config.batches),
        bandwidth=config.bandwidth,
        launch_us=config.launch_us,
        peers=tuple(config.peers),
        served=served,
        folder=weights_folder(config.target),
    )
    surroundings = environment()
    at = None if run.context is None else f"c{run.context}"
    short = "-".join(name for name in (name_of(config.target), config.draft.label(), at) if name)
    name = file_name(f"bench-{short}", f"-{parts.device.type}-{run.dtype}")

    def keep(rows: list[BenchRow], name: str) -> tuple[Path, Path]:
        document: BenchDocument = {
            "schema_version": SCHEMA_VERSION,
            "command": f"specbench bench {' '.join(sys.argv[1:])}".strip(),
            "hardware": hardware(surroundings, run.device),
            "dtype": run.dtype,
            "engine": parts.engine,
            "rollout_fell_back": parts.rollout_fell_back,
            "prompts": len(parts.prompts),
            "max_new_tokens": config.max_new_tokens,
            "environment": surroundings,
            "rows": rows,
        }
        if parts.gpu_kernels is not None:
            document["gpu_kernels"] = parts.gpu_kernels
        return write(folder, name, document, table(rows))

    earlier = saved_document(folder / f"{name}.json", BenchDocument)
    before = 0 if earlier is None else len(earlier["rows"])
    so_far, unfinished = list[BenchRow](), f"{name}-unfinished"

    def keep_so_far(rows: list[BenchRow]) -> None:
        """Write the rows of the parts that are timed; beside an earlier benchmark, if that has more."""
        so_far[:] = rows
        keep(rows, unfinished if len(rows) < before else name)

    with translated_errors(run):
        reason = why_step_by_step(parts.draft, parts.prompts[0], config.gammas, config.max_new_tokens)
        if reason is not None and not config.step_by_step:
            raise UserError(
                f"engine={parts.engine}: the draft's steps cannot be captured as one graph ({reason}), and drafting "
                "step by step says little of this engine: give step_by_step=true to time it"
            )
        try:
            rows = bench(setup, to_stderr, keep_so_far)
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(_interrupted(folder, name, unfinished, len(so_far), before)) from stop
    files = keep(rows, name)
    for ending in ("json", "md"):
        (folder / f"{unfinished}.{ending}").unlink(missing_ok=True)
    print_rows(form, to_json(rows), lambda: print(table(rows)))
    if contended := sum(row.disturbed_by is not None for row in rows):
        print(
            f"CONTENDED: the times of {contended} of {len(rows)} rows are unreliable; run it again when nothing else "
            "runs",
            file=aside(form),
        )
    print(f"written: {files[0]}, {files[1]}", file=aside(form))


def _interrupted(folder: Path, name: str, unfinished: str, rows: int, before: int) -> str:
    """What Ctrl-C leaves of a benchmark: `rows` are timed, and an earlier one of this `name` had `before`."""
    file, other = folder / f"{name}.json", folder / f"{unfinished}.json"
    kept = f"{with_noun(rows, 'row, is')} in {file if rows >= before else other}; " if rows else ""
    left = f"{file} is as an earlier benchmark left it, with {with_noun(before, 'row')}; " if before > rows else ""
    return f"interrupted; {kept}{left}the same command times all parts again, parts=LETTERS some of them"
