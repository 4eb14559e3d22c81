"""Tables by name: the paper's with ours beside them, and others."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from specbench.records.contended import contended
from specbench.records.frame import Records
from specbench.report.table import Step, Table
from specbench.report.table import build as make_each
from specbench.report.tables.acceptance import strata, table3
from specbench.report.tables.beyond import beyond, trees
from specbench.report.tables.gap import gap, levers
from specbench.report.tables.lenience import table5
from specbench.report.tables.runs import runs
from specbench.report.tables.servers import servers
from specbench.report.tables.shorter import MOST_OTHERS
from specbench.report.tables.speedups import table1, table2, table4

_ALL: tuple[Callable[[Records], Table], ...] = (
    table1, table2, table3, table4, table5, beyond, gap, levers, trees, strata,
)  # fmt: skip
TABLES = {make.__name__: make for make in _ALL}
LONG = (table2, table3, table4, table5, beyond, levers, trees)  # whose pages show a part of their rows
OF_FORMULAS = (table1.__name__,)  # in which no record has a place
OF_RUNS = {runs.__name__: runs}  # whose rows are only records, none of the paper's
OF_SERVERS = {servers.__name__: servers}  # of other engines


def build(
    names: Sequence[str], records: Records, step: Step = lambda: None, most: int | None = MOST_OTHERS
) -> list[Table]:
    """The named tables, or the `usual` ones if none is named; `step` is called before each.

    Their texts have `most` rows beside the paper's, or all (None); their values are whole.

    Each that is made from records names those that it leaves out because the machine was contended.
    """
    makers = TABLES | OF_RUNS | OF_SERVERS | {make.__name__: partial(make, most=most) for make in LONG}
    made: list[Table] = make_each(names or usual(records), makers, "table", records, step)
    left_out = contended(records.disturbed)
    return [one if one.name in OF_FORMULAS else replace(one, notes=[*one.notes, *left_out]) for one in made]


def usual(records: Records) -> list[str]:
    """The tables that are drawn if none is named.

    The table of runs if this machine has any, and the paper's tables if there are kept copies, which fill them: only
    own runs would fill few of their rows.
    """
    served = list(OF_SERVERS) if len(records.served) else []
    mine = [*(OF_RUNS if set(records.catalog.own) - set(records.served["run_id"]) else ()), *served]
    copied = any(head.run_id not in records.catalog.own for head in records.catalog.heads)
    return [*mine, *(TABLES if copied or not mine else ())]
