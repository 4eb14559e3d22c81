"""All tables and figures as one self-contained HTML page: styles and figures inline, nothing fetched."""

import re
from html import escape
from importlib.resources import files
from pathlib import Path

import pandas as pd

from specbench.files import write_atomically
from specbench.records.frame import Records, date, digest, rule_name
from specbench.report.figure import Drawn, svg
from specbench.report.figures import build as build_figures
from specbench.report.paper import experiment, paper, takes
from specbench.report.table import Table
from specbench.report.tables import build as build_tables

BEYOND = ("gamma", "position", "beta", "cost", "beyond")


def page(records: Records) -> str:
    """The whole page."""
    tables, figures = build_tables((), records), build_figures((), records)
    ours = [drawn for drawn in figures if drawn.name in BEYOND]
    theirs = [drawn for drawn in figures if drawn.name not in BEYOND]
    titles = [(_anchor(table), table.title) for table in tables] + [(drawn.name, drawn.title) for drawn in figures]
    links = [(name, title.partition(".")[0]) for name, title in titles]
    anchors = " ".join(f"<a href='#{name}'>{escape(text)}</a>" for name, text in links)
    body = [
        "<header><h1>Speculative decoding: the paper and what we measured</h1>",
        *(f"<p>{line}</p>" for line in _summary(records)),
        "</header>",
        f"<nav>{anchors} <a href='#records'>Records</a></nav>",
        "<main>",
        "<h2>Tables</h2>",
        *(_table(table) for table in tables if table.name not in BEYOND),
        "<h2>Figures of the paper</h2>",
        *map(_figure, theirs),
        "<h2>Beyond the paper</h2>",
        *map(_figure, ours),
        *(_table(table) for table in tables if table.name in BEYOND),
        "<h2 id='records'>Records</h2>",
        _records(records.every),
        "<h2>What the paper leaves open</h2>",
        f"<ul class='notes'>{''.join(f'<li>{_text(trap)}</li>' for trap in paper()['traps'])}</ul>",
        "</main>",
    ]
    css = files("specbench.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>specbench report</title><style>\n{css}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _summary(records: Records) -> list[str]:
    frame = records.every
    about = (
        "Fast Inference from Transformers via Speculative Decoding (Leviathan, Kalman and Matias, 2023, arXiv "
        "2211.17192v2): every table and figure, the paper's values beside the formulas' and ours."
    )
    if frame.empty:
        return [
            about,
            f"No record in {escape(str(records.results))}: all of ours is empty. Each part names its command.",
        ]
    machines = "; ".join(sorted({str(name) for name in frame["hardware"].dropna()})) or "hardware not noted"
    days = sorted({date(created) for created in frame["created"]})
    span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    simulated = int(frame["simulated"].sum())
    lossy = int(frame["lossy"].sum())
    said = f"{len(frame)} records, {int(frame['prompts'].sum())} decoded prompts, {escape(machines)}, {span}."
    said += f" <strong>{simulated} of them are simulated, not measured.</strong>" if simulated else ""
    said += (
        f" <strong>{lossy} of them have a lossy rule: their texts are not the target's own.</strong>" if lossy else ""
    )
    return [about, said]


def _anchor(table: Table) -> str:
    """A figure may have the table's name."""
    return f"{table.name}-table" if table.name in BEYOND else table.name


def _table(table: Table) -> str:
    plan = experiment(table.name)
    head = "".join(f"<th>{escape(name)}</th>" for name in table.shown.columns)
    rows = []
    for row in table.shown.to_dict("records"):
        cells = "".join(f"<td{_class(cell)}>{_text(cell)}</td>" for cell in map(str, row.values()))
        rows.append(f"<tr class='{_row_class(row)}'>{cells}</tr>")
    notes = "".join(f"<li>{_text(note)}</li>" for note in table.notes)
    return (
        f"<section id='{_anchor(table)}'><h3>{escape(table.title)}</h3><p>{_text(plan['shows'])}</p>"
        f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f"<ul class='notes'>{notes}</ul></section>"
    )


def _figure(drawn: Drawn) -> str:
    plan = experiment(drawn.name)
    said = [*drawn.notes, *plan["silent"], *([f"Time of the sweeps: {takes(drawn.name)}"] if plan["takes"] else [])]
    notes = " ".join(f"{_text(note)}." for note in said)
    # Inline, a figure has the width in which its letters are as large as the page's.
    picture = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", svg(drawn), count=1)
    picture = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", picture, count=1)
    width = drawn.figure.get_figwidth() * 130
    return (
        f"<section id='{drawn.name}'><h3>{escape(drawn.title)}</h3><p>{_text(plan['shows'])}</p>"
        f"<figure style='max-width:{width:.0f}px'>{picture}</figure>"
        f"<p class='notes' style='padding:0'>{notes}</p></section>"
    )


def _records(frame: pd.DataFrame) -> str:
    if frame.empty:
        return "<p>None.</p>"
    head = "".join(
        f"<th>{name}</th>" for name in ("record", "run id", "rule", "prompts", "tokens", "hardware", "dtype", "day")
    )
    rows = "".join(
        f"<tr id='r-{digest(r['run_id'])}'><td>{digest(r['run_id'])}</td><td>{escape(r['run_id'])}</td>"
        f"<td>{escape(rule_name(r) or 'exact')}</td>"
        f"<td>{r['prompts']:.0f}</td><td>{r['tokens']:.0f}</td><td>{escape(str(r['hardware']))}</td>"
        f"<td>{escape(str(r['dtype']))}</td><td>{date(r['created'])}</td></tr>"
        for _, r in frame.iterrows()
    )
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"


def _row_class(row: dict[str, object]) -> str:
    whose = str(row.get("whose", ""))
    return "empty" if whose == "ours" and "no record" in row.values() else whose


def _class(cell: str) -> str:
    return " class='none'" if cell in ("no record", "not public", "–") else ""


def _text(cell: str) -> str:
    """Escaped, with what stands in backticks as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(cell))


def write(records: Records, file: Path) -> None:
    write_atomically(file, page(records))
