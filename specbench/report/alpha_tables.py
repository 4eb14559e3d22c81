"""The tables of `specbench alpha`: α of drafts by rule and temperature, by position, and of children in trees."""

from collections.abc import Mapping
from typing import Any

from specbench.analysis.distinct import said
from specbench.formatting import NONE, TOO_FEW, Column, number, says_nothing, span, titles
from specbench.records.alpha_document import AlphaDocument, AlphaRow, RouterBound
from specbench.report.console import plain_table, wide_console
from specbench.report.findings import said as findings_said

OF_CHILDREN = {  # rows of the table, in order
    "fixed": "fixed (the likeliest): one-hot",
    "distinct": "distinct: multi-round",
    "optimum, distinct": "distinct: optimum",
    "replaced": "replaced: multi-round",
    "k-seq": "replaced: K-SEQ",
    "optimum, replaced": "replaced: optimum",
}


def draw(record: AlphaDocument, verbose: bool = False) -> None:
    """Print α by draft, temperature and rule.

    `verbose`: then by position and rule, bounds on short heads and routers, and what the rows have of vocabularies and
    trees.
    """
    from rich.markup import escape

    console = wide_console(160)
    first, rows = record["rows"][0], sorted(record["rows"], key=lambda row: (row["temperature"], -row["alpha"]))
    named = f"[bold]{escape(first['target'])}[/bold] on {escape(first['task'])}"
    console.print(f"α of drafts for {named}, {first['dtype']}", markup=True)
    ruled = RULED if any(row["accept"] != "exact" for row in rows) else ()
    lenient = [_under(lenience) for lenience in first["lenient"] if lenience != "1"]
    told = (*ALPHAS, *ruled, *lenient, *SIZES)
    table = plain_table(titles(told), left=("draft", "rule"))
    for row in rows:
        table.add_row(*(one.text(row) for one in told))
    console.print(table)
    for prompts, different in dict.fromkeys((row["prompts"], row.get("distinct_prompts")) for row in rows):
        if different is not None:
            console.print(said(prompts, different))
    for setting in record["settings"]:
        for draft, found in setting.get("findings", {}).items():
            for line in findings_said(found, f"{draft} (T={setting['temperature']:g})"):
                console.print(line)
    if not verbose:
        return
    for setting in record["settings"]:
        if most := setting.get("of_top_tokens"):
            shown = ", ".join(f"{share:.3f} ({int(tokens):,})" for tokens, share in most.items())
            console.print(f"T={setting['temperature']:g}: with draft.top_tokens=N α is at most {shown}")
        for bound in setting.get("of_routers", ()):
            if "alone" in bound:
                console.print(f"T={setting['temperature']:g}: {_of_router(bound, rows, setting['temperature'])}")
    for draw_table, some in (
        (_by_position, rows),
        (_of_rules, [row for row in rows if row["temperature"] > 0]),
        (_of_vocabularies, [row for row in rows if "vocabulary" in row]),
        (_of_children, [row for row in record["rows"] if "acceptance_of_children" in row]),
    ):
        # A rule beside Algorithm 1 has a row of its own, in which these numbers are the same.
        if some:
            console.print(draw_table(list({(row["temperature"], *_draft(row)): row for row in some}.values())))
    if some:
        console.print(
            "  column k minus column k-1 is the probability that child k is the accepted one (P of a tree). optimum: "
            "the best of all lossless rules for children chosen this way (optimal transport)"
        )


def _of_router(bound: RouterBound, rows: list[AlphaRow], temperature: float) -> str:
    """The bound on a router of two drafts, beside each single draft."""
    alphas = {row["draft"]: row["alpha"] for row in rows if row["temperature"] == temperature}
    alone = ", ".join(number(alphas[name], 3) for name in bound["drafts"])
    tokens = ", ".join(map(number, bound["alone"]))
    return (
        f"a router of {' and '.join(bound['drafts'])} has at most α {number(bound['alpha'], 3)} ({alone} without it) "
        f"and at γ={bound['gamma']} {number(bound['tokens_per_pass'])} tokens per pass ({tokens}), in hindsight"
    )


def _draft(row: AlphaRow) -> tuple[str, str]:
    name = row["draft"] + (f", context {row['context']:,}" if "context" in row else "")
    return name, f"{row['temperature']:g}"


def _estimate(row: Mapping[str, Any], name: str) -> tuple[str, str]:
    """The estimate in a row's column `name`, and its interval."""
    return number(row[name], 3), _interval(row, row[f"{name}_low"], row[f"{name}_high"])


def _interval(row: Mapping[str, Any], low: float | None, high: float | None) -> str:
    """An interval over the prompts of a row, or that they are too few for it."""
    return TOO_FEW if row["prompts"] < 2 or says_nothing(row, low, high) else span(low, high)


def _by_position(rows: list[AlphaRow]) -> Any:
    """α of each token of a proposal, and the share of positions with a proposal."""
    most = max(len(row["alpha_by_position"]) for row in rows)
    table = plain_table(
        ("draft", "T", "proposes", *(f"k={k}" for k in range(1, most + 1)), "95% at k=1"), left=("draft",),
        title="α by position (Algorithm 1): acceptance of draft token k given that tokens 1 to k-1 were accepted",
    )  # fmt: skip
    for row in rows:
        found = row["alpha_by_position"]
        values = [number(one.value, 3) for one in found] + [NONE] * (most - len(found))
        first = _interval(row, found[0].low, found[0].high) if found else NONE
        table.add_row(*_draft(row), f"{1 - row['silent']:.1%}", *values, first)
    return table


def _of_vocabularies(rows: list[AlphaRow]) -> Any:
    """Drafts whose vocabulary differs from the target's: what both share, and what the mismatch costs."""
    table = plain_table(
        ("draft", "T", "target tokens shared", "draft tokens", "target mass", "α", "without mismatch", "95%", "lost"),
        left=("draft",),
        title="different vocabularies: α without mismatch is over shared tokens (tli), or by string (slem)",
    )  # fmt: skip
    for row in rows:
        shares = (row["shared_of_target"], row["shared_of_draft"], row["shared_mass"])
        table.add_row(
            *_draft(row), *(f"{share:.1%}" for share in shares), number(row["alpha"], 3),
            *_estimate(row, "alpha_matched"), number(row["alpha_matched"] - row["alpha"], 3),
        )  # fmt: skip
    return table


def _of_rules(rows: list[AlphaRow]) -> Any:
    """α of each draft under the three lossless rules that engines use at T > 0."""
    table = plain_table(
        ("draft", "T", "exact", "95%", "match", "95%", "onehot", "95%"), left=("draft",),
        title="α at T>0 by rule: exact Σ min(p, q); match Σ pq; onehot p at q's argmax (docs/acceptance-rules.md)",
    )  # fmt: skip
    for row in rows:
        estimates = (_estimate(row, name) for name in ("alpha", "alpha_match", "alpha_onehot"))
        table.add_row(*_draft(row), *(cell for estimate in estimates for cell in estimate))
    return table


def _of_children(rows: list[AlphaRow]) -> Any:
    """For each draft, temperature and rule, the probability that one of k children is accepted."""
    most = len(rows[0]["acceptance_of_children"]["fixed"])
    table = plain_table(
        ("draft", "T", "children, rule", *(f"k={k}" for k in range(1, most + 1)), f"95% at k={most}"),
        left=("draft", "children, rule"),
        title="trees: probability that one of a node's k children is accepted, by how they are chosen and tested",
    )  # fmt: skip
    for row in sorted(rows, key=lambda row: row["temperature"]):
        found = row["acceptance_of_children"]
        for rule, title in OF_CHILDREN.items():
            if rule in found:
                names = _draft(row) if rule == next(iter(OF_CHILDREN)) else ("", "")
                last = found[rule][-1]
                values = [number(one.value, 3) for one in found[rule]]
                table.add_row(*names, title, *values, _interval(row, last.low, last.high))
    return table


def _is_lossy(row: AlphaRow) -> bool:
    return "alpha_rule" in row and row["lossy"]


def _under(lenience: str) -> Column:
    """α under a lenience."""
    return Column(lenience, f"α(l={lenience})", ".3f", value=lambda row: row["lenient"][lenience].value)


ALPHAS = (
    Column("draft", "draft", lambda row: _draft(row)[0]),
    Column("temperature", "T", "g"),
    Column("alpha", "α", ".3f"),
    Column("alpha_interval", "95%", lambda row: _estimate(row, "alpha")[1]),
)
# The rule, the probability that it accepts a drafted token, and its total variation from the target.
RULED = (
    Column("accept", "rule", lambda row: f"{row['accept']} (lossy)" if _is_lossy(row) else row["accept"]),
    Column("alpha_rule", "α(rule)", ".3f"),
    Column("alpha_rule_interval", "95%", lambda row: _estimate(row, "alpha_rule")[1] if "alpha_rule" in row else NONE),
    Column("total_variation", "TV", lambda row: number(row["total_variation"], 3) if _is_lossy(row) else "0"),
)
SIZES = (Column("tokens", "tokens", ""), Column("prompts", "prompts", ""))
