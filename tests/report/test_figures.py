"""Every figure is drawn, with and without records; every number on it comes from a record."""

import logging
import re
import warnings
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from specbench import theory
from specbench.cli import main
from specbench.records.catalog import digest
from specbench.records.decoded import Pass
from specbench.records.frame import Records
from specbench.report import style
from specbench.report.figure import FORMATS, Drawn, save, svg, write_index
from specbench.report.figures import FIGURES, build
from specbench.report.figures.annotations import APART
from specbench.report.figures.of_parts import survival
from specbench.report.figures.of_prompts import baseline_calls, sample, speculative_calls
from specbench.report.figures.pass_costs import parts
from specbench.report.measured import operations, tokens_per_pass
from specbench.report.paper import fill
from specbench.report.style import MARKERS, panels, styled
from tests.support.made_passes import made_pass, made_trace
from tests.support.made_records import make, record


@pytest.fixture(scope="module")
def drawn(results: Path) -> dict[str, Drawn]:
    return {figure.name: figure for figure in build((), Records(results))}


# Trees, batches and drafts that learn are not among the made-up records; test_tree_drawing, test_batches_figure and
# test_online draw them.
FROM_RECORDS = [name for name in FIGURES if name != "gap"]  # the paper's printed numbers alone


@pytest.mark.parametrize("name", FROM_RECORDS)
def test_without_records_a_figure_says_how_to_fill_it(name: str, nothing: Records) -> None:
    (empty,) = build((name,), nothing)
    assert empty.run_ids == []
    assert fill(name) and fill(name) in empty.alt
    assert svg(empty)


@pytest.mark.parametrize(
    "name", [name for name in FROM_RECORDS if name not in ("real", "trees", "batches", "online", "lossy")]
)
def test_points_name_their_records(name: str, drawn: dict[str, Drawn], records: Records) -> None:
    figure = drawn[name]
    assert figure.run_ids
    assert set(figure.run_ids) <= set(records.paper_runs["run_id"])
    assert figure.points["run_id"].notna().all()


@pytest.mark.parametrize("name", FIGURES)
def test_the_svg_is_sound_and_traceable_and_turns_dark(name: str, drawn: dict[str, Drawn]) -> None:
    text = svg(drawn[name])
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert all(run_id in text for run_id in drawn[name].run_ids)
    colours = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", text))
    assert colours <= set(style.DARK), "a colour has no dark twin"


def test_a_simulated_record_is_labelled(drawn: dict[str, Drawn]) -> None:
    assert "simulated" in drawn["figure2"].alt
    assert drawn["figure2"].points["simulated"].sum() == 1


@pytest.mark.parametrize("name", ["figure2", "gamma"])
def test_the_same_records_give_the_same_bytes(name: str, records: Records) -> None:
    (first,), (second,) = build((name,), records), build((name,), records)
    assert svg(first) == svg(second)


@pytest.mark.full
def test_files(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    formats = ",".join(FORMATS)
    assert main(["figures", "figure2", f"results={results}", f"output={tmp_path}", "--format", formats]) == 0
    assert {f.name for f in tmp_path.iterdir()} == {f"figure2.{end}" for end in (*FORMATS, "csv")}
    assert capsys.readouterr().out.count("figure2") == 4
    points = pd.read_csv(tmp_path / "figure2.csv")
    assert len(points) == 9
    measured = points.dropna(subset=["tokens_low"])
    assert measured["tokens_low"].le(measured["tokens_per_pass"]).all()


def test_all_figures_have_an_index(drawn: dict[str, Drawn], tmp_path: Path) -> None:
    index = write_index(list(drawn.values()), tmp_path, ["png", "svg"]).read_text()
    assert all(f"]({name}.svg)" in index for name in drawn)


def test_figure_2_draws_the_papers_curves(drawn: dict[str, Drawn]) -> None:
    axes = drawn["figure2"].figure.axes[0]
    assert (axes.get_xlim(), axes.get_ylim()) == ((0.5, 0.9), (0, 10))
    heights = sorted(round(float(line.get_ydata()[-1]), 2) for line in axes.lines if len(line.get_xdata()) == 161)
    assert heights == [1.9, 3.44, 4.69, 5.7, 10.0]


@pytest.mark.parametrize("name", ["figure2", "figure3", "figure4"])
def test_no_pair_hides_another(name: str, tmp_path: Path) -> None:
    for temperature in (0.0, 1.0):
        for gamma in (3, 7):
            make(tmp_path, gamma=gamma, temperature=temperature, summary_alpha=0.71 + 0.001 * temperature)
    (drawn,) = build((name,), Records(tmp_path))
    lines = drawn.figure.axes[0].lines
    places = {
        marker: {round(float(line.get_xdata()[0]), 6) for line in lines if line.get_marker() == marker}
        for marker in MARKERS[:2]
    }
    (cold,), (warm,) = places.values()
    assert abs(warm - cold) >= 0.99 * APART and "drawn side by side" in drawn.alt
    assert "place" not in drawn.points and drawn.points["alpha"].between(0.6, 0.8).all()


def test_the_waterfall_names_the_record_that_it_draws(drawn: dict[str, Drawn], tmp_path: Path) -> None:
    """Its pair is not the first of the table; of a folder with one pair, as above, any row is the right one."""
    make(tmp_path, target="gpt-mini", draft="gpt-nano", task="lm-mini", prompts=20)
    make(tmp_path, prompts=30)
    for one in (drawn["waterfall"], *build(("waterfall",), Records(tmp_path))):
        (run_id,) = one.run_ids
        assert re.findall(r"records (\w+)", " ".join(one.notes)) == [digest(run_id)]


def test_figure_3_ends_at_the_papers_gammas(drawn: dict[str, Drawn]) -> None:
    axes = drawn["figure3"].figure.axes[0]
    curves = [line for line in axes.lines if len(line.get_xdata()) == 401]
    assert [int(line.get_ydata()[-1]) for line in curves[:4]] == [24, 19, 13, 10]


def test_figure_4_draws_both_theorems(drawn: dict[str, Drawn]) -> None:
    axes = drawn["figure4"].figure.axes[0]
    curves = [line for line in axes.lines if len(line.get_xdata()) == 161]
    ends = [round(float(line.get_ydata()[-1]), 3) for line in curves]
    wanted = [f(0.9, g, 0) for g in (1, 3, 5, 7, 10) for f in (theory.walltime_improvement, theory.operations_increase)]
    assert ends == [round(value, 3) for value in wanted]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("figure2", "95% interval of a pair's α"), ("figure3", "Theorem 3.8 at a pair's own c"),
        ("figure4", "filled: measured speedup"), ("cost", "target alone, 1 step"),
        ("predictions", "measured = predicted"),
    ],
)  # fmt: skip
def test_bands_and_lines_are_named_in_the_picture(name: str, said: str, drawn: dict[str, Drawn]) -> None:
    figure = drawn[name].figure
    assert said in [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)]


def test_points_beside_the_axes_are_told(drawn: dict[str, Drawn]) -> None:
    assert "t5-mini+bigram" in drawn["figure2"].alt


def test_the_timeline_is_the_recorded_time(records: Records) -> None:
    record = records.whole(records.paper_runs["run_id"].iloc[0])
    for prompt in record["prompts"]:
        ours, alone = prompt["speculative"], prompt["baseline"]
        calls = speculative_calls(prompt)
        assert sum(call.length for call in calls if call.what == "M_q") == pytest.approx(
            sum(a_pass.draft_s for a_pass in ours.passes)
        )
        last_accept = ours.passes[-1].accept_s
        assert calls[-1].begin + calls[-1].length + last_accept == pytest.approx(ours.start_s + ours.decode_s)
        assert [call.what for call in calls[:2]] == ["M_p encoder", "M_q encoder"]
        steps = baseline_calls(prompt)
        assert steps[-1].begin + steps[-1].length == pytest.approx(alone.start_s + alone.decode_s)


def test_survival_is_the_product_of_conditional_shares_and_stops_at_the_end_of_the_text() -> None:
    def a_pass(drafted: int, accepted: int, emitted: int) -> Pass:
        return made_pass(drafted=drafted, accepted=accepted, emitted=emitted)

    # The third drafted an end of sequence first: what it accepted after it does not count.
    passes = [a_pass(3, 3, 4), a_pass(3, 1, 2), a_pass(3, 3, 1), a_pass(2, 0, 1)]
    record = {
        "run_id": "r", "prompts": [{"prompt": "p", "prompt_tokens": 1, "speculative": made_trace(passes=passes)}],
        "summary": {"gamma": 3, "alpha": 0.5, "draft": "d", "temperature": 0},
    }  # fmt: skip
    rows = survival(record)
    assert [row["reached"] for row in rows] == [4, 2, 1]
    assert [row["share"] for row in rows] == pytest.approx([3 / 4, 3 / 4 * 1 / 2, 3 / 4 * 1 / 2 * 1])


def test_parts_of_a_pass_add_up_to_the_measured_speedup(records: Records) -> None:
    for run_id, measured in zip(records.paper_runs["run_id"], records.paper_runs["speedup_measured"], strict=True):
        row = parts(records.whole(run_id))
        spent = sum(row[part] for part in ("draft", "verify", "accept", "host"))
        assert row["tokens_per_pass"] / spent == pytest.approx(measured)


def test_counted_operations_and_tokens(tmp_path: Path) -> None:
    run_id = make(tmp_path, alpha=1.0, gamma=3, prompts=2)
    record = Records(tmp_path).whole(run_id)
    passes = [p for prompt in record["prompts"] for p in prompt["speculative"].passes]
    emitted = sum(p.emitted for p in passes)
    assert tokens_per_pass(record).value == pytest.approx(emitted / len(passes))
    ran = sum(p.drafted + 1 + 0.1 * p.drafted for p in passes)
    assert operations(record).value == pytest.approx(ran / emitted)


def _contrast(a: str, b: str) -> float:
    def light(colour: str) -> float:
        parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted((light(a), light(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colour", [*style.SERIES, style.INK, style.FAINT])
def test_lines_and_labels_stand_out_in_print_and_in_the_dark(colour: str) -> None:
    assert _contrast(colour, style.PAPER) >= 3
    assert _contrast(style.DARK[colour], style.DARK[style.PAPER]) >= 3


@pytest.mark.parametrize("values", [[1.0, 1.01, 1.02, 5.0], [0.0, 0.0, 0.0], [3.0, 1.0, 2.0], []])
def test_labels_are_spread_in_order(values: list[float]) -> None:
    placed = style.spread(values, 0.5)
    ranked = sorted(zip(values, placed, strict=True))
    assert all(b[1] - a[1] >= 0.5 - 1e-9 for a, b in pairwise(ranked))
    assert sum(placed) == pytest.approx(sum(values))


def test_save_names_the_option_where_it_cannot_write(drawn: dict[str, Drawn], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match="cannot be written"):
        save(drawn["figure2"], tmp_path / "file", ["png"])


def test_predictions_says_how_far_it_is_off(tmp_path: Path) -> None:
    for gamma in (1, 3, 5):
        make(
            tmp_path,
            gamma=gamma,
            summary_speedup_predicted=2.0,
            summary_speedup_calibrated=1.2,
            summary_speedup_measured=1.0,
        )
    (drawn,) = build(("predictions",), Records(tmp_path))
    assert len(drawn.points) == 3 and list(drawn.points["speedup_measured"]) == [1.0] * 3
    assert "predicted, Theorem 3.8: 3 records in Python: 100% off in the median" in drawn.alt
    assert "calibrated, with v and the loop: 3 records in Python: 20% off in the median" in drawn.alt


def test_real_weights_are_drawn_by_draft_and_task(tmp_path: Path) -> None:
    """The fastest draft is first; other tasks are not in the picture."""
    assert build(("real",), Records(tmp_path))[0].notes == [
        "No record yet for these axes: run `make real TARGET=FOLDER`"
    ]
    for draft, alpha in (("lookup", 0.2), ("quantised-8", 0.95)):
        for task in ("chat", "code", "ende-mini"):
            make(tmp_path, target="own", draft=draft, task=task, alpha=alpha)
    tree = {"shape": "dynamic", "size": 16}
    make(tmp_path, target="own", draft="eagle", task="code", alpha=0.6, tree="dynamic 16", config={"tree": tree})
    (drawn,) = build(("real",), Records(tmp_path))
    assert sorted(drawn.points["task"]) == ["chat", "chat", "code", "code", "code"]
    assert (drawn.points["tokens_low"] <= drawn.points["tokens_per_pass"]).all()
    assert (drawn.points["tokens_per_pass"] <= drawn.points["tokens_high"]).all()
    tokens, speed = drawn.figure.axes
    assert [label.get_text() for label in tokens.get_yticklabels()] == [
        "quantised-8", "EAGLE, dynamic 16", "lookup"
    ]  # fmt: skip
    assert [label.get_text() for label in speed.get_yticklabels()] == ["0.20, 1.10"] * 3


def test_v_stands_beside_its_roofline(tmp_path: Path) -> None:
    """Weights are read once a pass, and products grow with the tokens: at n = 8 here the products are the longer."""
    for gamma in (3, 7):
        make(
            tmp_path, gamma=gamma, summary_drafted_per_pass=float(gamma), summary_verify_cost=1.5 + gamma,
            summary_reading_ms=1.0, summary_multiplying_ms=0.25,
        )  # fmt: skip
    (drawn,) = build(("verify",), Records(tmp_path))
    assert dict(zip(drawn.points["n"], drawn.points["roofline"], strict=True)) == {4: 1.0, 8: 2.0}
    assert list(drawn.points["verify_cost"]) == [4.5, 8.5]


@pytest.mark.parametrize(
    ("loop", "begins"), [("in C", [0.0, 0.05, 0.1]), ("in Python", [0.05, 0.1]), (None, [0.05, 0.1])]
)
def test_a_lossy_line_begins_at_algorithm_1_of_the_same_loop(
    loop: str | None, begins: list[float], tmp_path: Path
) -> None:
    said = {} if loop is None else {"passes_run": loop}
    make(tmp_path, summary_speedup_measured=1.1, **said)
    for number, loss in enumerate((0.05, 0.1)):
        made = {"accept": f"lenient l=0.{number}", "lossy": True, "total_variation": loss, "passes_run": "in C"}
        make(
            tmp_path,
            again=number + 1,
            summary_speedup_measured=1.2,
            summary_speedup_low=1.1,
            summary_speedup_high=1.3,
            **made,
        )
    (drawn,) = build(("lossy",), Records(tmp_path))
    assert list(drawn.points["total_variation"]) == begins


@pytest.mark.parametrize(("character", "sign"), [("\n", "⏎"), ("\r\n", "⏎"), ("\t", "⇥"), ("\x07", ""), ("中", "中")])
def test_characters_without_a_glyph_are_no_warnings(character: str, sign: str) -> None:
    made = record(prompts=1)
    made["pieces"] = dict.fromkeys(made["pieces"], f"a{character}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with styled():
            drawn = sample(made, 0)
        assert svg(drawn)
    assert set(drawn.points["token"].str.strip()) == {f"a{sign}"}


@pytest.mark.parametrize("text", ["a pair\n" + r"$\alpha=0.6321$", r"中 with $\alpha=0.6321$"])
def test_a_formula_among_other_characters_logs_nothing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A formula is a line's: the newline before it was looked for in the font."""
    logged: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: logged.append(record.getMessage()))
    (log := logging.getLogger("matplotlib.mathtext")).addHandler(handler)
    try:
        with styled():
            figure, (axes,) = panels()
            axes.set_title(text)
            figure.draw_without_rendering()
    finally:
        log.removeHandler(handler)
    assert logged == [] and axes.get_title(loc="left") == text
