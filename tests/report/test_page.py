"""The page holds everything and fetches nothing; no model library is loaded to draw it; kept records draw the same."""

import lzma
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from specbench.analysis.summary import resummarised
from specbench.cli import main
from specbench.records import store
from specbench.records.catalog import kept_files, kept_folder
from specbench.records.frame import Records
from specbench.records.keeping import keep
from specbench.report.figures import FIGURES
from specbench.report.page import _code, page
from specbench.report.tables import TABLES
from tests.support.made_records import make

VOID = {"meta", "path", "use", "rect", "br", "img", "link"}


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


# One fixture draws every table and figure of the records.
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def pages(results: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    """The page with records, and without any; each is drawn once."""
    return {True: page(Records(results)), False: page(Records(tmp_path_factory.mktemp("nothing")))}


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("with_records", [True, False])
def test_the_page_is_whole_and_self_contained(with_records: bool, records: Records, pages: dict[bool, str]) -> None:
    text = pages[with_records]
    assert text.startswith("<!doctype html>")
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    for name in [*TABLES, *FIGURES]:
        assert text.count(f'id="{name}"') == 1 and f'href="#{name}"' in text
    assert text.count('id="beyond-table"') == 1 and 'href="#beyond-table"' in text  # its figure has its name
    outside = re.findall(r"(?:src|href)=[\"']([^#\"'][^\"']*)", text)
    assert outside == [], "something would be fetched"
    assert "url(http" not in text and "@import" not in text
    if with_records:
        assert "1 of them have simulated acceptance" in text
        assert all(run_id in text for run_id in records.paper_runs["run_id"])
    else:
        assert "our columns are empty" in text


def test_rows_of_the_paper_without_a_number_of_ours_are_folded(pages: dict[bool, str]) -> None:
    """A line says how many and why; what is ours stays open, and so does a row of the paper that a record fills."""
    text = pages[True]
    assert "12 not run: needs a GPU and the model hub" in pages[False] and "11 not run: needs a GPU" in text
    assert "3 not public: LaMDA was never released" in text
    body = text[text.index("<main>") :]
    shown = re.sub(r'<details class="folded">.*?</details>', "", body, flags=re.S)
    assert "none: <code>" in body and "no record" in body
    for name in ("table2", "table3", "table4", "table5"):
        (part,) = re.findall(rf'<section id="{name}">(.*?)</section>', shown, flags=re.S)
        assert "none: <code>" not in part, name
        assert ">t5-nano<" in part or name == "table5"
    (second,) = re.findall(r'<section id="table2">(.*?)</section>', shown, flags=re.S)
    assert second.count('<tr class="paper">') == 1 == second.count('<tr class="simulated">')  # the row that is filled


def test_the_contents_stand_beside_and_captions_are_folded(pages: dict[bool, str]) -> None:
    text = pages[True]
    (contents,) = re.findall(r"<nav.*?</nav>", text, flags=re.S)
    anchors = re.findall(r'href="#([\w-]+)"', contents)
    assert len(anchors) == len(set(anchors)) and all(text.count(f'id="{one}"') == 1 for one in anchors)
    assert set(re.findall(r'<section id="([\w-]+)"', text)) <= set(anchors)
    body = re.sub(r"<style>.*?</style>", "", text[text.index("<main>") :], flags=re.S)
    opened = re.sub(r"<details.*?</details>", "", body, flags=re.S)
    assert "95% interval over prompts" in body and "95% interval over prompts" not in opened
    assert body.count("<table>") == len(re.findall(r'<div class="scroll" tabindex="0"><table>', body))
    style = text[: text.index("</style>")]
    assert "prefers-color-scheme: dark" in style and "grid-template-areas" in style and "max-width: 60rem" in style


@pytest.mark.full
def test_what_a_record_says_is_escaped(tmp_path: Path) -> None:
    make(tmp_path, draft="<b>bold", hardware="a & b <script>")
    text = page(Records(tmp_path))
    assert "<b>bold" not in text and "<script>" not in text
    assert "&lt;b&gt;bold" in text and "a &amp; b &lt;script&gt;" in text


def test_backticks_are_code_and_code_is_escaped() -> None:
    assert _code("run `specbench <x>` & see") == "run <code>specbench &lt;x&gt;</code> &amp; see"


@pytest.mark.full
def test_nothing_of_a_model_is_loaded(results: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from specbench.cli import main; "
        "import specbench.report.page, specbench.report.figures; "
        f"assert main(['figures', 'figure2', 'results={results}', 'output={tmp_path}']) == 0; "
        f"assert main(['tables', 'results={results}', 'output={tmp_path}']) == 0; "
        "print([name for name in ('torch', 'transformers', 'hydra') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_kept_records_draw_the_same(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results / "runs", tmp_path / "runs")
    before = Records(tmp_path)
    keep(before, print)
    shutil.rmtree(tmp_path / "runs")
    after = Records(tmp_path)
    assert after.paper_runs.equals(before.paper_runs)
    whole = after.whole(after.paper_runs["run_id"].iloc[0])
    assert "platform" not in whole["environment"]
    assert (
        whole["prompts"][0]["speculative"].tokens == before.whole(whole["run_id"])["prompts"][0]["speculative"].tokens
    )


@pytest.mark.parametrize(
    "draft",
    [
        {"corpus": "/home/me/mine.txt"},
        {"cache_dir": "/home/me/mine.txt"},
        {"via": {"path": "/home/me/mine.txt"}},
        {"inner": {"corpus": "/home/me/mine.txt"}},
    ],
)
def test_no_record_that_names_a_file_of_this_machine_is_kept(
    draft: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = make(tmp_path, config={"draft": draft})
    assert keep(Records(tmp_path), print) == []
    assert f"{local}: not kept, it names /home/me/mine.txt" in capsys.readouterr().out


def test_copies_and_exports_hold_names_of_files_and_no_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = {"name": "prompts", "path": "clients/acme/mine.jsonl"}
    places = {"task": task, "draft": {"via": {"path": "clients/acme/m"}}}
    run_id = make(tmp_path, config=places)
    (copy,) = keep(Records(tmp_path), print)
    kept = store.read(copy)["config"]
    assert (kept["task"]["path"], kept["draft"]["via"]["path"]) == ("mine.jsonl", "m")
    assert "acme" not in lzma.decompress(copy.read_bytes()).decode()
    capsys.readouterr()
    for words in (["results", "--format", "json"], ["results", run_id, "--as", "profile"], ["tables", "runs"]):
        assert main([*words, "--results", str(tmp_path)]) == 0
        out, err = capsys.readouterr()
        assert "acme" not in out + err and str(tmp_path) not in out
    assert main(["report", "--results", str(tmp_path), "--min-prompts", "1"]) == 0
    for written in ("report.html", "report-explorer.html"):
        assert "acme" not in (tmp_path / written).read_text(encoding="utf-8")


def test_keeping_drops_what_is_replaced_and_what_names_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = make(tmp_path, prompts=4)
    keep(Records(tmp_path), print)
    new = make(tmp_path, prompts=4, again=1, created="2026-05-01T00:00:00+00:00")
    local = make(tmp_path, draft="other", seed=3, config={"draft": {"path": "/home/me/model"}})
    keep(Records(tmp_path), print)
    assert [f.name for f in kept_files(tmp_path)] == [f"{new}.json.xz"]
    assert old != new
    assert f"{local}: not kept, it names /home/me/model" in capsys.readouterr().out


@pytest.mark.full
def test_the_summary_of_a_copy_is_made_from_the_times_in_it(tmp_path: Path) -> None:
    run_id = make(tmp_path, c=0.00043217)  # 1.7 us a drafted token
    before = Records(tmp_path).whole(run_id)
    assert main(["report", "--keep", f"results={tmp_path}"]) == 0
    copy = store.read(kept_folder(tmp_path) / f"{run_id}.json.xz")
    assert copy["prompts"] != before["prompts"]
    assert resummarised(copy)["summary"] == copy["summary"] == Records(tmp_path).whole(run_id)["summary"]
    assert copy["summary"]["c"] == pytest.approx(before["summary"]["c"], rel=1e-3)
    assert Records(tmp_path).catalog.unkept == []
