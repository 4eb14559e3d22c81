"""The table and the figure of every draft and rule: filled from records, empty cells name what fills them."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex

from specbench.records.catalog import digest
from specbench.records.frame import Records
from specbench.report.figures import build
from specbench.report.style import FAINT, PAPER, VERMILLION
from specbench.report.table import render
from specbench.report.tables import TABLES
from specbench.report.tables.beyond import planned
from tests.support.made_records import make

SCORED = {"quality_metric": "bleu", "quality_baseline": 30.0, "quality_speculative": 28.5}
LOSSY = SCORED | {
    "quality_difference": -1.5, "quality_difference_low": -3.0, "quality_difference_high": 0.1,
    "lossy": True, "lossless": False, "alpha_rule": 0.9, "alpha_rule_low": 0.88, "alpha_rule_high": 0.92,
    "total_variation": 0.125, "identical": 0.25,
}  # fmt: skip


def speed(value: float, **more: Any) -> dict[str, Any]:
    return {"speedup_measured": value, "speedup_low": value - 0.1, "speedup_high": value + 0.1, **more}


@pytest.fixture
def few(tmp_path: Path) -> dict[str, str]:
    """Records by a word: what is planned, and what is not."""
    return {
        "exact 3": make(tmp_path, gamma=3, **speed(1.3, **SCORED)),
        "exact 5": make(tmp_path, gamma=5, **speed(1.5, **SCORED)),
        "lenient": make(tmp_path, gamma=5, seed=1, accept="lenient l=0.3", **speed(1.9, **LOSSY)),
        "typical": make(tmp_path, seed=2, temperature=1.0, accept="typical ε=0.09 δ=0.3", **speed(1.8, **LOSSY)),
        "adaptive": make(tmp_path, seed=3, summary_gamma=None, gamma_requested="adaptive", **speed(1.4)),
        "other 7": make(tmp_path, target="mine", draft="lookup", task="cnndm", gamma=7, **speed(2.2)),
        "other 3": make(tmp_path, target="mine", draft="lookup", task="cnndm", gamma=3, **speed(1.7)),
        "simulated": make(tmp_path, target="mine", draft="bigram", gamma=5, simulated=True, **speed(9.0)),
    }


@pytest.mark.full
def test_each_planned_row_is_there_and_filled_or_says_by_what(few: dict[str, str], tmp_path: Path) -> None:
    values = TABLES["beyond"](Records(tmp_path)).values
    keys = ["target", "draft", "task", "temperature", "accept", "gamma_said"]
    shown = [tuple(row) for row in values[keys].itertuples(index=False)]
    assert [tuple(row[key] for key in keys) for row in planned() if row["target"] == "t5-mini"] != []
    assert {tuple(row[key] for key in keys) for row in planned()} <= set(shown) and len(set(shown)) == len(shown)
    empty = values[values["state"] == "no record"]
    assert len(empty) == len(planned()) - 5  # exact at 3 and 5, lenient, typical, adaptive
    assert empty["command"].str.startswith("specbench sweep experiment=beyond-mini").all()
    assert set(values["run_id"].dropna()) == {few[k] for k in few if k not in ("other 3", "simulated")}


@pytest.mark.full
def test_what_a_row_says(few: dict[str, str], tmp_path: Path) -> None:
    table = TABLES["beyond"](Records(tmp_path))
    shown = table.shown.assign(record=table.shown["record"].str.partition(" ")[0]).set_index("record")
    exact, lenient, typical = (shown.loc[digest(few[key])] for key in ("exact 5", "lenient", "typical"))
    assert exact["measured"] == "1.50 [1.40, 1.60]" and exact["quality"] == "BLEU 28.5"
    assert (lenient["quality"], typical["quality"]) == ("BLEU 28.5 (-1.5 [-3.0, +0.1])",) * 2
    assert (exact["lossless"], exact["under the rule"], exact["identical"]) == ("yes", "–", "100%")
    assert (lenient["rule"], lenient["lossless"], lenient["identical"]) == ("lenient l=0.3", "lossy, TV 0.125", "25%")
    assert lenient["under the rule"] == "0.90 [0.88, 0.92]" and typical["T"] == "1"
    assert shown.loc[digest(few["adaptive"]), "γ"] == "adaptive"
    assert shown.loc[digest(few["other 7"]), "M_p"] == "mine"
    groups = list(zip(table.shown["M_p"], table.shown["task"], table.shown["T"], strict=True))
    assert len(set(groups)) == sum(a != b for a, b in zip(groups, [None, *groups], strict=False))  # each in one piece
    latex = render(table, "latex")
    assert latex.isascii() and r"$\varepsilon$=0.09" in latex
    under = "\n".join(table.notes)
    assert "make beyond" in under and "target.path=FOLDER" in under


@pytest.mark.full
def test_scores_are_compared_row_against_row_and_two_samples_not_at_all(tmp_path: Path) -> None:
    """Records of older versions hold no difference of scores; here all texts are alike. Exact at T=1 is no loss."""
    sampled = make(tmp_path, temperature=1.0, seed=1, **SCORED)
    lossy = LOSSY | dict.fromkeys(key for key in LOSSY if key.startswith("quality_difference"))
    older = make(tmp_path, seed=2, accept="lenient l=0.3", **lossy)
    shown = TABLES["beyond"](Records(tmp_path)).shown.set_index("record")
    assert shown.loc[digest(sampled), "quality"] == "BLEU 28.5"
    assert shown.loc[digest(older), "quality"] == "BLEU 28.5 (+0.0 [+0.0, +0.0])"


@pytest.mark.full
def test_the_newest_over_the_most_prompts_fills_a_row(tmp_path: Path) -> None:
    make(tmp_path, prompts=4, seed=1, created="2026-05-01T00:00:00+00:00")
    most = make(tmp_path, prompts=9, seed=2)
    values = TABLES["beyond"](Records(tmp_path)).values
    assert values["run_id"].dropna().tolist() == [most]


@pytest.mark.full
def test_a_wrong_text_has_no_speed_and_no_mark(tmp_path: Path) -> None:
    none = {"speedup_measured": None, "speedup_low": None, "speedup_high": None}
    wrong = make(tmp_path, seed=1, draft="bigram", lossless=False, **none)
    make(tmp_path)
    row = TABLES["beyond"](Records(tmp_path)).shown.set_index("record").loc[digest(wrong)]
    assert (row["measured"], row["lossless"]) == ("not lossless", "no")
    (figure,) = build(("beyond",), Records(tmp_path))
    assert wrong not in figure.run_ids and "differ by more than rounding: bigram" in figure.alt


def test_the_figure_has_the_fastest_of_each_and_lossy_ones_are_hollow(few: dict[str, str], tmp_path: Path) -> None:
    (figure,) = build(("beyond",), Records(tmp_path))
    assert set(figure.run_ids) == {few[k] for k in few if k not in ("exact 3", "other 3", "simulated")}
    first, second, *_ = figure.figure.axes
    assert [label.get_text() for label in first.get_yticklabels()] == [
        "models", "t5-nano", "t5-nano, adaptive γ",
        "lossy rules", "t5-nano, lenient l=0.3", "t5-nano, typical ε=0.09 δ=0.3",
    ]  # fmt: skip
    said = [text.get_text() for text in first.texts]
    assert sorted(said) == ["1.40×", "1.50×, γ=5", "1.90×, γ=5, lossy"]
    assert [text.get_text() for text in second.texts] == ["1.80×, γ=3, lossy"]
    marks = [line for line in first.lines if line.get_marker() in "os" and len(line.get_xdata()) == 1]
    drawn = {(to_hex(mark.get_markeredgecolor()), to_hex(mark.get_markerfacecolor())) for mark in marks}
    assert drawn == {(FAINT, FAINT), (VERMILLION, PAPER)}  # passes in Python are not blue
    assert "Hollow: a lossy rule" in figure.alt


@pytest.mark.full
def test_machines_are_told_apart(tmp_path: Path) -> None:
    make(tmp_path)
    make(tmp_path, seed=1, hardware="NVIDIA H200", dtype="bfloat16")
    (figure,) = build(("beyond",), Records(tmp_path))
    titles = {axes.get_title(loc="left") for axes in figure.figure.axes}
    assert titles == {"t5-mini on ende-mini, T=0\n(CPU, float32)", "t5-mini on ende-mini, T=0\n(H200, bfloat16)"}
    assert len(TABLES["beyond"](Records(tmp_path)).values["run_id"].dropna()) == 2


@pytest.mark.parametrize(
    "draft", ["3-gram", "lookup", "retrieval", "cascade-bigram-t5-nano", "early-exit-2", "blockwise", "blockwise-mine"]
)
def test_no_other_draft_gets_into_the_papers_figures(draft: str, tmp_path: Path) -> None:
    make(tmp_path, draft="bigram", gamma=3)
    make(tmp_path, draft=draft, gamma=3)
    records = Records(tmp_path)
    assert records.paper_runs["draft"].tolist() == ["bigram"] and records.beyond["draft"].tolist() == [draft]
