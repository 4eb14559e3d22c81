"""Tables by name: the paper's with ours beside them, and others."""

from collections.abc import Callable, Sequence

from specbench.records.frame import Records
from specbench.report.table import Table, selected
from specbench.report.tables.acceptance import strata, table3
from specbench.report.tables.beyond import beyond, trees
from specbench.report.tables.gap import gap, levers, table1
from specbench.report.tables.lenience import table5
from specbench.report.tables.speedups import table2, table4

TABLES: dict[str, Callable[[Records], Table]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "table5": table5,
    "beyond": beyond,
    "gap": gap,
    "levers": levers,
    "trees": trees,
    "strata": strata,
}


def build(names: Sequence[str], records: Records, step: Callable[[], None] = lambda: None) -> list[Table]:
    """The named tables, all of them where none is named; `step` is called before each."""
    built = []
    for make in selected(names, TABLES, "table"):
        step()
        built.append(make(records))
    return built
