"""`specbench alpha`: the acceptance rate of many drafts from one sample of the target's completions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.cli.formats import aside, print_rows
from specbench.cli.grid import launch_each, progress
from specbench.cli.overrides import read
from specbench.cli.usage import usage
from specbench.config.verbs import ChooseConfig
from specbench.records.documents import AlphaDocument, AlphaRow

if TYPE_CHECKING:
    from rich.table import Table

ABOUT = """
Estimate alpha of every draft on one sample: the target writes its completions once (cached in results/samples/), and
each draft is scored on them by teacher forcing. No gamma is tried, since alpha does not depend on it. Prints a table
with 95% intervals and writes results/alpha/ID.json.
"""
LISTS = {
    "'draft=[A,B]'": "drafts of `specbench run`; 'draft.path=[DIR1,DIR2]' adds folders to this list",
    "'accept=[exact,typical]'": "score each draft under each rule: the share of drafted tokens that the rule "
    "accepts, and the total variation of its output from the target; accept.lenience= may be a list",
}
OF_CHILDREN = {  # rows of the table, in order
    "fixed": "fixed (the likeliest): one-hot",
    "distinct": "distinct: multi-round",
    "optimum, distinct": "distinct: optimum",
    "replaced": "replaced: multi-round",
    "k-seq": "replaced: K-SEQ",
    "optimum, replaced": "replaced: optimum",
}
LINE = "target=NAME 'draft=[NAME,NAME,...]' [key=value ...]"
OPTIONS = LISTS | {
    "'sampling.temperature=[0,1]'": "(default: both, a sample for each: alpha at T is defined along completions "
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
    with progress(configs) as screen:
        from specbench.choose.alpha import measure_alpha  # torch is imported only from here on

        file, record = measure_alpha(configs, screen)
    print_rows(form, record["rows"], lambda: draw(record))
    remark(file, record, form)


def draw(record: AlphaDocument) -> None:
    """alpha by draft and temperature, then alpha(l)."""
    from rich.markup import escape
    from rich.table import Table

    from specbench.cli.formats import terminal

    console = terminal()
    console.width = max(console.width, 160)
    rows = record["rows"]
    first = rows[0]
    named = f"[bold]{escape(first['target'])}[/bold] on {escape(first['task'])}"
    console.print(f"α of drafts for {named}, {first['dtype']}", markup=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    ruled = any(row["accept"] != "exact" for row in rows)
    leniences = [one for one in first["lenient"] if one != "1"]
    rule = ("rule", "α(rule)", "95%", "TV") if ruled else ()
    for title in ("draft", "T", "α", "95%", *rule, *(f"α(l={one})" for one in leniences), "tokens", "prompts"):
        table.add_column(title, justify="left" if title in ("draft", "rule") else "right")
    for row in sorted(rows, key=lambda row: (row["temperature"], -row["alpha"])):
        table.add_row(
            row["draft"], f"{row['temperature']:g}", f"{row['alpha']:.3f}", _span(row["alpha_low"], row["alpha_high"]),
            *(_of_rule(row) if ruled else ()), *(f"{row['lenient'][one]['value']:.3f}" for one in leniences),
            str(row["tokens"]), str(row["prompts"]),
        )  # fmt: skip
    console.print(table)
    console.print(_by_position(list({(row["temperature"], row["draft"]): row for row in rows}.values())))
    if sampled := {(row["temperature"], row["draft"]): row for row in rows if row["temperature"] > 0}:
        console.print(_of_rules(list(sampled.values())))
    if differing := [row for row in rows if "vocabulary" in row]:
        console.print(_of_vocabularies(differing))
    ranked = {(row["temperature"], row["draft"]): row for row in rows if "acceptance_of_children" in row}
    if ranked:
        console.print(_of_children(list(ranked.values())))
        console.print(
            "  column k minus column k-1 is the probability that child k is the accepted one (P of a tree). optimum: "
            "the best of all lossless rules for children chosen this way (optimal transport)"
        )


def _by_position(rows: list[AlphaRow]) -> Table:
    """α of each token of a proposal, and the share of positions with a proposal."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left", title_style="")
    table.title = "α by position (Algorithm 1): acceptance of draft token k given that tokens 1 to k-1 were accepted"
    most = max(len(row["alpha_by_position"]) for row in rows)
    for title in ("draft", "T", "proposes", *(f"k={k}" for k in range(1, most + 1)), "95% at k=1"):
        table.add_column(title, justify="left" if title == "draft" else "right")
    for row in sorted(rows, key=lambda row: (row["temperature"], -row["alpha"])):
        found = row["alpha_by_position"]
        values = [f"{one['value']:.3f}" for one in found] + ["–"] * (most - len(found))
        first = _span(found[0]["low"], found[0]["high"]) if found else "–"
        table.add_row(row["draft"], f"{row['temperature']:g}", f"{1 - row['silent']:.1%}", *values, first)
    return table


def _of_vocabularies(rows: list[AlphaRow]) -> Table:
    """Drafts whose vocabulary differs from the target's: what both share, and what the mismatch costs."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left", title_style="")
    table.title = "different vocabularies: α without mismatch is over shared tokens (tli), or by string (slem)"
    titles = ("target tokens shared", "draft tokens", "target mass", "α", "without mismatch", "95%", "lost")
    for title in ("draft", "T", *titles):
        table.add_column(title, justify="left" if title == "draft" else "right")
    for row in sorted(rows, key=lambda row: (row["temperature"], -row["alpha"])):
        shares = (row["shared_of_target"], row["shared_of_draft"], row["shared_mass"])
        table.add_row(
            row["draft"], f"{row['temperature']:g}", *(f"{share:.1%}" for share in shares), f"{row['alpha']:.3f}",
            f"{row['alpha_matched']:.3f}", _span(row["alpha_matched_low"], row["alpha_matched_high"]),
            f"{row['alpha_matched'] - row['alpha']:.3f}",
        )  # fmt: skip
    return table


def _of_rules(rows: list[AlphaRow]) -> Table:
    """α of each draft under the three lossless rules that engines use at T > 0."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left", title_style="")
    table.title = (
        "α at T>0 by rule: exact Σ min(p, q); match Σ pq; onehot p at q's argmax (docs/rules.md lists engines)"
    )
    for title in ("draft", "T", "exact", "95%", "match", "95%", "onehot", "95%"):
        table.add_column(title, justify="left" if title == "draft" else "right")
    for row in sorted(rows, key=lambda row: (row["temperature"], -row["alpha"])):
        table.add_row(
            row["draft"], f"{row['temperature']:g}",
            f"{row['alpha']:.3f}", _span(row["alpha_low"], row["alpha_high"]),
            f"{row['alpha_match']:.3f}", _span(row["alpha_match_low"], row["alpha_match_high"]),
            f"{row['alpha_onehot']:.3f}", _span(row["alpha_onehot_low"], row["alpha_onehot_high"]),
        )  # fmt: skip
    return table


def _of_children(rows: list[AlphaRow]) -> Table:
    """For each draft, temperature and rule, the probability that one of k children is accepted."""
    from rich.table import Table

    most = len(rows[0]["acceptance_of_children"]["fixed"])
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left", title_style="")
    table.title = "trees: probability that one of a node's k children is accepted, by how they are chosen and tested"
    for title in ("draft", "T", "children, rule", *(f"k={k}" for k in range(1, most + 1)), f"95% at k={most}"):
        table.add_column(title, justify="left" if title in ("draft", "children, rule") else "right")
    for row in sorted(rows, key=lambda row: row["temperature"]):
        found = row["acceptance_of_children"]
        for rule, title in OF_CHILDREN.items():
            if rule in found:
                first = rule == next(iter(OF_CHILDREN))
                values, last = [f"{one['value']:.3f}" for one in found[rule]], found[rule][-1]
                names = (row["draft"], f"{row['temperature']:g}") if first else ("", "")
                table.add_row(*names, title, *values, _span(last["low"], last["high"]))
    return table


def remark(file: Path, record: AlphaDocument, form: str) -> None:
    """The time of the measurement, and the record's file."""
    from specbench.cli.formats import terminal
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


def _of_rule(row: AlphaRow) -> list[str]:
    """The rule, the probability that it accepts a drafted token, and its total variation from the target."""
    if "alpha_rule" not in row:
        return [row["accept"], "–", "–", "0"]
    accepted = [f"{row['alpha_rule']:.3f}", _span(row["alpha_rule_low"], row["alpha_rule_high"])]
    if not row["lossy"]:
        return [row["accept"], *accepted, "0"]
    return [f"{row['accept']} (lossy)", *accepted, f"{row['total_variation']:.3f}"]


def _span(low: float | None, high: float | None) -> str:
    return "–" if low is None else f"{low:.3f}–{high:.3f}"
