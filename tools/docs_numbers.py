"""Fill README and docs with numbers from records: `make docs-numbers`; `--check` only says which page differs.

A page names the source of a number in a comment, and this tool writes what follows it. A fenced block:

- `<!-- from: specbench explain RUN -->`: what the command prints (a command that only reads);
- `<!-- from: run RUN -->`: the screen of that run; with ` | α, c` only the line of its models and these lines;
- `<!-- from: FILE -->`: this file, a transcript.

A table:

- `<!-- from: score -->`, `artifact readme`, `artifact paper`, `artifact errata`: the paper's numbers, README's
  claims, what needs care in the paper;
- `<!-- from: records column=value … | title, title, … -->`: records with these values (of a CPU, unless `device=` says
  otherwise), one row per record; the word `fastest` keeps the fastest of records that differ only in γ, `sorted` puts
  the fastest first;
- `<!-- from: FILE.csv column=value … | title, title, … -->`: rows of a file, or of the document of a bench (.json);
  `column~=text` means those with this text in the cell, `column!=value` the others; a title is one of `NAMED`, or a
  column;
- `<!-- from: FILE § HEADING -->`: the table under that heading of a Markdown file; with ` | title, …` these columns
  of it, and with only ` § ` its first table; for the document of a beam search (.json) the table that it has on screen.

A value in a sentence, with its interval if it has one:

- `<!--RUN: alpha-->0.83 [0.81, 0.85]<!---->`: of a record's summary; `alpha.3` has three decimals, `identical%` is a
  share in percent;
- `<!--score: formulas recomputed-->28<!---->`; `<!--FILE.json ROW: ratio-->`: of a row of a bench.

RUN is the end of a run's name (a digest of its config, the same after each measurement), or words of its config: words
that are not given are the default run's. `default` is the default run. Records are read from results/kept.

What a page cannot do, each an error: name words that fit several records; mix hardware, dtype, engine or numerics in a
table without a column for it; show the fastest of several γ under another title than `best γ`; leave out of a table of
speedups the prompts or, of a bench, whether completions are the same; have a comment that nothing reads, a value with
an interval that no record writes, or a measured-looking number in prose without `<!-- given -->`. A document in
results/documents.csv that is older than the default run gets a line with its day after its block; one that was changed
since it was listed is an error (`tools/docs_numbers.py --list FILE …` lists it anew).
"""

import contextlib
import hashlib
import io
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import cached_property
from pathlib import Path

import artifact
import pandas as pd

from specbench.analysis.summary import completed
from specbench.cli import main as specbench
from specbench.errors import UserError
from specbench.formatting import draft_name, markdown_table
from specbench.records.documents import read_document
from specbench.records.frame import Records
from specbench.records.store import Result
from specbench.records.timed_documents import BeamDocument
from specbench.report import score
from specbench.report.console import Screen
from specbench.report.paper import paper

ROOT = Path(__file__).parent.parent
MEASURED_ON = "Measured on {}, before the other records."
BLOCK = re.compile(
    r"(?m)^(<!-- from: (.+?) -->\n+)(```\w*\n(?s:.*?)\n```|(?:\|.*\n)+)"
    r"(\n+Measured on \d{4}-\d\d-\d\d, before the other records\.)?"
)
COMMENT = re.compile(r"<!--(?! given -->).*?-->")
GIVEN = "<!-- given -->"  # a number of this line is a threshold of the code, or published by others
# A number that looks measured. 95% is the level of all intervals.
LOOSE = re.compile(r"(?<![\d.=])(?!95%)\d+(?:\.\d+)?(?:%|×| ms\b| GB\b)")
DOCUMENTS = "results/documents.csv"  # day, commit and content of each document that pages draw from
ALWAYS = {"measured": ("prompts",), "times faster": ("same completions", "floor", "note")}  # with a title, one of these
OF_ONE_KIND = ("hardware", "dtype", "engine", "numerics")
VALUE = re.compile(r"(<!--([^<>\n]+): ([\w. %]+)-->).*?<!---->")
# A value with its interval, as in '1.06 [1.01, 1.11]' or '0.78 [.71–.80]'.
TYPED = re.compile(r"\d*\.?\d+%?×?[*_]* ?\[[+−-]?\d*\.?\d+%?(?:, ?|–| to )[+−-]?\d*\.?\d+%?\]")
# title of a column: the columns that it shows (the first that has a value), decimals, and whether with its interval
NAMED: Mapping[str, tuple[str, int, bool]] = {
    "best γ": ("policy gamma_said gamma", 0, False), "hardware": ("hardware", 0, False), "dtype": ("dtype", 0, False),
    "engine": ("engine", 0, False), "numerics": ("numerics", 0, False),
    "target": ("target", 0, False), "draft": ("draft", 0, False), "task": ("task", 0, False),
    "γ": ("policy gamma_said gamma", 0, False), "T": ("temperature", 0, False), "rule": ("accept", 0, False),
    "tree": ("tree", 0, False), "batch": ("batch", 0, False), "prompts": ("prompts", 0, False),
    "α": ("alpha", 2, True), "α of the rule": ("alpha_rule alpha", 2, True), "c": ("c", 2, False),
    "v": ("verify_cost v", 2, False), "tokens per pass (τ)": ("tokens_per_pass", 2, False),
    "predicted tokens per pass": ("tokens_per_pass_predicted", 2, False),
    "predicted": ("speedup_predicted predicted", 2, False), "calibrated": ("speedup_calibrated expected", 2, False),
    "measured": ("speedup_measured measured", 2, True), "speedup": ("speedup", 2, True),
    "end to end": ("speedup_end_to_end", 2, True), "identical": ("identical", 2, False),
    "learning rate": ("learning_rate", 4, False), "α of the first third": ("alpha_first", 2, False),
    "α of the last third": ("alpha_last", 2, False), "change of score": ("quality_difference", 1, True),
    "total variation": ("total_variation", 3, False),
    "drafted": ("drafted", 0, False), "accepted": ("accepted", 0, False),
    "passes": ("passes_run", 0, False), "z": ("proof_z", 1, False), "estimated": ("estimated", 2, True),
    "tokens": ("tokens", 0, False), "tokens read": ("tokens_read", 0, False),
    "tokens with the draft": ("tokens_with_draft", 0, False),
    "alone (tokens/s)": ("tokens_per_second_baseline", 0, False),
    "with the draft (tokens/s)": ("tokens_per_second", 0, False),
    "one process (±%)": ("own", 1, False), "over processes (±%)": ("over", 1, False),
    "times faster": ("ratio", 1, True), "floor": ("theirs", 2, False), "ours (ms)": ("ours", 3, False),
    "same completions": ("note", 0, False), "v and its roofline": ("note", 0, False),
    "experts of a step (times)": ("experts", 2, False), "v from experts": ("predicted", 2, False),
    "`model_type`": ("model_type", 0, False), "engine=auto": ("engine", 0, False),
    "pairs": ("pairs", 0, False), "overlapping": ("overlapping", 0, False),
    "contended records": ("contended", 0, False), "median difference (%)": ("apart", 1, False),
    "furthest (%)": ("furthest", 1, False), "wider (times)": ("wider", 2, False),
    "between processes (%)": ("between", 2, False),
}  # fmt: skip
CPU = {"device": "cpu"}
DEFAULT = {**CPU, "target": "t5-mini", "temperature": "0", "accept": "exact", "tree": "none", "batch": "1"}
OF_TARGET = {
    "t5-mini": {"draft": "t5-nano-top1000", "task": "ende-mini"},
    "gpt-mini": {"draft": "gpt-nano", "task": "lm-mini"},
}
COLUMNS = {"gamma": "gamma_said", "T": "temperature", "rule": "accept"}  # words of a config: columns of records


class Source:
    """What the pages draw from: the kept records, and the files of the repository."""

    def __init__(self, kept: Path) -> None:
        """`kept` is a results folder with nothing else in it, so that a page is the same on every machine."""
        self._kept, self._records = kept, Records(kept)
        self._catalog, self._runs = self._records.catalog, self._records.all_runs

    def filled(self, page: str) -> str:
        """The text of a page, every named number and block written anew.

        Raises:
            ValueError: a comment names what is not there.
            UserError: it names a record that is not there.
        """
        page = BLOCK.sub(self._written, page)
        return VALUE.sub(lambda found: f"{found[1]}{self._value(found[2], found[3])}<!---->", page)

    def _written(self, found: re.Match[str]) -> str:
        """A block written anew, and the day of its document if that is older than the default run."""
        fenced = found[3].startswith("`")
        block, day = self._block(found[2], fenced), self._day(found[2])
        dated = "" if day is None or day >= self._default_day else MEASURED_ON.format(day)
        return found[1] + block + (("\n\n" if fenced else "\n") + dated if dated else "")

    @cached_property
    def _default_day(self) -> str:
        return str(self._runs.set_index("run_id").loc[self.run("default"), "created"])[:10]

    def _day(self, source: str) -> str | None:
        """The day of the oldest record of a table, or of a document; None for what was not measured."""
        first, _, rest = source.partition(" ")
        if first == "records":
            return str(self._chosen(rest, source)["created"].min())[:10]
        return None if first in ("specbench", "run", "artifact", "score") else _documents().get(first, (None, ""))[0]

    def _chosen(self, rest: str, source: str) -> pd.DataFrame:
        """The records of a table."""
        words = shlex.split(rest.partition(" | ")[0])
        chosen = self._matching({**CPU, **_pairs([word for word in words if "=" in word])}, source)
        chosen = _fastest(chosen) if "fastest" in words else chosen
        if "sorted" in words:
            chosen = chosen.sort_values("speedup_measured", ascending=False, kind="stable")
        return chosen

    def _block(self, source: str, fenced: bool) -> str:
        first, _, rest = source.partition(" ")
        if first == "specbench":
            return _fence(_printed(lambda: specbench([*shlex.split(rest), "--results", str(self._kept)])))
        if first == "run":
            return self._screen(rest)
        if first == "artifact" and rest in artifact.TABLES:
            return artifact.TABLES[rest](self._kept) + "\n"
        if first == "score":
            shown = score.overview(self._cells).shown
            return markdown_table(shown.columns, shown.itertuples(index=False)) + "\n"
        if first == "records":
            conditions, _, titles = rest.partition(" | ")
            chosen = self._chosen(rest, source)
            _require_titles(titles.split(", "), shlex.split(conditions), chosen, source)
            return _rows(chosen, titles.split(", "))
        return _from_file(source, fenced)

    @cached_property
    def _cells(self) -> Sequence[score.Cell]:
        return score.cells(self._records)

    def _screen(self, rest: str) -> str:
        words, _, names = rest.partition(" | ")
        text = _printed(lambda: Screen(sys.stderr).show(self._result(self.run(words))))
        head, *lines = text.splitlines()
        wanted = names.split(", ") if names else []
        if unknown := [name for name in wanted if not any(_begins(line, name) for line in lines)]:
            raise ValueError(f"run {rest}: the screen has no line {', '.join(unknown)}")
        return _fence("\n".join([head, *(one for one in lines if not wanted or any(_begins(one, n) for n in wanted))]))

    def run(self, words: str) -> str:
        """The id of the record that `words` name."""
        if "=" not in words and words != "default":
            return self._catalog.find(words)
        given = {} if words == "default" else _pairs(shlex.split(words))
        target = given.get("target", DEFAULT["target"])
        gamma = {} if given.get("tree", "none") != "none" else {"gamma": "3"}
        found = self._matching({**DEFAULT, **OF_TARGET.get(target, {}), **gamma, **given}, words)
        found = found[found["prompts"] == found["prompts"].max()]
        if len(found) > 1:
            names = ", ".join(sorted(run_id.rpartition("-")[2] for run_id in found["run_id"]))
            raise ValueError(f"{words}: several records fit ({names}); name one of them")
        return str(found["run_id"].iloc[0])

    def _matching(self, conditions: Mapping[str, str], source: str) -> pd.DataFrame:
        found = _where(self._runs, {COLUMNS.get(column, column): value for column, value in conditions.items()})
        if found.empty:
            raise ValueError(f"{source}: results/kept has no such record")
        return found

    def _result(self, run_id: str) -> Result:
        record = completed(self._catalog.whole(run_id))
        return Result(Path("results/runs", f"{record['run_id']}.json"), record, reused=False)

    def _value(self, source: str, name: str) -> str:
        name, percent = name.removesuffix("%"), name.endswith("%")
        if source == "score":
            kind, _, verdict = name.partition(" ")
            counted = score.counts(self._cells)[kind]
            return str(sum(counted.values()) if verdict == "all" else counted[verdict])  # type: ignore[index]
        name, _, digits = name.partition(".")
        file, _, row = source.partition(" ")
        if file.endswith(".json"):
            values = _row_of_bench(file, row)
            ends = (values["low"], values["high"]) if name == "ratio" and values.get("low") is not None else None
            return _number(values[name], int(digits or 1), ends)
        values = dict(self._catalog.whole(self.run(source))["summary"])
        column = name if name in values else f"{name}_measured"
        if values.get(column) is None:
            raise ValueError(f"{source} {name}: the record has no such value")
        ends = (values[f"{name}_low"], values[f"{name}_high"]) if values.get(f"{name}_low") is not None else None
        decimals = int(digits) if digits else 0 if "tokens_per_second" in name or name in ("prompts", "tokens") else 2
        value = values[column]
        return f"{value:.0%}" if percent and isinstance(value, float) else _number(value, decimals, ends)


def _begins(line: str, name: str) -> bool:
    return line.strip().startswith(f"{name} ")


def _pairs(words: Sequence[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def _where(table: pd.DataFrame, conditions: Mapping[str, str]) -> pd.DataFrame:
    for column, value in conditions.items():
        cells, allowed = table[column.rstrip("~!")], value.split(",")
        if column.endswith("~"):
            held = [value in str(cell) for cell in cells]
        else:
            held = [(_plain(cell) in allowed) != column.endswith("!") for cell in cells]
        table = table[pd.Series(held, table.index, dtype=bool)]
    return table


def _fastest(runs: pd.DataFrame) -> pd.DataFrame:
    """The fastest of runs that differ only in a constant γ; policies for γ are left out.

    Of several records of one config the newest counts, since the faster of two is no fair pick.
    """
    runs = runs[runs["gamma"].notna() | runs["tree"].notna()]
    same = ["target", "draft", "task", "temperature", "accept", "tree", "batch"]
    runs = runs.sort_values("created", kind="stable").drop_duplicates([*same, "gamma"], keep="last").sort_index()
    kept = runs.sort_values("speedup_measured", kind="stable").drop_duplicates(same, keep="last")
    return runs.loc[kept.index.sort_values()]


def _require_titles(titles: Sequence[str], words: Sequence[str], chosen: pd.DataFrame, source: str) -> None:
    """Raise ValueError if a table leaves out a column without which its rows mislead."""
    if "fastest" in words and "γ" in titles:
        raise ValueError(f"{source}: of several γ the fastest is shown; its title is 'best γ'")
    fixed = {word.partition("=")[0] for word in words if "=" in word and "," not in word}
    for title, columns in ALWAYS.items():
        if title in titles and not {*titles, *fixed} & set(columns):
            raise ValueError(f"{source}: a table with '{title}' needs {' or '.join(map(repr, columns))}")
    shown = {column for title in titles for column in NAMED.get(title, (title, 0, False))[0].split()}
    for column in OF_ONE_KIND:
        if column in chosen and column not in shown and chosen[column].dropna().nunique() > 1:
            raise ValueError(f"{source}: its records have several {column}s ({', '.join(set(chosen[column]))})")


def _documents() -> Mapping[str, tuple[str, str]]:
    """The day and the digest of each document that is listed."""
    table = pd.read_csv(ROOT / DOCUMENTS, dtype=str).set_index("file")
    return {str(file): (str(row["day"]), str(row["digest"])) for file, row in table.iterrows()}


def list_documents(files: Sequence[str]) -> None:
    """Write these files into results/documents.csv, as measured today by the commit that is checked out."""
    table = pd.read_csv(ROOT / DOCUMENTS, dtype=str).set_index("file")
    for file in files:
        table.loc[file] = [date.today().isoformat(), _digest(file)]
    table.sort_index().to_csv(ROOT / DOCUMENTS)


def _digest(file: str) -> str:
    return hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:16]


def _of_bench(file: str) -> pd.DataFrame:
    """The rows of a document of `specbench bench`."""
    rows = json.loads((ROOT / file).read_text(encoding="utf-8"))["rows"]
    table = pd.DataFrame([row | row.get("more", {}) for row in rows])
    return table.rename(columns={"low": "ratio_low", "high": "ratio_high"})


def _row_of_bench(file: str, row: str) -> Mapping[str, object]:
    for values in json.loads((ROOT / file).read_text(encoding="utf-8"))["rows"]:
        if values["what"] == row:
            return dict(values)
    raise ValueError(f"{file}: has no row {row!r}")


def _from_file(source: str, fenced: bool) -> str:
    chosen, _, titles = source.partition(" | ")
    name, below, heading = chosen.partition(" § ")
    if below or name.endswith("§"):
        _require_listed(name.removesuffix(" §"))
        text = _tables_of(name.removesuffix(" §"))
        return _table_below(text, heading, source, titles.split(", ") if titles else [])
    if fenced:
        _require_listed(name)
        return _fence((ROOT / name).read_text(encoding="utf-8"))
    name, *conditions = shlex.split(name)
    _require_listed(name)
    table = _of_bench(name) if name.endswith(".json") else pd.read_csv(ROOT / name)
    if table.empty:  # a file with only titles, to be measured
        return _markdown([titles.split(", "), ["–"] * len(titles.split(", "))])
    table = _where(table, _pairs(conditions))
    if table.empty:
        raise ValueError(f"{source}: no such rows")
    _require_titles(titles.split(", "), [], table, source)
    return _rows(table, titles.split(", "))


def _tables_of(name: str) -> str:
    """A Markdown file, or the table of the document of a beam search."""
    if not name.endswith(".json"):
        return (ROOT / name).read_text(encoding="utf-8")
    from specbench.bench.beams import beam_table

    return beam_table(read_document(ROOT / name, BeamDocument)["rows"])


def _require_listed(file: str) -> None:
    """Raise ValueError if a document that a page draws from is not listed with its day, or has changed since."""
    if file.startswith(("conf/", "results/tables/", "results/figures/")):  # written by a test, or drawn from records
        return
    listed = _documents().get(file)
    if listed is None or listed[1] != _digest(file):
        problem = "is not listed" if listed is None else "has changed since it was listed"
        raise ValueError(f"{file}: {problem} in {DOCUMENTS}: python tools/docs_numbers.py --list {file}")


def _printed(work: Callable[[], object]) -> str:
    said, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        code = work()
    if code:
        raise ValueError(errors.getvalue().strip())
    return said.getvalue()


def _fence(text: str) -> str:
    return "```\n" + "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n```"


def _table_below(text: str, heading: str, source: str, titles: Sequence[str]) -> str:
    below = text.partition(f"# {heading}\n")[2].partition("\n#")[0] if heading else text
    lines = [line for line in below.splitlines() if line.startswith("|")]
    if not lines:
        raise ValueError(f"{source}: no such heading, or no table under it")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if set(line) - set("|-: ")]
    if titles:
        places = [rows[0].index(title) for title in titles]
        rows = [[row[place] for place in places] for row in rows]
    return _markdown(rows)


def _rows(table: pd.DataFrame, titles: list[str]) -> str:
    named = [NAMED.get(title, (title, 2, False)) for title in titles]
    for title, (columns, _, _) in zip(titles, named, strict=True):
        if not {columns, *columns.split()} & set(table.columns):
            raise ValueError(f"{title}: no such column")
    return _markdown([titles, *([_cell(row, *one) for one in named] for _, row in table.iterrows())])


def _cell(row: "pd.Series[object]", columns: str, decimals: int, with_interval: bool) -> str:
    for column in columns.split() if columns not in row.index else [columns]:
        if column in row.index and not pd.isna(row[column]):
            low = column.removesuffix("_measured") + "_low"
            has = with_interval and low in row.index and not pd.isna(row[low])
            return _number(row[column], decimals, (row[low], row[low[: -len("low")] + "high"]) if has else None)
    return "–"


def _number(value: object, decimals: int, ends: tuple[object, object] | None) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return draft_name(str(value))
    if isinstance(value, int):
        decimals = 0
    written: Callable[[object], str] = lambda number: f"{number:,.{decimals}f}"  # noqa: E731
    return written(value) + (f" [{written(ends[0])}, {written(ends[1])}]" if ends else "")


def _plain(cell: object) -> str:
    if cell is None or cell != cell:
        return "none"
    return f"{cell:g}" if isinstance(cell, float) else str(cell)


def _markdown(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]) + "\n"


def typed(page: str) -> list[str]:
    """Values with an interval that no record writes."""
    page = VALUE.sub("", BLOCK.sub("", page))
    return [found[0] for found in TYPED.finditer(page)]


def unread(page: str) -> list[str]:
    """Comments that nothing reads: their block or their end is missing."""
    return COMMENT.findall(VALUE.sub("", BLOCK.sub("", page)))


def loose(page: str) -> list[str]:
    """Numbers in prose that look measured, in lines without `GIVEN`."""
    page = re.sub(r"(?ms)^```.*?^```", "", VALUE.sub("", BLOCK.sub("", page)))
    lines = [line for line in page.splitlines() if not line.startswith("|") and GIVEN not in line]
    return [found for line in lines for found in LOOSE.findall(line)]


def unclaimed(readme: str) -> list[str]:
    """Numbers of README that docs/paper.md does not list as claims; the default run's are all listed."""
    listed = paper()["readme"]
    claims = {(one.get("run") or f"{one['bench']} {one['row']}", one.get("value", "ratio")) for one in listed}
    found = [(source, name.partition(".")[0]) for _, source, name in VALUE.findall(readme)]
    return [": ".join(one) for one in found if one[0] not in ("score", "default") and one not in claims]


def pages() -> list[Path]:
    """README and the pages of docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main(check: bool) -> int:
    """Write the pages that differ; with `check` name them and exit with 1 instead."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kept").symlink_to(ROOT / "results" / "kept")
        source = Source(Path(folder))
        for page in pages():
            text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT)
            try:
                written = source.filled(text)
            except (ValueError, KeyError, UserError) as error:
                raise SystemExit(f"{name}: {error}") from error
            if written != text:
                wrong += check
                print(f"{name}: {'differs from its records: make docs-numbers' if check else 'written'}")
                if not check:
                    page.write_text(written, encoding="utf-8")
            for value in typed(text):
                wrong += check
                print(f"{name}: {value!r} is of no record: name its source (tools/docs_numbers.py), or leave it out")
            for claim in unclaimed(text) if page.name == "README.md" else ():
                wrong += check
                print(f"{name}: {claim} is no claim of experiments/paper.yaml, under `readme`")
            for comment in unread(text):
                wrong += check
                print(f"{name}: {comment}: nothing follows it that this tool writes")
            for value in loose(text):
                wrong += check
                print(f"{name}: {value!r} looks measured: name its source, or mark its line with {GIVEN}")
    return int(bool(wrong))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--list"]:
        sys.exit(list_documents(sys.argv[2:]))
    sys.exit(main("--check" in sys.argv[1:]))
