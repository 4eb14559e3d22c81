"""The paper's printed values follow from its formulas, where they do; and all of them are there."""

import pytest

from specbench import theory
from specbench.records.frame import Records
from specbench.report.paper import paper
from specbench.report.table import markdown
from specbench.report.tables import TABLES
from specbench.report.tables.speedups import table1


def test_table_1_equals_the_paper_at_its_printed_precision(nothing: Records) -> None:
    shown = table1(nothing).shown
    assert len(shown) == 6
    assert (shown["operations, paper"] == shown["Thm 3.11"]).all()
    assert (shown["speed, paper"] == shown["Thm 3.8"]).all()


@pytest.mark.parametrize(
    "row", paper()["table2"]["rows"], ids=lambda r: f"{r['task']}-{r['draft']}-T{r['temperature']}"
)
def test_expected_speedups_follow_from_the_papers_alpha_and_c(row: dict[str, float]) -> None:
    assert theory.walltime_improvement(row["alpha"], int(row["gamma"]), row["c"]) == pytest.approx(
        row["expected"], abs=0.1
    )


def test_optimal_gamma_at_alpha_point_nine() -> None:
    figure = paper()["figure3"]
    assert figure["optimal_gamma"] == [24, 19, 13, 10]
    assert [theory.optimal_gamma(figure["at_alpha"], c) for c in figure["c"]] == figure["optimal_gamma"]


def test_lenient_speedups_follow_at_t_0_and_not_at_t_1() -> None:
    text = paper()["table5"]["text"]
    greedy = [theory.walltime_improvement(alpha, text["gamma"], text["c"]) for alpha in text["alpha_0"]]
    assert greedy == pytest.approx(text["speedup_0"], abs=0.05)
    small = next(row for row in paper()["table5"]["rows"] if row["draft"] == text["draft"])
    best = [theory.walltime_improvement(a, theory.optimal_gamma(a, text["c"]), text["c"]) for a in small["alpha"]]
    assert [round(value, 2) for value in best] == [2.33, 2.94, 3.45, 4.79]
    assert all(printed - value > 0.1 for printed, value in zip(text["speedup_1"], best, strict=True))


def test_accepted_over_drafted_is_not_alpha() -> None:
    assert theory.accepted_per_drafted(0.75, 7) == pytest.approx(0.371, abs=5e-4)


def test_every_cell_is_there() -> None:
    data = paper()
    assert [len(data[name]["rows"]) for name in ("table1", "table2", "table3", "table5")] == [6, 12, 16, 4]
    assert sum(row.get("public", True) is False for row in data["table3"]["rows"]) == 3
    shared = {(r["task"], r["draft"]): r for r in data["table3"]["rows"]}
    for row in data["table2"]["rows"]:  # two tables print the same alphas
        assert row["alpha"] == shared[row["task"], row["draft"]][f"alpha_{row['temperature']}"]


def test_the_best_gamma_of_each_row() -> None:
    best = [theory.optimal_gamma(row["alpha"], row["c"]) for row in paper()["table2"]["rows"]]
    assert best == [9, 9, 6, 6, 6, 4, 7, 7, 4, 5, 4, 3]


PRINTED = {"table1": "6.86×", "table2": "3.4", "table3": "0.88", "table4": "3.16", "table5": "5.0"}


@pytest.mark.parametrize("name", PRINTED)
def test_printed_values_are_shown(name: str, nothing: Records) -> None:
    assert PRINTED[name] in markdown(TABLES[name](nothing))
