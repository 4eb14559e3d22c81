"""Ours beside the paper's: what is measured is shown with its record, what is not says how to fill it."""

import csv
import io
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from specbench import border
from specbench.cli import main
from specbench.config.catalogue import held
from specbench.records.catalog import digest
from specbench.records.frame import Records, one_sample
from specbench.records.keeping import keep
from specbench.report.figures import build
from specbench.report.paper import paper
from specbench.report.table import FORMATS, render
from specbench.report.tables import TABLES
from specbench.report.tables import build as build_tables
from specbench.report.tables.beyond import tree_runs
from tests.support.calls import refusal
from tests.support.made_records import make

Capture = pytest.CaptureFixture[str]


def config_note(name: str) -> str:
    return " ".join(held("model")[name].about.split())


@pytest.mark.full
@pytest.mark.parametrize("name", TABLES)
def test_every_table_in_every_format_with_and_without_records(name: str, records: Records, nothing: Records) -> None:
    for source in (records, nothing):
        own_rows = name in ("levers", "strata") and source is nothing  # these have rows of runs, none of the paper's
        table = TABLES[name](source)
        for form in FORMATS:
            assert len(render(table, form).splitlines()) > (0 if own_rows else 5), form


@pytest.mark.covering(most=3)
@pytest.mark.parametrize("name", TABLES)
def test_latex_is_plain_ascii(name: str, records: Records) -> None:
    text = render(TABLES[name](records), "latex")
    assert text.isascii()
    assert "M\\_p" not in text


@pytest.mark.parametrize("name", ["table2", "table3", "table4", "table5"])
def test_an_empty_cell_names_a_command_that_exists(name: str, nothing: Records) -> None:
    text = render(TABLES[name](nothing), "markdown")
    assert "no record" in text
    commands = set(re.findall(r"specbench \w+ experiment=([\w-]+)", text))
    assert commands
    for command in commands:
        assert command in held("experiment")


def test_lamda_is_not_public(nothing: Records) -> None:
    shown = TABLES["table3"](nothing).shown
    lamda = shown[shown["M_p, paper"].str.startswith("LaMDA")]
    assert lamda["T=0, paper"].tolist() == ["0.61", "0.71", "0.75"]
    assert (lamda[["T=0, ours", "T=1, ours", "record"]] == "not public").all(axis=None)


def test_our_row_stands_under_the_papers(records: Records) -> None:
    shown = TABLES["table2"](records).shown
    printed, ours = shown.iloc[0], shown.iloc[1]
    assert (printed["whose"], printed["EMP"], printed["γ"]) == ("paper", "3.4", "7")
    names = ("t5-xxl (T5 1.0 11B)", "t5-small (T5 1.0 60M)")
    assert (ours["whose"], ours["M_p"], ours["M_q"], ours["γ"]) == ("simulated", *names, "7")
    assert re.fullmatch(r"0\.\d\d \[0\.\d\d, \d\.\d\d\]", ours["α"])
    assert ours["record"].endswith("(simulated)")


@pytest.mark.full
def test_our_models_do_not_stand_under_the_papers_names(tmp_path: Path) -> None:
    cells = [{"lenience": 1.0, "alpha": 0.6, "alpha_low": 0.5, "alpha_high": 0.7, "total_variation": 0.0}]
    pair = {"target": "t5-xxl", "draft": "t5-small", "task": "ende"}
    make(tmp_path, temperature=1.0, gamma=7, lenience=cells, **pair)
    names = ["T5-XXL 11B", "T5-small 77M", "t5-xxl (T5 1.0 11B)", "t5-small (T5 1.0 60M)"]
    for table in ("table3", "table5"):
        shown = TABLES[table](Records(tmp_path)).shown
        (row,) = shown[shown["record"].str.match(r"^[0-9a-f]{8}")].to_dict("records")[:1]
        assert [row[f"{model}, {whose}"] for whose in ("paper", "ours") for model in ("M_p", "M_q")] == names
    for table in ("table2", "table3", "table4", "table5"):
        assert "T5 1.0 checkpoints (google-t5)" in "\n".join(TABLES[table](Records(tmp_path)).notes)


@pytest.mark.parametrize("name", paper()["checkpoints"])
def test_our_sizes_are_those_of_the_configs(name: str) -> None:
    said, note = paper()["checkpoints"][name], config_note(name)
    size = said.split()[-1]
    assert size.lower() in name or f"{size} parameters" in note
    assert said.startswith("T5 1.0") == ("T5 1.0" in note)


def test_weights_of_the_users_own_are_called_so(tmp_path: Path) -> None:
    config = {"target": {"path": "/home/me/t5", "hub": "google-t5/t5-11b"}, "draft": {"path": None, "hub": "a/b"}}
    run = make(tmp_path, target="t5-xxl", draft="t5-small", task="ende", gamma=7, config=config)
    ours = TABLES["table2"](Records(tmp_path)).shown.set_index("record").loc[digest(run)]
    assert (ours["M_p"], ours["M_q"]) == ("t5-xxl (own weights)", "t5-small (T5 1.0 60M)")


@pytest.mark.parametrize("table", ["table2", "table3", "table4", "table5"])
def test_only_the_papers_own_setting_fills_its_rows(table: str, tmp_path: Path) -> None:
    cells = [{"lenience": 1.0, "alpha": 0.6, "alpha_low": 0.5, "alpha_high": 0.7, "total_variation": 0.0}]
    pair = {"target": "t5-xxl", "draft": "t5-small", "task": "ende", "temperature": 1.0, "gamma": 7, "lenience": cells}
    own_rows = {"target": {}, "draft": {}, "task": {"name": "ende", "path": "/home/me/rows.jsonl", "hub": "wmt/wmt14"}}
    others = [
        make(tmp_path, seed=1, top_k=40, **pair),
        make(tmp_path, seed=2, top_p=0.9, **pair),
        make(tmp_path, seed=3, config=own_rows, **pair),
    ]
    shown = TABLES[table](Records(tmp_path)).shown
    theirs = shown[shown["task"] == "EnDe"]
    assert not any(digest(other) in cell for other in others for cell in theirs["record"])
    assert digest(others[2]) in "".join(shown["record"]) and "ende (rows.jsonl)" in shown["task"].tolist()
    right = make(tmp_path, seed=4, **pair)
    shown = TABLES[table](Records(tmp_path)).shown
    assert any(digest(right) in cell for cell in shown[shown["task"] == "EnDe"]["record"])


def test_a_chosen_alpha_is_not_in_table_3(records: Records) -> None:
    shown = TABLES["table3"](records).shown
    assert shown[shown["M_q, paper"] == "T5-small 77M"]["T=0, ours"].tolist() == ["no record", "no record"]
    assert shown["M_q, ours"].tolist()[-2:] == ["bigram", "t5-nano"]


def test_a_gamma_that_changes_is_named_and_in_no_figure_over_gamma(tmp_path: Path) -> None:
    for gamma in (1, 3, 5):
        make(tmp_path, gamma=gamma)
    adaptive = make(tmp_path, gamma=4, summary_gamma=None, gamma_requested="adaptive")
    records = Records(tmp_path)
    assert records.paper_runs["gamma"].tolist() == [1, 3, 5]
    shown = TABLES["table4"](records).shown
    assert shown["γ"].tolist()[-4:] == ["1", "3", "5", "adaptive"]
    assert shown["record"].tolist()[-1] == digest(adaptive)


def test_table_4_has_paper_theory_and_ours(records: Records) -> None:
    shown = TABLES["table4"](records).shown
    assert shown["whose"].tolist()[:3] == ["paper", "theory", "simulated"]
    assert shown["EXP"].tolist()[:2] == ["3.2", "3.16"]
    assert shown["best γ"].tolist()[1] == "9"


def test_table_4_says_what_a_prediction_is_made_from(tmp_path: Path) -> None:
    falling = make(tmp_path, draft="lookup", falls=True, seed=1)
    even = make(tmp_path)
    older = make(tmp_path, draft="bigram", summary_prediction=None, seed=2)
    table = TABLES["table4"](Records(tmp_path))
    shown = table.shown.set_index("record")["EXP"]
    assert shown[digest(falling)].endswith(" by position")
    assert not shown[digest(even)].endswith("position") and not shown[digest(older)].endswith("position")
    made_from = table.values.set_index("run_id")["prediction"]
    assert (made_from[falling], made_from[even], made_from[older]) == ("by position", "Eq. 1", "Eq. 1")


def test_values_are_those_of_the_record(records: Records) -> None:
    values = pd.read_csv(io.StringIO(render(TABLES["table4"](records), "csv")))
    ours = values.dropna(subset="run_id")
    assert len(ours) == len(records.paper_runs)
    for _, row in ours.iterrows():
        summary = records.whole(row["run_id"])["summary"]
        assert row["empirical"] == pytest.approx(summary["speedup_measured"])
        assert row["alpha_low"] == pytest.approx(summary["alpha_low"])


def test_the_newest_record_of_a_config_is_shown(tmp_path: Path) -> None:
    make(tmp_path, prompts=4)
    new = make(tmp_path, prompts=4, again=1, created="2026-05-01T00:00:00+00:00")
    assert Records(tmp_path).paper_runs["run_id"].tolist() == [new]


def test_gammas_are_compared_over_the_same_prompts(tmp_path: Path) -> None:
    few = [make(tmp_path, gamma=gamma, prompts=4) for gamma in (1, 3, 7)]
    many = make(tmp_path, gamma=7, prompts=9, seed=5)
    frame = Records(tmp_path).paper_runs
    assert set(frame["run_id"]) == {*few, many}
    assert one_sample(frame)["run_id"].tolist() == few


def test_a_wrong_text_has_no_speed(tmp_path: Path) -> None:
    make(tmp_path, lossless=False, speedup_measured=None, speedup_low=None, speedup_high=None)
    row = TABLES["table4"](Records(tmp_path)).shown.iloc[-1]
    assert (row["EMP"], row["end to end"]) == ("not lossless", "–")


def test_a_damaged_record_is_named_and_skipped(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "runs" / "broken.json").write_text('{"schema": 1')
    with pytest.warns(UserWarning, match=r"broken\.json: skipped"):
        assert len(Records(tmp_path).paper_runs) == 1


def test_a_failed_run_is_no_record(tmp_path: Path) -> None:
    make(tmp_path)
    make(tmp_path, draft="other", error="no memory")
    assert Records(tmp_path).paper_runs["draft"].tolist() == ["t5-nano"]


def test_alpha_under_lenience_where_a_record_has_it(tmp_path: Path) -> None:
    cells = [{"lenience": lenience, "alpha": a, "alpha_low": a - 0.1, "alpha_high": a + 0.1, "total_variation": 0.25}
             for lenience, a in ((1.0, 0.6), (0.5, 0.7), (0.3, 0.75), (0.1, 0.8))]  # fmt: skip
    make(tmp_path, target="t5-xxl", draft="t5-small", task="ende", temperature=1.0, lenience=cells)
    make(tmp_path, temperature=1.0, lenience=cells, seed=4)
    shown = TABLES["table5"](Records(tmp_path)).shown
    beside = shown[(shown["M_q, paper"] == "T5-small 77M") & (shown["T"] == "1")]
    assert beside["α, ours"].tolist() == [
        "0.60 [0.50, 0.70]",
        "0.70 [0.60, 0.80]",
        "0.75 [0.65, 0.85]",
        "0.80 [0.70, 0.90]",
    ]
    assert beside["TV, ours"].tolist() == ["0.250"] * 4
    assert shown["M_p, ours"].tolist()[-4:] == ["t5-mini"] * 4


@pytest.mark.full
@pytest.mark.parametrize("draft", ["lookup", "horizontal-t5-nano-1-bigram", "lookahead", "medusa"])
def test_no_speed_follows_from_the_alpha_of_a_first_token(draft: str, tmp_path: Path) -> None:
    """Theorem 3.8 gave 11.53 where 3.78 was measured; `lookahead`, whose trees are not predicted, too."""
    cells = [{"lenience": lenience, "alpha": 0.9, "alpha_low": 0.8, "alpha_high": 0.95, "total_variation": 0.1}
             for lenience in (1.0, 0.5)]  # fmt: skip
    unpredicted = {"prediction": None, "speedup_predicted": None} if draft == "lookahead" else {}
    falls = draft != "lookahead"
    make(tmp_path, draft=draft, falls=falls, lenience=cells, **unpredicted)
    make(tmp_path, lenience=cells, seed=1)
    records = Records(tmp_path)
    of_first = " (first draft)" if draft.startswith("horizontal") else ""
    five, three = (TABLES[table](records) for table in ("table5", "table3"))
    ours = five.values[five.values["draft"] == draft]
    assert ours["speed"].isna().all() and five.values[five.values["draft"] == "t5-nano"]["speed"].notna().sum() == 2
    shown = five.shown[five.shown["M_q, ours"] == draft]
    assert set(shown["by Thm 3.8, our α"]) == {"–"} and all(cell.endswith("]" + of_first) for cell in shown["α, ours"])
    (alpha,) = three.shown[three.shown["M_q, ours"] == draft]["T=0, ours"]
    assert alpha.endswith("]" + of_first)
    assert set(three.values[three.values["draft"] == draft]["alpha_of"].dropna()) == (
        {"first draft"} if of_first else set()
    )
    four = TABLES["table4"](records).values
    assert four[four["draft"] == draft]["best_gamma"].isna().all()
    said = four[four["draft"] == draft]["prediction"].dropna().tolist()
    assert said == ([] if draft == "lookahead" else ["by position"])
    for table in (five, three, TABLES["table4"](records), TABLES["beyond"](records)):
        assert "belongs to a proposal's first token" in " ".join(table.notes)
        assert table.name == "table4" or of_first in " ".join(map(str, table.shown.to_numpy().ravel()))


def test_lenient_runs_stand_beside_alpha_and_are_marked(tmp_path: Path) -> None:
    cells = [{"lenience": lenience, "alpha": 0.6, "alpha_low": 0.5, "alpha_high": 0.7, "total_variation": 0.25}
             for lenience in (1.0, 0.5, 0.3, 0.1)]  # fmt: skip
    quality = {"quality_metric": "bleu", "quality_baseline": 30.0, "quality_speculative": 28.5}
    plain = make(tmp_path, lenience=cells, **quality)
    make(tmp_path, gamma=5, seed=9, **quality)  # not a gamma of the lenient run
    rule = {"accept": "lenient l=0.5", "lossy": True, "lossless": False, "identical": 0.25}
    run = make(tmp_path, lenience=cells, seed=4, **rule, **quality)
    shown = TABLES["table5"](Records(tmp_path)).shown
    ours = shown[shown["M_p, ours"] == "t5-mini"].set_index("l")
    assert ours.loc["0.5", "measured, ours"].endswith("γ=3 (lossy)") and "lossy" not in ours.loc["1", "measured, ours"]
    assert ours.loc["1", "measured, ours"].endswith("γ=3")
    assert (
        ours.loc["0.5", "quality, target alone / under l"] == "BLEU 30.0 / 28.5"
        and ours.loc["0.5", "identical"] == "25%"
    )
    assert digest(run) in ours.loc["0.5", "record"] and digest(plain) in ours.loc["1", "record"]
    assert ours.loc["0.1", "measured, ours"] == "no record"
    assert "specbench sweep experiment=table5" in ours.loc["0.1", "record"]
    assert list(Records(tmp_path).beyond["run_id"]) == [run]
    keep(Records(tmp_path), print)
    assert (tmp_path / "kept" / f"{run}.json.xz").is_file()


@pytest.mark.full
def test_the_command_line(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", "table1", f"results={results}"]) == 0
    assert re.search(r"\| 0\.9 +\| 10 +\|", capsys.readouterr().out)
    words = ["--results", str(results), "--format", "csv,latex", "--output", str(tmp_path)]
    assert main(["tables", *TABLES, *words]) == 0
    assert {file.name for file in tmp_path.iterdir()} == {f"{name}.{end}" for name in TABLES for end in ("csv", "tex")}


WRONG = {
    "tables table9": "table9: no such table; choose from table1",
    "tables --format html": "--format html: no such format; choose from table, markdown, csv, json, latex",
    "tables --colour": "--colour: no such option; the options are --help, --results, --config-dir, --format, --output",
    "figures figure9": "figure9: no such figure; choose from figure1",
    "figures --format gif": "--format gif: no such format; choose from svg, pdf, png",
    "figures --format ,": "--format ',': names no format; choose from svg, pdf, png",
    "show nonsense": "nonsense: no record of that id in results, and no file; 'specbench results' lists the ids",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_mistake_is_one_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(line.split(), capsys).startswith(f"specbench: {WRONG[line]}")


def test_digest() -> None:
    assert digest("t5-mini-t5-nano-ende-mini-T0-g3-1abd7e16") == "1abd7e16"


def test_specbench_alpha_fills_tables_3_and_5(tmp_path: Path) -> None:
    make(tmp_path, prompts=2)
    interval = {"value": 0.8, "low": 0.7, "high": 0.9}
    row = {
        "target": "t5-mini", "draft": "t5-nano", "task": "ende-mini", "temperature": 0.0, "prompts": 400,
        "tokens": 10_000, "alpha": 0.71, "alpha_low": 0.7, "alpha_high": 0.72,
        "lenient": {"1": interval, "0.5": interval},
        "hardware": "a CPU", "dtype": "float32", "simulated": False, "created": "2026-02-01T00:00:00+00:00",
    }  # fmt: skip
    record = {"schema_version": 2, "alpha_id": "t5-mini-ende-mini-0a1b2c3d", "rows": [row], "configs": []}
    (tmp_path / "alpha").mkdir()
    (tmp_path / "alpha" / "t5-mini-ende-mini-0a1b2c3d.json").write_text(json.dumps(record))
    records = Records(tmp_path)
    for _ in range(2):
        last = TABLES["table3"](records).shown.iloc[-1]
        assert (last["T=0, ours"], last["tokens"], last["record"]) == (
            "0.71 [0.70, 0.72]",
            "10000",
            "0a1b2c3d (most tokens of 2)",
        )
        lenient = TABLES["table5"](records).shown.iloc[-2:]
        assert lenient["α, ours"].tolist() == ["0.80 [0.70, 0.90]"] * 2
        keep(records, print)
        (tmp_path / "alpha" / "t5-mini-ende-mini-0a1b2c3d.json").unlink(missing_ok=True)  # the kept copy says the same


def test_the_parts_of_runs_add_up_to_the_run(records: Records) -> None:
    table = TABLES["strata"](records)
    values = table.values.set_index("run_id")
    assert 0 < len(set(values.index)) <= 4 and 0 < len(table.shown) <= len(values)
    for run_id in set(values.index):
        own, run = values.loc[[run_id]], records.paper_runs.set_index("run_id").loc[run_id]
        for by, group in own.groupby("by"):
            assert group["tokens"].sum() == run["tokens"], by
            assert (group["alpha"] * group["tokens"]).sum() / run["tokens"] == pytest.approx(run["alpha"])
    assert all(" [" in cell for cell in table.shown["α"])


def test_sampled_completions_without_a_proof_are_marked_where_they_are_used(tmp_path: Path) -> None:
    old = make(tmp_path, temperature=1.0)
    proved = make(tmp_path, draft="bigram", seed=1, temperature=1.0, proof_tokens=100, proof_z=0.1)
    records = Records(tmp_path)
    for notes in (TABLES["levers"](records).notes, build(["beyond"], records)[0].notes):
        said = " ".join(notes)
        assert f"{digest(old)} (untested)" in said and "only two greedy completions were compared" in said
        assert digest(proved) in said and f"{digest(proved)} (untested)" not in said


@pytest.mark.full
def test_drafts_that_learn_between_prompts_fill_no_cell(tmp_path: Path) -> None:
    make(tmp_path)
    learns = make(tmp_path, seed=1, draft="t5-nano-online", learnt_positions=5, learning_rate=0.1)
    records = Records(tmp_path)
    assert list(records.learning["run_id"]) == [learns] and learns in set(records.all_runs["run_id"])
    assert not [name for name, table in TABLES.items() if digest(learns) in render(table(records), "markdown")]


def test_chains_of_a_trees_own_draft_stand_beside_it(tmp_path: Path) -> None:
    chain = make(tmp_path, draft="eagle")
    tree = make(tmp_path, draft="eagle", tree="sequoia 16", config={"tree": {"shape": "sequoia", "size": 16}})
    runs = tree_runs(Records(tmp_path))
    assert dict(zip(runs["run_id"], runs["shape"], strict=True)) == {chain: "chain", tree: "sequoia"}


@pytest.mark.full
def test_each_record_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    for seed in range(3):
        make(tmp_path, seed=seed, gamma=3 + seed)
    opened: list[Path] = []
    monkeypatch.setattr(border, "read_bytes", lambda file, read=border.read_bytes: opened.append(file) or read(file))
    assert main(["tables", *TABLES, f"results={tmp_path}"]) == 0
    assert len(opened) == len(set(opened)) == 3
    assert "tables: 0 of" in capsys.readouterr().err, "what takes a while says how far it is"


@pytest.mark.parametrize("name", ["runs", "levers", "strata"])
def test_a_table_without_rows_has_no_empty_tabular(name: str, nothing: Records) -> None:
    """LaTeX rejects a tabular without columns."""
    (table,) = build_tables([name], nothing)
    text = render(table, "latex")
    assert ("tabular" in text) == bool(len(table.shown.columns)) and "tabular}{}" not in text
    assert text.startswith(r"\begin{table}") and r"\par" in text


def test_own_runs_are_a_table_whatever_they_are_of(tmp_path: Path, capfd: Capture) -> None:
    """170 rows of the paper's said 'no record', and the user's own experiment was in none of them."""
    ids = [make(tmp_path, target="mine", draft="my_draft", task="my-rows", gamma=gamma) for gamma in (2, 4)]
    assert main(["tables", "--format", "latex", "--results", str(tmp_path)]) == 0
    out, err = capfd.readouterr()
    assert out.count("\\begin{table}") == 1 and "no record" not in out and out.isascii()
    assert out.count(r"my\_draft") == 2 and all(digest(run_id) in out for run_id in ids)
    assert "specbench tables table1" in err
    assert main(["tables", "runs", "--format", "csv", "--results", str(tmp_path)]) == 0
    assert [row["run_id"] for row in csv.DictReader(io.StringIO(capfd.readouterr().out))] == ids
    make(tmp_path, target="small", prompts=3)
    make(tmp_path, target="shared", disturbed=True, disturbed_by="it waited")
    assert main(["tables", "runs", "--results", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert out.count("| mine ") == 2 and "left out, fewer than 20 prompts" in out and out.count("was contended") == 1
    assert "in Python" in out and "bootstrap" not in out
    make(tmp_path / "contended", disturbed=True, disturbed_by="it waited")
    assert main(["tables", "runs", "--results", str(tmp_path / "contended")]) == 0
    out = capfd.readouterr().out
    assert "no record" not in out and "no run to show" in out and "was contended" in out
    assert main(["tables", "runs", "--results", str(tmp_path / "nothing")]) == 0
    assert "no record: specbench run makes one" in capfd.readouterr().out


def test_own_runs_that_are_left_out_are_not_replaced_by_kept_ones(tmp_path: Path, capfd: Capture) -> None:
    """After one run of a few prompts the table of 'your runs' had all records that ship, and not that run."""
    kept = make(tmp_path, draft="theirs")
    keep(Records(tmp_path), print)
    (tmp_path / "runs" / f"{kept}.json").unlink()
    assert main(["tables", "runs", "--results", str(tmp_path)]) == 0
    assert "theirs" in (out := capfd.readouterr().out) and "no run of yours" in out
    small = make(tmp_path, draft="mine", prompts=3)
    assert main(["tables", "runs", "--results", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert "theirs" not in out and "no run to show" in out and f"(--min-prompts): {digest(small)}" in out
    assert main(["tables", "runs", "--min-prompts", "1", "--results", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert "theirs" not in out and digest(small) in out and "no run" not in out


def test_a_table_of_formulas_leaves_no_record_out(tmp_path: Path, capfd: Capture) -> None:
    """Table 1 named contended records, of which it would show none."""
    make(tmp_path, disturbed=True, disturbed_by="it waited")
    assert main(["tables", "table1", "table2", "--results", str(tmp_path)]) == 0
    first, second = capfd.readouterr().out.split("## Table 2")
    assert "contended" not in first and "contended" in second
