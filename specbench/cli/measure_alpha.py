"""`specbench alpha`: the acceptance rate of many drafts."""

from __future__ import annotations

from functools import partial

from specbench import api
from specbench.cli.dry_run import DRY_RUN
from specbench.cli.formats import aside, print_rows
from specbench.cli.overrides import read
from specbench.cli.usage import usage
from specbench.compose.grid import launch_each
from specbench.config.verbs import ChooseConfig, check_choose, refused
from specbench.nouns import with_noun
from specbench.report.alpha_tables import draw as draw_alphas

ALPHA_ABOUT = """
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
ALPHA_OPTIONS = LISTS | {
    "sampling.temperature=0,1": "(default: both, a sample for each: alpha at T is defined along completions "
    "that the target samples at T)",
    "experiment=NAME": "the target, drafts and temperatures of a table of the paper: experiment=table3 task=ende",
    "--verbose": "also alpha by position and by rule, of trees, bounds on short heads and on routers, and times",
    **DRY_RUN,
}


def main(argv: list[str]) -> int:
    """Run `specbench alpha` with the words `argv`."""
    command = read(
        argv,
        ChooseConfig,
        lambda: usage("alpha", ALPHA_ABOUT, ChooseConfig, line=LINE, options=ALPHA_OPTIONS, unused=refused("alpha")),
        alone=("verbose", "dry-run"),
    )
    task = partial(score, command.form)
    if "dry-run" in command.options:
        task = partial(only_needs, "alpha", command.form)
    elif "verbose" in command.options:
        task = partial(task, verbose=True)
    launch_each(task, ChooseConfig, command.argv, "alpha", api.BOTH_TEMPERATURES)
    return 0


def only_needs(verb: str, form: str, configs: list[ChooseConfig]) -> None:
    """Print what `verb` needs for `configs`. Raises UserError as `verb` does before it loads anything."""
    for config in configs:
        check_choose(config)
    from specbench.choose.needs import of_alpha, of_recommend
    from specbench.cli.dry_run import show

    show(form, (of_alpha if verb == "alpha" else of_recommend)(configs))


def score(form: str, configs: list[ChooseConfig], verbose: bool = False) -> None:
    """Score the drafts of `configs`; print the table and the record's file; `verbose`: all tables, and times."""
    from specbench.report.console import terminal
    from specbench.stats import FEW_PROMPTS

    found = api.score(configs)
    rows = found.record["rows"]
    print_rows(form, rows, lambda: draw_alphas(found.record, verbose))
    console = terminal(aside(form))
    for setting in found.record["settings"]:
        if not verbose:
            if signs := setting.get("disturbed_by"):
                console.print(f"T={setting['temperature']:g}: CONTENDED: {signs}; α is valid, times are not")
            continue
        kept = f" ({setting['texts_reused']} completions from the cache)" if setting["texts_reused"] else ""
        console.print(
            f"T={setting['temperature']:g}: sampling took {setting['sample_s']:.1f} s{kept}; "
            f"scoring {len(setting['drafts'])} drafts took {setting['score_s']:.1f} s"
            + (f"; CONTENDED, so these times are too long: {signs}" if (signs := setting.get("disturbed_by")) else "")
        )
    if (fewest := min(row["prompts"] for row in rows)) < FEW_PROMPTS:
        console.print(f"only {with_noun(fewest, 'prompt')}: the intervals are rough")
    if not verbose:
        console.print("by position, by rule, trees, bounds and times: the same command with --verbose")
    console.print(f"record: {found.file}")
