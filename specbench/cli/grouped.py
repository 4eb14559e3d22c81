"""`specbench results --group-by KEY`: runs alike in all but one thing, each against the fastest of its group."""

from specbench.cli.formats import plain, print_rows
from specbench.errors import UserError, closest_first
from specbench.records.schema import Row

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
NAMED = ["target", "draft", "task", "temperature", "top_k", "top_p", "gamma", "accept", "batch", "prompts"]
RESAMPLES = 2000
SEED = 0


def grouped(results: str, key: str, form: str) -> None:
    """Print every group of two runs or more that differ only in `key`, as tables, CSV or JSON.

    Raises:
        UserError: `key` is not among KEYS.
    """
    if key not in KEYS:
        raise UserError(f"--group-by {key}: choose from {', '.join(closest_first(key, KEYS))}")
    groups = _groups(results, key)
    rows = [group["group"] | row for group in groups for row in group["rows"]]
    print_rows(form, rows, lambda: _show(groups, key), document=groups)


def _groups(results: str, key: str) -> list[Row]:
    import pandas as pd

    from specbench.analysis.paired import compare, shared
    from specbench.records.frame import MACHINE, Records
    from specbench.records.identity import config_digest

    records = Records(results)
    frame = pd.concat([records.chains, records.learning], ignore_index=True)
    frame = frame[frame["speedup_measured"].notna() & frame["gamma"].notna()]
    rest = [config_digest(records.catalog.head(run_id).config, *KEYS[key]) for run_id in frame["run_id"]]
    made = []
    for _, group in frame.assign(rest=rest).groupby(["rest", *(name for name in MACHINE if name != key)], dropna=False):
        if len(group) < 2:
            continue
        group = group.sort_values("speedup_measured", ascending=False)
        best = records.whole(group.iloc[0]["run_id"])
        rows = []
        for _, row in group.iterrows():
            entry = {name: row[name] for name in (key, "run_id", "alpha", "speedup_measured", "lossy", "unproved")}
            pairs = shared(records.whole(row["run_id"])["prompts"], best["prompts"])
            if row["run_id"] != best["run_id"] and pairs:
                entry["against_best"] = compare(pairs, RESAMPLES, SEED).to_json()
            rows.append({name: plain(value) for name, value in entry.items()})
        alike = {name: group.iloc[0][name] for name in (*NAMED, *MACHINE) if name != key}
        made.append({"group": {name: plain(value) for name, value in alike.items() if value == value}, "rows": rows})
    return made


def _show(groups: list[Row], key: str) -> None:
    from rich.table import Table

    from specbench.cli.compare import verdict
    from specbench.report.terminal import terminal

    console = terminal()
    console.width = max(console.width, 120)
    if not groups:
        console.print(f"no two runs are alike in all but {key}; 'specbench sweep {key}=A,B' makes some")
    for group in groups:
        named = ", ".join(f"{name}={value}" for name, value in group["group"].items() if value is not None)
        console.print(named, style="bold")
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in (key, "α", "speedup", "of the fastest", "95%", "α less", "95%", "shared", ""):
            table.add_column(title, justify="left" if title in (key, "") else "right")
        for row in group["rows"]:
            mark = " (lossy)" if row["lossy"] else " (not proved)" if row.get("unproved") else ""
            name = f"{row[key]}{mark}"
            cells = [name, f"{row['alpha']:.3f}", f"{row['speedup_measured']:.2f}"]
            against = row.get("against_best")
            if against is None:
                is_fastest = row is group["rows"][0]
                said = "fastest" if is_fastest else "no prompt in common"
                table.add_row(*cells, said, style="bold" if is_fastest else None)
                continue
            speed, alpha = against["speedup"], against["alpha"]
            known = speed["low"] is not None
            found = verdict(speed["low"], speed["high"], 1.0)
            said = {"A": "faster on these prompts", "B": "slower"}.get(found, found)
            table.add_row(
                *cells, f"{speed['value']:.3f}×", f"{speed['low']:.3f}–{speed['high']:.3f}" if known else "–",
                f"{alpha['value']:+.3f}", f"{alpha['low']:+.3f} to {alpha['high']:+.3f}" if known else "–",
                str(against["prompts"]), said,
            )  # fmt: skip
        console.print(table)
