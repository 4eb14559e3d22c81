"""`specbench results --as`: what a run or a document of `specbench alpha` measured, for other programs."""

from argparse import Namespace
from pathlib import Path

from specbench.cli.formats import as_json
from specbench.cli.options import Options, to_stderr
from specbench.errors import UserError
from specbench.files import write_atomically
from specbench.recorded import to_json
from specbench.records.catalog import Catalog
from specbench.records.profile_document import Profile
from specbench.records.served import SERVED

FORMS = ("vllm", "llama.cpp", "sglang", "tensorrt-llm", "speculation-profile", "inferencex")  # of forced acceptance
PROFILE = (
    "print RUN as JSON for other programs. profile: a draft and its target, α by position and rank, by task, position "
    "in the completion and context length, with intervals and sample sizes, and the measured speedup of each γ by "
    "context length; from runs that differ only in task or γ, or from one draft of a document of specbench alpha. "
    "'specbench results --schema profile' prints its JSON Schema. Others: the run's acceptance by position, as "
    "benchmarks of engines force it (vllm, llama.cpp, sglang, tensorrt-llm), as speculation_profile.json, or as "
    "InferenceX's lengths by γ"
)


def add_export(parser: Options) -> None:
    """The options of `results --as`."""
    about = (
        "show these runs and the machine that each ran on: an id, a unique part of it, a path, or 'last'; with --as: "
        "runs, or one document of specbench alpha"
    )
    parser.add_argument("runs", metavar="RUN", nargs="*", help=about)
    parser.add_argument("--as", dest="kind", choices=("profile", *FORMS), help=PROFILE)
    parser.add_argument("--draft", metavar="NAME", help="with --as: which draft of a document that has several")
    parser.add_argument("--temperature", type=float, metavar="T", help="with --as: which temperature of it")
    parser.add_argument("--output", metavar="FILE", help="with --as: write it there instead of printing it")


def export(arguments: Namespace) -> None:
    """Print or write the document that `results --as` asks for.

    Raises UserError if no run is named, or the named do not make one document.
    """
    if not arguments.runs:
        form = f"--as {arguments.kind}"
        raise UserError(f"{form}: name the runs it is made of: specbench results RUN {form}")
    _require_passes(arguments)
    made: object
    if arguments.kind == "profile":
        made = _profile(arguments.results, arguments.runs, arguments.draft, arguments.temperature)
    elif other := [name for name in ("draft", "temperature") if getattr(arguments, name) is not None]:
        raise UserError(f"--{other[0]}: goes with --as profile; --as {arguments.kind} is of a run, which has one")
    else:
        made = _forced(arguments.kind, arguments.results, arguments.runs)
    text = made if isinstance(made, str) else as_json(made)
    if arguments.output is None:
        print(text)
    else:
        print(write_atomically(Path(arguments.output), text + "\n", "--output FILE"))


def _require_passes(arguments: Namespace) -> None:
    """Raises UserError for a record of a server, whose passes are not seen."""
    heads = Catalog(arguments.results).heads
    for name in arguments.runs:
        if any(head.summary.get(SERVED) for head in heads if name in head.run_id):
            raise UserError(f"{name}: is of a server, whose passes are not seen; --as is made of runs")


def _forced(form: str, results: str, names: list[str]) -> str | dict[str, object]:
    """The acceptance of runs, in the form in which another program is set to it."""
    from specbench.interop.readings.forced_from_runs import written

    catalog = Catalog(results)
    records = [to_json(catalog.whole(run_id)) for run_id in dict.fromkeys(map(catalog.find, names))]
    for record in records:
        if record["summary"]["simulated"]:
            to_stderr(f"simulated, acceptance was drawn at a given α or weights are random: {record['run_id']}")
    return written(form, records)


def _profile(results: str, names: list[str], draft: str | None, temperature: float | None) -> Profile:
    from specbench.analysis.profile import profile_of_runs, profile_of_scores
    from specbench.records.alphas import betas, find_scored

    documents = [one for name in names if (one := find_scored(results, name)) is not None]
    if not documents:
        if draft is not None or temperature is not None:
            raise UserError("--draft, --temperature: choose from a document of specbench alpha; a run has one of each")
        catalog = Catalog(results)
        return profile_of_runs([catalog.whole(run_id) for run_id in dict.fromkeys(map(catalog.find, names))])
    document = documents[0]
    if len(names) > 1:
        raise UserError(f"{names[0]}: a profile is of runs, or of only one document of specbench alpha")
    scored = [
        (row, texts)
        for row, texts in betas(document)
        if draft in (None, row["draft"]) and temperature in (None, row["temperature"])
    ]
    if len(scored) != 1:
        there = ", ".join(f"{row['draft']} at T={row['temperature']:g}" for row, _ in betas(document))
        raise UserError(f"{document['alpha_id']}: holds {there}; name one with --draft and --temperature")
    return profile_of_scores(document["alpha_id"], *scored[0])
