"""α prompt by prompt of drafts that learn while they serve, and of the same runs at a learning rate of 0."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from specbench.config.draft_kinds import ModelDraftConfig
from specbench.config.draft_kinds.model import ONLINE
from specbench.records.frame import Records
from specbench.records.identity import config_digest
from specbench.records.schema import RunRecord

WINDOW = 15  # prompts of which a point is the mean
ORDER = "task.shuffle"
COMPARED = ("online", "online_lr")
SETTINGS = [one for one in fields(ModelDraftConfig) if one.name.startswith(ONLINE) and one.name not in COMPARED]


@dataclass(frozen=True)
class Panel:
    """Runs of one pair, task, order of the prompts and way of learning, at several learning rates.

    `points` has a row for each prompt of each run.
    """

    title: str
    runs: pd.DataFrame
    points: pd.DataFrame


def panels(records: Records) -> list[Panel]:
    """A panel for each pair and order of which there is a run that learns; those with a control first."""
    runs = records.learning
    if runs.empty:
        return []
    rows = [_row(records.whole(run_id)) for run_id in runs["run_id"]]
    runs = runs.reset_index(drop=True).join(pd.DataFrame(rows))
    found = list(_panels(records, runs))
    return sorted(found, key=lambda panel: -panel.runs["learning_rate"].nunique())


def _row(record: RunRecord) -> dict[str, object]:
    config = record["config"]
    pair = config_digest(config, ORDER, "draft.name", *(f"draft.{name}" for name in COMPARED))
    own = {one.name: config["draft"].get(one.name, one.default) for one in SETTINGS}
    others = [f"{one.name}={own[one.name]}" for one in SETTINGS if own[one.name] != one.default]
    setting = "\n" + ", ".join(others) if others else ""
    return {"pair": pair, "shuffle": config["task"].get("shuffle"), "learning": setting}


def _panels(records: Records, runs: pd.DataFrame) -> Iterator[Panel]:
    for (_, shuffle), own in runs.groupby(["pair", "shuffle"], dropna=False, sort=False):
        newest = own.sort_values("created", kind="stable").drop_duplicates("learning_rate", keep="last")
        newest = newest.sort_values("learning_rate", kind="stable")
        if newest["learning_rate"].max() == 0:
            continue
        first = newest.iloc[0]
        order = "as they come" if pd.isna(shuffle) else "shuffled"
        points = pd.concat(_points(records.whole(row["run_id"]), row["learning_rate"]) for _, row in newest.iterrows())
        draft = str(first["draft"]).removesuffix(f"-{ONLINE}")
        title = f"{draft}, {first['task']}, T={first['temperature']:g}, {order}{first['learning']}"
        yield Panel(title, newest, points.assign(order=order))


def _points(record: RunRecord, rate: float) -> pd.DataFrame:
    prompts = record["prompts"]
    sums = np.cumsum([[0.0, 0.0], *([sum(prompt["beta"]), len(prompt["beta"])] for prompt in prompts)], axis=0)
    places = range(1, len(prompts) + 1)
    windows = [sums[place] - sums[max(0, place - WINDOW)] for place in places]
    return pd.DataFrame(
        {
            "run_id": record["run_id"],
            "learning_rate": rate,
            "prompt": list(places),
            "category": [prompt.get("category") for prompt in prompts],
            "alpha": [np.mean(prompt["beta"]) for prompt in prompts],
            "alpha_window": [window[0] / window[1] for window in windows],
            "rejected": [prompt["online"]["rejected"] for prompt in prompts],
            "seconds": [prompt["online"]["seconds"] for prompt in prompts],
        }
    )
