"""`specbench alpha`: the acceptance rate of many drafts from one sample of the target's completions."""

from functools import partial
from pathlib import Path

from specbench import api
from specbench.cli.formats import aside, print_rows
from specbench.cli.overrides import read
from specbench.cli.usage import usage
from specbench.compose.grid import launch_each
from specbench.config.verbs import ChooseConfig
from specbench.records.documents import AlphaDocument
from specbench.report.alphas import draw

ABOUT = """
Estimate alpha of every draft on one sample: the target writes its completions once (cached in results/samples/), and
each draft is scored on them by teacher forcing. No gamma is tried, since alpha does not depend on it. Prints a table
with 95% intervals and writes results/alpha/ID.json.
"""
LISTS = {
    "draft=A,B": "drafts of `specbench run`; draft.path=DIR1,DIR2 adds folders to this list; "
    "draft.top_tokens=null,1000 compares heads of all and of the 1,000 likeliest tokens",
    "accept=exact,typical": "score each draft under each rule: the share of drafted tokens that the rule "
    "accepts, and the total variation of its output from the target; accept.lenience= may be a list",
}
LINE = "target=NAME draft=NAME,NAME,... [key=value ...]"
OPTIONS = LISTS | {
    "sampling.temperature=0,1": "(default: both, a sample for each: alpha at T is defined along completions "
    "that the target samples at T)",
    "experiment=NAME": "the target, drafts and temperatures of a table of the paper: experiment=table3 task=ende",
}


def main(argv: list[str]) -> int:
    """Run `specbench alpha` with the words `argv`.

    Raises:
        UserError: a word that cannot be read, or a file that is not what the verb reads.
    """
    if "--help" in argv or "-h" in argv:
        print(
            usage(
                "alpha",
                ABOUT,
                ChooseConfig,
                line=LINE,
                options=OPTIONS,
            )
        )
        return 0
    command = read(argv, ChooseConfig)
    both = {"sampling.temperature": ["0", "1"]}
    launch_each(partial(job, command.form), "choose", ChooseConfig, command.argv, "alpha", both)
    return 0


def job(form: str, configs: list[ChooseConfig]) -> None:
    """Score the drafts of `configs` and print the table."""
    found = api.score(configs)
    print_rows(form, found.record["rows"], lambda: draw(found.record))
    remark(found.file, found.record, form)


def remark(file: Path, record: AlphaDocument, form: str) -> None:
    """The time of the measurement, and the record's file."""
    from specbench.report.terminal import terminal
    from specbench.stats import FEW_PROMPTS

    console = terminal(aside(form))
    rows = record["rows"]
    for setting in record["settings"]:
        kept = f" ({setting['texts_reused']} completions from the cache)" if setting["texts_reused"] else ""
        console.print(
            f"T={setting['temperature']:g}: sampling took {setting['sample_s']:.1f} s{kept}; "
            f"scoring {len(setting['drafts'])} drafts took {setting['score_s']:.1f} s"
            + (f"; DISTURBED, so these times are too long: {signs}" if (signs := setting.get("disturbed_by")) else "")
        )
    if min(row["prompts"] for row in rows) < FEW_PROMPTS:
        console.print(f"only {min(row['prompts'] for row in rows)} prompts: the intervals are rough")
    console.print(f"record: {file}")
