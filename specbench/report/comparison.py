"""Measured records of different drafts and rules, over plain sampling, for the table and the figure that compare them.

An entry is a draft under a rule with a gamma policy.
"""

from itertools import product

import pandas as pd

from specbench.records.choice import SIZE_THEN_SPEED, choose
from specbench.records.frame import PAIR, Records, measured
from specbench.records.schema import Row
from specbench.report.paper import experiment

ENTRY = [*PAIR, "accept", "policy"]
PLACE = ["hardware", "dtype"]  # engines differ from draft to draft


def comparable(records: Records) -> pd.DataFrame:
    """All measured records of chains, one prompt at a time, without top-k and top-p.

    `policy` is the gamma policy; empty for a number.
    """
    frame = measured(records.chains)
    frame = frame[frame["top_k"].isna() & frame["top_p"].isna()].astype({"accept": str, "gamma_said": str})
    return frame.assign(policy=frame["gamma_said"].where(frame["gamma"].isna(), ""))


def fastest(frame: pd.DataFrame) -> pd.DataFrame:
    """Return for each entry and machine the fastest of the records over the most prompts, one record for each gamma."""
    each = choose(frame, [*ENTRY, "gamma_said", *PLACE])
    return choose(each, [*ENTRY, *PLACE], SIZE_THEN_SPEED).sort_values(ENTRY, kind="stable")


def planned() -> list[Row]:
    """Return the rows that `experiments/beyond.yaml` plans: names, `gamma_said`, and the `command` that fills each."""
    return [
        {
            "target": part["target"], "draft": draft, "task": part["task"], "temperature": temperature, "accept": rule,
            "gamma_said": gamma, "policy": "" if gamma.isdigit() else gamma, "command": part["fill"],
        }
        for part in experiment("beyond")["rows"]
        for temperature, draft, rule, gamma in product(
            part["temperatures"], part["drafts"], part["rules"], part["gammas"]
        )
    ]  # fmt: skip


def among(frame: pd.DataFrame, row: Row) -> pd.DataFrame:
    """Return the records of one planned row: for each machine the newest of those over the most prompts."""
    same = pd.Series(True, index=frame.index)
    for key in (*ENTRY, "gamma_said"):
        same &= frame[key] == row[key]
    return choose(frame[same], PLACE)
