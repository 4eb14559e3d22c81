"""The table of `specbench alpha`: α of drafts by rule and temperature, by position, and of children in trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.records.documents import AlphaDocument, AlphaRow

if TYPE_CHECKING:
    from rich.table import Table

OF_CHILDREN = {  # rows of the table, in order
    "fixed": "fixed (the likeliest): one-hot",
    "distinct": "distinct: multi-round",
    "optimum, distinct": "distinct: optimum",
    "replaced": "replaced: multi-round",
    "k-seq": "replaced: K-SEQ",
    "optimum, replaced": "replaced: optimum",
}


def draw(record: AlphaDocument) -> None:
    """alpha by draft and temperature, then alpha(l)."""
    from rich.markup import escape
    from rich.table import Table

    from specbench.report.console import terminal

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
    for setting in record["settings"]:
        if bounds := setting.get("of_top_tokens"):
            shown = ", ".join(f"{share:.3f} ({int(most):,})" for most, share in bounds.items())
            console.print(f"T={setting['temperature']:g}: with draft.top_tokens=N α is at most {shown}")
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
