"""All tables and figures as one self-contained HTML page, with styles and figures inline and nothing fetched.

What the page looks like is in `templates/page.html.j2`; this file gives it plain values.
"""

import re
from importlib.resources import files
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from specbench.files import write_atomically
from specbench.records.catalog import digest
from specbench.records.frame import Records, date, rule_name
from specbench.records.schema import Row
from specbench.report.figure import Drawn, svg
from specbench.report.figures import FIGURES
from specbench.report.figures import build as build_figures
from specbench.report.paper import experiment, paper, takes
from specbench.report.score import score
from specbench.report.table import NONE, Table
from specbench.report.tables import build as build_tables

# Tables and figures that the paper does not have.
BEYOND = (
    "gamma",
    "position",
    "beta",
    "cost",
    "beyond",
    "waterfall",
    "gap",
    "levers",
    "trees",
    "verify",
    "strata",
    "online",
)
EMPTY = ("no record", "not public", NONE)  # cells without a number
PIXELS_PER_INCH = 130  # at which a figure's letters are as large as the page's


def page(records: Records) -> str:
    """The page as HTML."""
    tables, figures = build_tables((), records), build_figures((), records)
    titles = [(_anchor(table), table.title) for table in tables] + [(drawn.name, drawn.title) for drawn in figures]
    environment = Environment(
        loader=PackageLoader("specbench.report"), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["code"] = _code
    return environment.get_template("page.html.j2").render(
        css=Markup(files("specbench.report").joinpath("templates/page.css").read_text(encoding="utf-8")),
        results=str(records.results),
        summary=_summary(records.every),
        score=score(records).notes[0],
        links=[(name, title.partition(".")[0]) for name, title in titles],
        tables=[_table(table) for table in tables if table.name not in BEYOND],
        tables_beyond=[_table(table) for table in tables if table.name in BEYOND],
        figures=[_figure(drawn) for drawn in figures if drawn.name not in BEYOND],
        figures_beyond=[_figure(drawn) for drawn in figures if drawn.name in BEYOND],
        records=[_record(row) for row in records.all_kinds.to_dict("records")],
        traps=paper()["traps"],
        empty=EMPTY,
    )


def write(records: Records, file: Path) -> None:
    """Write the page to `file`."""
    write_atomically(file, page(records), "--output FILE")


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


def _anchor(table: Table) -> str:
    """The table's id on the page. A figure may have the table's name."""
    return f"{table.name}-table" if table.name in FIGURES else table.name


def _table(table: Table) -> Row:
    return {
        "anchor": _anchor(table),
        "title": table.title,
        "shows": experiment(table.name)["shows"],
        "header": list(table.shown.columns),
        "rows": [
            {"kind": _kind(row), "cells": [str(cell) for cell in row.values()]}
            for row in table.shown.to_dict("records")
        ],
        "notes": table.notes,
    }


def _kind(row: Row) -> str:
    """The row's class in the style sheet: whose numbers it has, or that it has none yet."""
    whose = str(row.get("whose", ""))
    return "empty" if whose == "ours" and "no record" in row.values() else whose


def _figure(drawn: Drawn) -> Row:
    plan = experiment(drawn.name)
    time = [f"Time of the sweeps: {takes(drawn.name)}"] if plan["takes"] else []
    # Without a size of its own the picture takes that of its frame.
    tag, rest = svg(drawn).split(">", 1)
    return {
        "name": drawn.name,
        "title": drawn.title,
        "shows": plan["shows"],
        "svg": Markup(re.sub(r' (?:width|height)="[^"]*"', "", tag) + ">" + rest),
        "width": f"{drawn.figure.get_figwidth() * PIXELS_PER_INCH:.0f}",
        "notes": [*drawn.notes, *plan["silent"], *time],
    }


def _record(row: Row) -> Row:
    return {
        "digest": digest(row["run_id"]),
        "run_id": row["run_id"],
        "rule": rule_name(row) or "exact",
        "prompts": f"{row['prompts']:.0f}",
        "tokens": f"{row['tokens']:.0f}",
        "proof": _proof(row),
        "hardware": row["hardware"],
        "dtype": row["dtype"],
        "day": date(row["created"]),
    }


def _proof(row: Row) -> str:
    """How the record's completions were proved to be the target's."""
    if row["simulated"] or row["lossy"]:
        return "simulated" if row["simulated"] else "lossy"
    if not row["lossless"]:
        return "failed"
    if pd.notna(row["proof_z"]):
        return f"z = {row['proof_z']:+.2f}"
    return (
        f"{100 * row['identical']:.0f}% identical"
        if pd.notna(row["identical"])
        else "unproved: two greedy completions compared"
    )


def _code(text: str) -> Markup:
    """`text` escaped, what stands in backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))
