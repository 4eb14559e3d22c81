"""`specbench results --group-by KEY`: runs alike in all but one thing, each against the fastest of its group."""

from typing import TYPE_CHECKING

from specbench.cli.formats import aside, plain, print_rows
from specbench.errors import UserError, closest_first
from specbench.formatting import span
from specbench.records.catalog import Catalog
from specbench.records.run_record import Row
from specbench.report.console import plain_table, wide_console

if TYPE_CHECKING:
    from specbench.records.frame import Records
from specbench.cli.compare import verdict

# What may differ within a group: a column of the table, and the keys of a run that set it.
KEYS: dict[str, tuple[str, ...]] = {
    "draft": ("draft",),
    "gamma": ("gamma",),
    "accept": ("accept",),
    "batch": ("batch",),
    "temperature": ("sampling.temperature",),
    "dtype": ("dtype",),
    "engine": ("engine",),
    "hardware": (),
}
GROUP_NAMED = ["target", "draft", "task", "temperature", "top_k", "top_p", "gamma", "accept", "batch", "prompts"]


def grouped(results: str, key: str, form: str, chosen: Catalog) -> None:
    """Print every group of two runs or more of `chosen` that differ only in `key`, as tables, CSV or JSON.

    Runs of a contended machine are in none, and are named.

    Raises UserError if `key` is not among KEYS.
    """
    if key not in KEYS:
        raise UserError(f"--group-by {key}: choose from {', '.join(closest_first(key, KEYS))}")
    from specbench.records.contended import contended
    from specbench.records.frame import Records

    records = Records(results)
    groups = _groups_of(records, key, {head.run_id for head in chosen.heads})
    rows = [group["group"] | row for group in groups for row in group["rows"]]
    print_rows(form, rows, lambda: _draw_groups(groups, key), document=groups)
    for line in contended(records.disturbed):
        print(line, file=aside(form))


def _groups_of(records: "Records", key: str, chosen: set[str]) -> list[Row]:
    """The groups, each with what its runs have in common and a row for each run, the fastest first."""
    import pandas as pd

    from specbench.analysis.paired import compare, shared
    from specbench.records.frame import MACHINE
    from specbench.records.store import config_digest

    frame = pd.concat([records.chains, records.learning], ignore_index=True)
    frame = frame[frame["speedup_measured"].notna() & frame["gamma"].notna() & frame["run_id"].isin(chosen)]
    rest = [config_digest(records.catalog.head(run_id).config, *KEYS[key]) for run_id in frame["run_id"]]
    made = []
    for _, group in frame.assign(rest=rest).groupby(["rest", *(name for name in MACHINE if name != key)], dropna=False):
        if len(group) < 2:
            continue
        group = group.sort_values("speedup_measured", ascending=False)
        best = records.whole(group.iloc[0]["run_id"])
        rows = []
        for _, row in group.iterrows():
            entry = {
                name: row[name]
                for name in (key, "run_id", "alpha", "speedup_measured", "lossy", "unproved", "passes_run")
            }
            pairs = shared(records.whole(row["run_id"])["prompts"], best["prompts"])
            if row["run_id"] != best["run_id"] and pairs:
                entry["against_best"] = compare(pairs)
            rows.append({name: plain(value) for name, value in entry.items()})
        common = {name: group.iloc[0][name] for name in (*GROUP_NAMED, *MACHINE) if name != key}
        made.append({"group": {name: plain(value) for name, value in common.items() if value == value}, "rows": rows})
    return made


def _draw_groups(groups: list[Row], key: str) -> None:
    from specbench.records.passes_run import PASSES_RUN

    console = wide_console()
    if not groups:
        console.print(f"no two runs are alike in all but {key}; 'specbench sweep {key}=A,B' makes some")
    for group in groups:
        named = ", ".join(f"{name}={value}" for name, value in group["group"].items() if value is not None)
        console.print(named, style="bold")
        titles = (key, "α", "passes", "speedup", "of the fastest", "95%", "α less", "95%", "shared", "")
        table = plain_table(titles, left=(key, ""))
        for row in group["rows"]:
            mark = " (lossy)" if row["lossy"] else " (underpowered)" if row.get("unproved") else ""
            cells = [f"{row[key]}{mark}", f"{row['alpha']:.3f}", row["passes_run"], f"{row['speedup_measured']:.2f}"]
            against = row.get("against_best")
            if against is None:
                is_fastest = row is group["rows"][0]
                remark = "fastest" if is_fastest else "no prompt in common"
                table.add_row(*cells, remark, style="bold" if is_fastest else None)
                continue
            speed, alpha = against["speedup"], against["alpha"]
            higher = verdict(speed["low"], speed["high"], 1.0)
            table.add_row(
                *cells, f"{speed['value']:.3f}×", span(speed["low"], speed["high"]),
                f"{alpha['value']:+.3f}", span(alpha["low"], alpha["high"], "+.3f", " to "),
                str(against["prompts"]), {"A": "faster on these prompts", "B": "slower"}.get(higher, higher),
            )  # fmt: skip
        console.print(table)
    if any(len({row["passes_run"] for row in group["rows"]}) > 1 for group in groups):
        console.print(PASSES_RUN)
