"""α over time of a draft that learns while it serves, beside the same prompts without learning."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from specbench.methods.model.config import ONLINE, ModelDraftConfig
from specbench.records.frame import Records
from specbench.records.identity import config_digest
from specbench.records.schema import RunRecord
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import captions, nothing_yet
from specbench.report.style import FAINT, INK, SERIES
from specbench.report.style import panels as axes_of

# α prompt by prompt of drafts that learn while they serve, and of the same runs at a learning rate of 0.


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


TITLE = "α over time of a draft that learns while it serves"
MOST_PANELS, MOST_SHIFTS = 6, 3


def online(records: Records) -> Drawn:
    """Draw α along the prompts, a panel for each pair and order, a line for each learning rate."""
    found = panels(records)[:MOST_PANELS]
    if not found:
        return nothing_yet("online", TITLE)
    columns = min(2, len(found))
    rows = -(-len(found) // columns)
    figure, axes = axes_of(columns, width=0.7 + 3.4 * columns, height=0.75 + 2.6 * rows, rows=rows)
    figure.set_layout_engine("constrained")
    rates = sorted({rate for panel in found for rate in panel.runs["learning_rate"]})
    drawn: dict[str, Line2D] = {}
    for panel, of_panel in zip(axes, found, strict=False):
        drawn |= _draw(panel, of_panel, rates)
    named = {label: drawn[label] for label in map(_label, rates)}
    figure.legend(
        named.values(), named.keys(), loc="outside upper left", ncols=len(named), frameon=False, fontsize=8
    )  # fmt: skip
    for unused in axes[len(found) :]:
        unused.set_visible(False)
    points = pd.concat(panel.points for panel in found)
    runs = pd.concat(panel.runs for panel in found)
    notes = [
        f"Lines: α of the last {WINDOW} prompts. Grey: learning rate 0, the same prompts without learning. Dotted: "
        "the kind of prompt changes",
        *(_said(panel) for panel in found),
        *captions(runs, "online"),
    ]
    return Drawn("online", TITLE, figure, points, notes)


def _label(rate: float) -> str:
    return f"learning rate {rate:g}" if rate else "no learning"


def _draw(axes: Axes, panel: Panel, rates: Sequence[float]) -> dict[str, Line2D]:
    """Draw a panel; a rate's colour depends on its place among `rates`. Returns the lines by their labels."""
    lines = {}
    for rate, points in panel.points.groupby("learning_rate", sort=True):
        colour = SERIES[rates.index(rate) % len(SERIES)] if rate else FAINT
        (lines[_label(rate)],) = axes.plot(points["prompt"], points["alpha_window"], color=colour)
    first = panel.points[panel.points["run_id"] == panel.points["run_id"].iloc[0]]
    kinds = list(zip(first["prompt"], first["category"], strict=True))
    shifts = [place for (_, before), (place, kind) in pairwise(kinds) if kind != before and kind is not None]
    for place in shifts if len(shifts) <= MOST_SHIFTS else []:
        axes.axvline(place - 0.5, color=INK, linewidth=0.7, linestyle=(0, (1, 2)))
    axes.set(xlabel="prompt", ylabel=r"$\alpha$", title=panel.title)
    return lines


def _said(panel: Panel) -> str:
    """'α on the last third of the prompts: .61 at learning rate 0, .66 at 0.003'."""
    last = ", ".join(f"{row['alpha_last']:.3f} at rate {row['learning_rate']:g}" for _, row in panel.runs.iterrows())
    learnt = panel.runs[panel.runs["learning_rate"] > 0].iloc[-1]
    title = panel.title.replace("\n", ", ")
    return (
        f"{title}: α on the last third of the prompts {last}; {learnt['learnt_positions']:.0f} tokens learnt "
        f"from in {learnt['learning_s']:.0f} s"
    )
