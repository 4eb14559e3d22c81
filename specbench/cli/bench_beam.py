"""`specbench bench beam`: speculative beam search against the target's own beam search, over u and gamma."""

from __future__ import annotations

import sys

from specbench.cli.bench_parts import prepared
from specbench.cli.formats import aside, print_rows
from specbench.cli.options import to_stderr
from specbench.config.verbs import BeamConfig, beam_run, check_beam
from specbench.escaping import file_name
from specbench.recorded import to_json
from specbench.records.run_record import SCHEMA_VERSION
from specbench.records.timed_documents import BeamDocument

BEAM_ABOUT = """
Speculative beam search (A.4 of the paper): the draft searches gamma steps ahead with u beams, the target scores all of
their hypotheses in one run, and a step is accepted while the target's own beams are among the draft's. Shows how many
target runs this saves, and whether the beams equal the beams of transformers' search.
Writes results/beam/beam-NAME.json and .md.
"""


def beam_job(form: str, config: BeamConfig) -> None:
    """Run the beam searches of `config`, print the table, and write both files."""
    check_beam(config)
    folder, run, parts = prepared(beam_run(config), "beam")
    from specbench.algorithm.beam import BeamSettings
    from specbench.analysis.costs.core_time import core_times, waited_share
    from specbench.analysis.costs.disturbance import of_steps
    from specbench.bench.beams import BeamBench, beam_table, compare_beams
    from specbench.bench.bench_files import write
    from specbench.config.model import name_of
    from specbench.config.schema import task_label
    from specbench.engine.eager.model import EagerModel
    from specbench.environment import environment, hardware
    from specbench.experiment.runner import translated_errors
    from specbench.methods.model.draft import ModelDraft

    assert isinstance(parts.target, EagerModel) and isinstance(parts.draft, ModelDraft)
    draft = parts.draft.model
    assert isinstance(draft, EagerModel)
    settings = BeamSettings(
        config.width, config.max_new_tokens, parts.target.eos_ids, config.length_penalty, config.early_stopping
    )
    us = config.u or [config.width, 2 * config.width]
    with translated_errors(run):
        before = core_times()
        rows, theirs_s = compare_beams(
            BeamBench(parts.target, draft, parts.prompts, settings, us, config.gamma), to_stderr
        )
        signs = of_steps(waited_share(before), ()).all_signs
    surroundings = environment()
    names = name_of(config.target), config.draft.label(), config.task.name
    document: BeamDocument = {
        "schema_version": SCHEMA_VERSION,
        "command": f"specbench bench beam {' '.join(sys.argv[1:])}".strip(),
        "target": names[0],
        "draft": names[1],
        "task": task_label(config.task.name, config.task.path),
        "width": config.width,
        "length_penalty": config.length_penalty,
        "early_stopping": config.early_stopping,
        "max_new_tokens": config.max_new_tokens,
        "texts": len(parts.prompts),
        "dtype": run.dtype,
        "hardware": hardware(surroundings, run.device),
        "disturbed_by": signs,
        "transformers_s_per_text": round(theirs_s, 3),
        "environment": surroundings,
        "rows": rows,
    }
    files = write(folder, file_name(f"beam-{'-'.join(names)}", f"-w{config.width}"), document, beam_table(rows))
    print_rows(form, to_json(rows), lambda: print(beam_table(rows)))
    print(f"transformers' beam search: {theirs_s:.2f} s a prompt", file=aside(form))
    if signs is not None:
        print(f"CONTENDED: {signs}; the times are unreliable: run it again when nothing else runs", file=aside(form))
    print(f"written: {files[0]}, {files[1]}", file=aside(form))
