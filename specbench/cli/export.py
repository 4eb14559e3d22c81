"""`specbench results --as`: what a run or a document of `specbench alpha` measured, for other programs."""

import json
import sys
from argparse import Namespace
from pathlib import Path

from specbench.cli.formats import plain
from specbench.cli.options import Options
from specbench.errors import UserError
from specbench.records.profile import Profile

KINDS = ("profile",)
ABOUT = (
    "print RUN as JSON for other programs. profile: a draft and its target, α by position and rank, by task, position "
    "in the completion and context length, with intervals and sample sizes, and the measured speedup of each γ by "
    "context length; from runs that differ only in task or γ, or from one draft of a document of specbench alpha. "
    "'specbench results --schema profile' prints its JSON Schema"
)


def add_export(parser: Options) -> None:
    """The options of `results --as`."""
    about = "with --as: runs, or one document of specbench alpha: an id, a unique part of it, a path, or 'last'"
    parser.add_argument("runs", metavar="RUN", nargs="*", help=about)
    parser.add_argument("--as", dest="kind", choices=KINDS, help=ABOUT)
    parser.add_argument("--draft", metavar="NAME", help="with --as: which draft of a document that has several")
    parser.add_argument("--temperature", type=float, metavar="T", help="with --as: which temperature of it")
    parser.add_argument("--output", metavar="FILE", help="with --as: write it there instead of printing it")


def export(arguments: Namespace) -> None:
    """Print or write the document that `results --as` asks for.

    Raises:
        UserError: no run is named, or the named do not make one document.
    """
    if not arguments.runs:
        raise UserError(f"--as {arguments.kind}: name the runs it is made of: specbench results RUN --as profile")
    made = _profile(arguments.results, arguments.runs, arguments.draft, arguments.temperature)
    text = json.dumps(plain(made), indent=1, ensure_ascii=False) + "\n"
    if arguments.output is None:
        sys.stdout.write(text)
        return
    from specbench.files import write_atomically

    print(write_atomically(Path(arguments.output), text, "--output FILE"))


def _profile(results: str, names: list[str], draft: str | None, temperature: float | None) -> Profile:
    from specbench.analysis.profile import profile_of_runs, profile_of_scores
    from specbench.records.alphas import betas, find_scored
    from specbench.records.catalog import Catalog

    documents = [one for name in names if (one := find_scored(results, name)) is not None]
    if not documents:
        if draft is not None or temperature is not None:
            raise UserError("--draft, --temperature: choose from a document of specbench alpha; a run has one of each")
        catalog = Catalog(results)
        return profile_of_runs([catalog.whole(run_id) for run_id in dict.fromkeys(map(catalog.find, names))])
    document = documents[0]
    if len(names) > 1:
        raise UserError(f"{names[0]}: a profile is of runs, or of one document of specbench alpha alone")
    scored = [
        (row, texts)
        for row, texts in betas(document)
        if draft in (None, row["draft"]) and temperature in (None, row["temperature"])
    ]
    if len(scored) != 1:
        there = ", ".join(f"{row['draft']} at T={row['temperature']:g}" for row, _ in betas(document))
        raise UserError(f"{document['alpha_id']}: holds {there}; name one with --draft and --temperature")
    return profile_of_scores(document, scored)
