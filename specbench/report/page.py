"""All tables and figures as one self-contained HTML page, with styles and figures inline and nothing fetched.

What the page looks like is in `templates/page.html.j2`; this file gives it plain values.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from markupsafe import Markup, escape

from specbench.files import write_atomically
from specbench.formatting import NONE, share
from specbench.records.catalog import digest
from specbench.records.frame import Records, date, rule_name
from specbench.records.marks import prompts_for_proof
from specbench.records.run_record import Row
from specbench.report.figure import Drawn, svg
from specbench.report.figures import FIGURES
from specbench.report.figures import build as build_figures
from specbench.report.html import environment, inline
from specbench.report.paper import experiment, paper, takes
from specbench.report.score import OVERVIEW, Verdict, cells, overview, score, why
from specbench.report.table import Table
from specbench.report.tables import OF_SERVERS, TABLES
from specbench.report.tables import build as build_tables

OF_PAPER = re.compile("(table|figure)[0-9]")  # names of the paper's tables and figures
EMPTY = ("no record", "not public", NONE)  # cells without a number
PIXELS_PER_INCH = 130  # at which a figure's letters are as large as the page's
STEPS = len(TABLES) + 2 * len(FIGURES)  # a figure is drawn, then written


def page(records: Records, step: Callable[[], None] = lambda: None) -> str:
    """The page as HTML; `step` is called before each of the STEPS."""
    named = [*TABLES, *(OF_SERVERS if len(records.served) else ())]
    tables, figures = build_tables(named, records, step), build_figures((), records, step)
    scored = cells(records)
    parts = {
        "tables": [_table(table) for table in tables if OF_PAPER.match(table.name)],
        "figures": [_figure(drawn, step) for drawn in figures if OF_PAPER.match(drawn.name)],
        "figures_beyond": [_figure(drawn, step) for drawn in figures if not OF_PAPER.match(drawn.name)],
        "tables_beyond": [_table(table) for table in tables if not OF_PAPER.match(table.name)],
    }
    # A title in the contents ends at a colon: 'Table 2. Measured speedup'.
    listed = {name: [(one["anchor"], one["title"].partition(":")[0]) for one in part] for name, part in parts.items()}
    contents = [
        ("", [(OVERVIEW, "The paper's numbers and ours")]),
        ("Tables", listed["tables"]),
        ("Figures of the paper", listed["figures"]),
        ("Beyond the paper", listed["figures_beyond"] + listed["tables_beyond"]),
        ("", [("records", "Records"), ("open", "What the paper leaves open")]),
    ]
    templates = environment()
    templates.filters["code"] = _code
    return templates.get_template("page.html.j2").render(
        css=inline("page.css"),
        results=str(records.results),
        summary=_summary(records.chains),
        score=score(records, scored).notes[0],
        overview=_table(overview(scored)),
        contents=contents,
        **parts,
        records=[_record(row) for row in records.all_runs.to_dict("records")],
        traps=paper()["traps"],
        empty=EMPTY,
    )


def write(records: Records, file: Path, step: Callable[[], None] = lambda: None) -> None:
    """Write the page to `file`; `step` is called before each of the STEPS."""
    write_atomically(file, page(records, step), "--output FILE")


def _summary(frame: pd.DataFrame) -> Row:
    """Counts, machines and days of all records."""
    days = sorted({date(created) for created in frame["created"]})
    return {
        "prompts": int(frame["prompts"].sum()),
        "machines": "; ".join(sorted({str(name) for name in frame["hardware"].dropna()})) or "hardware not noted",
        "days": " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "",
        "simulated": int(frame["simulated"].sum()),
        "lossy": int(frame["lossy"].sum()),
    }


def _table(table: Table) -> Row:
    filled, empty = _blocks(table.shown.to_dict("records"))
    return {
        "anchor": f"{table.name}-table" if table.name in FIGURES else table.name,  # a figure may have its name
        "title": table.title,
        "shows": experiment(table.name)["shows"] if table.name in TABLES else "",
        "header": list(table.shown.columns),
        "rows": [_cells(row) for block in filled for row in block],
        "folded": [
            {
                "summary": f"{len(blocks)} {verdict}" + (f": {why(verdict)}" if OF_PAPER.match(table.name) else ""),
                "rows": [_cells(row) for block in blocks for row in block],
            }
            for verdict, blocks in empty.items()
            if blocks
        ],
        "notes": table.notes,
    }


def _blocks(rows: Sequence[Row]) -> tuple[list[list[Row]], dict[Verdict, list[list[Row]]]]:
    """Blocks of rows with our number, and those without by verdict. A block is a row, or a paper's row with ours."""
    blocks: list[list[Row]] = []
    for row in rows:
        if blocks and _stands_beside(row, blocks[-1]):
            blocks[-1].append(row)
        else:
            blocks.append([row])
    closed = [block for block in blocks if block[-1].get("record") == "not public"]
    missing = [block for block in blocks if _is_empty(block[-1])]
    filled = [block for block in blocks if block not in closed and block not in missing]
    return filled, {"not run": missing, "not public": closed}


def _stands_beside(row: Row, block: list[Row]) -> bool:
    """Whether a row is what theory or we have for the paper's row that `block` begins with."""
    theirs = block[0]
    same = all(row.get(key) == theirs.get(key) for key in ("task", "T"))
    return theirs.get("whose") == "paper" != row.get("whose") and same and not _is_empty(block[-1])


def _is_empty(row: Row) -> bool:
    return str(row.get("record", "")).startswith("none:")


def _cells(row: Row) -> Row:
    return {"kind": _kind(row), "cells": [str(cell) for cell in row.values()]}


def _kind(row: Row) -> str:
    """The row's class in the style sheet: whose numbers it has, or that it has none yet."""
    whose = str(row.get("whose", ""))
    return "empty" if whose == "ours" and "no record" in row.values() else whose


def _figure(drawn: Drawn, step: Callable[[], None]) -> Row:
    step()
    plan = experiment(drawn.name)
    time = [f"Time of the sweeps: {takes(drawn.name)}"] if plan["takes"] else []
    # Without a size of its own the picture fills its frame.
    tag, rest = svg(drawn).split(">", 1)
    return {
        "anchor": drawn.name,
        "title": drawn.title,
        "shows": plan["shows"],
        "svg": Markup(re.sub(r' (?:width|height)="[^"]*"', "", tag) + ">" + rest),
        "width": f"{drawn.figure.get_figwidth() * PIXELS_PER_INCH:.0f}",
        "notes": [*drawn.notes, *plan["silent"], *time],
    }


def _record(row: Row) -> Row:
    return {key: row[key] for key in ("run_id", "hardware", "dtype")} | {
        "digest": digest(row["run_id"]), "rule": rule_name(row) or "exact", "prompts": f"{row['prompts']:.0f}",
        "tokens": f"{row['tokens']:.0f}", "proof": _proof(row), "day": date(row["created"]),
    }  # fmt: skip


def _proof(row: Row) -> str:
    """How the record's completions were checked to be the target's."""
    if row["simulated"] or row["lossy"]:
        return "simulated" if row["simulated"] else "lossy"
    if not row["lossless"]:
        return "failed"
    if pd.notna(row["proof_z"]):
        prompts = prompts_for_proof(row)
        small = "" if prompts is None else f", but underpowered: {prompts} prompts are needed"
        return f"z = {row['proof_z']:+.2f}{small}"
    if pd.notna(row["identical"]):
        return f"{share(row['identical'])} identical"
    return "untested: two greedy completions compared"


def _code(text: str) -> Markup:
    """`text` escaped, what stands in backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))
