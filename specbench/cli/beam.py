"""`specbench bench beam`: speculative beam search against the target's own beam search, over u and gamma."""

import sys
from dataclasses import asdict
from typing import cast

from specbench.cli.formats import aside, print_rows
from specbench.cli.prepared import launch_verb, prepared, say
from specbench.config.verbs import BeamConfig, beam_run, check_beam
from specbench.escaping import file_name
from specbench.records.documents import BeamDocument, BeamRecord
from specbench.records.schema import SCHEMA_VERSION

ABOUT = """
Speculative beam search (A.4 of the paper): the draft searches gamma steps ahead with u beams, the target scores all of
their hypotheses in one run, and a step is accepted while the target's own beams are among the draft's. Shows how many
target runs this saves, and whether the beams equal those of transformers' beam search.
Writes results/beam/beam-NAME.json and .md.
"""


def main(argv: list[str]) -> int:
    """Run `specbench bench beam` with the words `argv`.

    Raises:
        UserError: a word that cannot be read, or a file that is not what the verb reads.
    """
    return launch_verb(argv, "bench beam", ABOUT, BeamConfig, job, "beam")


def job(form: str, config: BeamConfig) -> None:
    """Run the beam searches of `config`, print the table, and write both files."""
    check_beam(config)
    folder, run, parts = prepared(beam_run(config), "beam")
    from specbench.algorithm.beam import BeamSettings
    from specbench.bench.beams import BeamBench, beam_table, compare_beams
    from specbench.bench.output import write
    from specbench.config.model import name_of
    from specbench.config.names import task_label
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
        rows, theirs_s = compare_beams(BeamBench(parts.target, draft, parts.prompts, settings, us, config.gamma), say)
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
        "transformers_s_per_text": round(theirs_s, 3),
        "environment": surroundings,
        "rows": [cast(BeamRecord, asdict(row)) for row in rows],
    }
    files = write(folder, file_name(f"beam-{'-'.join(names)}", f"-w{config.width}"), document, beam_table(rows))
    print_rows(form, document["rows"], lambda: print(beam_table(rows)))
    print(f"transformers' beam search: {theirs_s:.2f} s a prompt", file=aside(form))
    print(f"written: {files[0]}, {files[1]}", file=aside(form))
