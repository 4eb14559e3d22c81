"""Acceptance in parts of a run: by draft position, by β, by kind of prompt, context and position, and over time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from specbench.analysis.acceptance.by_position import reached_and_accepted
from specbench.analysis.distinct import groups_of
from specbench.methods.model.config import ONLINE, ModelDraftConfig
from specbench.records.frame import PAIR, Records, measured
from specbench.records.run_record import Row, RunRecord
from specbench.records.store import config_digest
from specbench.report.figure import Drawn
from specbench.report.figures.annotations import captions, nothing_yet, pair_name
from specbench.report.style import COLUMN, FAINT, INK, MARKERS, PAPER, SERIES, panels, with_intervals
from specbench.stats import over_rows

POSITION, BETA = "Acceptance by draft position", "Distribution of β over positions"
MOST_PAIRS = 6


def position(records: Records) -> Drawn:
    """Draw the share of passes whose first i drafted tokens are accepted, beside alpha^i.

    A panel for each draft and a line for each temperature.
    """
    chosen = _longest_drafts(records.paper_runs)
    if chosen.empty:
        return nothing_yet("position", POSITION)
    drafts = list(dict.fromkeys(zip(chosen["target"], chosen["draft"], chosen["task"], strict=True)))
    figure, axes = panels(len(drafts), width=0.7 + 2.3 * len(drafts), height=2.6)
    values = pd.DataFrame([row for run_id in chosen["run_id"] for row in survival(records.whole(run_id))])
    for panel, (target, draft, task) in zip(axes, drafts, strict=True):
        lines = chosen[(chosen["target"] == target) & (chosen["draft"] == draft) & (chosen["task"] == task)]
        _survivals(panel, lines.sort_values("temperature"), values)
        panel.set_title(draft)
        panel.set(ylim=(0, 1.05 + 0.11 * len(lines)), xlabel="first $i$ drafted tokens")
        panel.set_yticks(np.linspace(0, 1, 6))
        panel.set_xticks(range(int(values[values["run_id"].isin(lines["run_id"])]["position"].max()) + 1))
    axes[0].set_ylabel("share accepted")
    notes = [
        "Dashed: α^i, for independent, identically distributed acceptances. Points: the share of passes whose first i "
        "drafted tokens are accepted, with 95% intervals; a proposal counts up to the end of its completion",
        *captions(chosen, "position"),
    ]
    return Drawn("position", POSITION, figure, values, notes)


def _survivals(axes: Axes, lines: pd.DataFrame, values: pd.DataFrame) -> None:
    for index, (_, record) in enumerate(lines.iterrows()):
        own = values[values["run_id"] == record["run_id"]]
        colour = SERIES[index % len(SERIES)]
        steps = np.linspace(0, own["position"].max(), 100)
        axes.plot(steps, record["alpha"] ** steps, color=colour, linestyle=(0, (3, 2)), linewidth=0.9)
        with_intervals(
            axes, own["position"], own["share"], own["low"], own["high"], fmt=MARKERS[index % len(MARKERS)],
            color=colour, linestyle="-", linewidth=1.3, elinewidth=0.8, markersize=4,
            markerfacecolor=PAPER if record["simulated"] else colour,
        )  # fmt: skip
        # Curves fall from 1, and there is room above.
        name = pair_name(record).partition(", ")[2]
        axes.text(
            0.99, 0.99 - 0.08 * index, rf"{name} ($\alpha={record['alpha']:.2f}$)",
            color=colour, fontsize=8.5, ha="right", va="top", transform=axes.transAxes,
        )  # fmt: skip


def survival(record: RunRecord) -> list[Row]:
    """Return, for i = 1 ... gamma, the share of passes whose first i drafted tokens are accepted.

    A proposal may end before gamma (the completion ends, or there is no room). Such a pass says nothing about later
    positions, so the share is a product of conditional shares, accepted over reached at each position (Kaplan and
    Meier).
    """
    summary, gamma = record["summary"], record["summary"]["gamma"]
    assert gamma is not None, "a run whose gamma changed has no position that every pass had"
    columns = np.array(
        [
            sum(
                (np.array(reached_and_accepted(a_pass, gamma)) for a_pass in prompt["speculative"].passes),
                np.zeros((gamma, 2)),
            )
            for prompt in record["prompts"]
        ]
    )  # [prompts, gamma, 2]
    rows, groups = [], groups_of(record["prompts"])
    for i in range(1, gamma + 1):
        reached = int(columns[:, i - 1, 0].sum())
        if reached == 0:
            break
        share = over_rows(columns[:, :i].reshape(len(columns), -1), _product, scale="probability", groups=groups)
        rows.append({
            "position": i, "share": share.value, "low": share.low, "high": share.high,
            "independent": summary["alpha"] ** i, "reached": reached, "draft": summary["draft"],
            "temperature": summary["temperature"], "run_id": record["run_id"],
        })  # fmt: skip
    return rows


def _product(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Totals [..., 2 i] of (reached, accepted) to the product of accepted / reached; 0 if no position is reached."""
    pairs = totals.reshape(*totals.shape[:-1], -1, 2)
    shares = np.divide(pairs[..., 1], pairs[..., 0], out=np.zeros(pairs.shape[:-1]), where=pairs[..., 0] > 0)
    product: NDArray[np.float64] = np.prod(shares, axis=-1)
    return product


def beta(records: Records) -> Drawn:
    """Draw a histogram of beta for each draft, from sampled runs, since at T = 0 beta is 0 or 1."""
    frame = measured(records.paper_runs)
    sampled = frame[frame["temperature"] > 0]
    chosen = _one_a_pair(sampled if not sampled.empty else frame)
    if chosen.empty:
        return nothing_yet("beta", BETA)
    chosen = chosen.sort_values("alpha", ascending=False).head(MOST_PAIRS)
    figure, axes = panels(1, width=COLUMN + 0.6, height=0.5 + 0.85 * len(chosen), rows=len(chosen))
    rows, targets = [], chosen["target"].nunique()
    edges = np.linspace(0, 1, 21)
    for panel, (index, (_, record)) in zip(axes, enumerate(chosen.iterrows()), strict=True):
        values = [b for prompt in records.whole(record["run_id"])["prompts"] for b in prompt["beta"]]
        shares = np.histogram(values, edges)[0] / len(values)
        colour = SERIES[index % len(SERIES)]
        panel.bar(edges[:-1], shares, width=np.diff(edges), align="edge", color=colour, edgecolor=PAPER, linewidth=0.5)
        panel.plot([record["alpha"]] * 2, [0, shares.max()], color=INK, linewidth=1)
        name = f"{record['target']} with {pair_name(record)}" if targets > 1 else pair_name(record)
        panel.set_title(rf"{name}, mean $\alpha={record['alpha']:.2f}$", color=colour, pad=3, fontsize=9)
        panel.set(xlim=(0, 1))
        panel.set_yticks([])
        panel.grid(visible=False)
        panel.spines["left"].set_visible(False)
        panel.tick_params(labelbottom=panel is axes[-1])
        rows += [
            {"low": edges[i], "high": edges[i + 1], "share": share, "positions": len(values), "draft": record["draft"],
             "temperature": record["temperature"], "run_id": record["run_id"]}
            for i, share in enumerate(shares)
        ]  # fmt: skip
    axes[-1].set_xlabel(r"$\beta=\sum_x \min(p(x), q(x))$ at a position of the target's completion")
    notes = [
        "Share of positions by β; each panel has its own vertical scale. Vertical line: the mean, α",
        *captions(chosen, "beta"),
    ]
    return Drawn("beta", BETA, figure, pd.DataFrame(rows), notes)


def _longest_drafts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the record of each pair with the largest gamma, without the uniform draft."""
    known = measured(frame)
    known = known[known["draft"] != "random"].sort_values(["gamma", "tokens"])
    best = known.drop_duplicates(PAIR, keep="last")
    return best[best["gamma"] >= 3].sort_values("alpha", ascending=False).head(MOST_PAIRS)


def _one_a_pair(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values(["tokens", "created"]).drop_duplicates(PAIR, keep="last")


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


def learning_panels(records: Records) -> list[Panel]:
    """A panel for each pair and order of which there is a run that learns; those with a control first."""
    runs = records.learning
    if runs.empty:
        return []
    rows = [_row(records.whole(run_id)) for run_id in runs["run_id"]]
    runs = runs.reset_index(drop=True).join(pd.DataFrame(rows))
    return sorted(_panels(records, runs), key=lambda panel: -panel.runs["learning_rate"].nunique())


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
        first, draft = newest.iloc[0], str(newest["draft"].iloc[0]).removesuffix(f"-{ONLINE}")
        order = "as they come" if pd.isna(shuffle) else "shuffled"
        points = pd.concat(_points(records.whole(row["run_id"]), row["learning_rate"]) for _, row in newest.iterrows())
        title = f"{draft}, {first['task']}, T={first['temperature']:g}, {order}{first['learning']}"
        yield Panel(title, newest, points.assign(order=order))


def _points(record: RunRecord, rate: float) -> pd.DataFrame:
    prompts = record["prompts"]
    sums = np.cumsum([[0.0, 0.0], *([sum(prompt["beta"]), len(prompt["beta"])] for prompt in prompts)], axis=0)
    places = range(1, len(prompts) + 1)
    windows = [sums[place] - sums[max(0, place - WINDOW)] for place in places]
    return pd.DataFrame({
        "run_id": record["run_id"], "learning_rate": rate, "prompt": list(places),
        "category": [prompt.get("category") for prompt in prompts],
        "alpha": [np.mean(prompt["beta"]) for prompt in prompts],
        "alpha_window": [window[0] / window[1] for window in windows],
        "rejected": [prompt["online"].rejected for prompt in prompts],
        "seconds": [prompt["online"].seconds for prompt in prompts],
    })  # fmt: skip


ONLINE_TITLE = "α over time of a draft that learns while it serves"
MOST_ONLINE, MOST_SHIFTS = 6, 3


def online(records: Records) -> Drawn:
    """Draw α along the prompts, a panel for each pair and order, a line for each learning rate."""
    found = learning_panels(records)[:MOST_ONLINE]
    if not found:
        return nothing_yet("online", ONLINE_TITLE)
    columns = min(2, len(found))
    rows = -(-len(found) // columns)
    figure, axes = panels(columns, width=0.7 + 3.4 * columns, height=0.75 + 2.6 * rows, rows=rows)
    figure.set_layout_engine("constrained")
    rates = sorted({rate for panel in found for rate in panel.runs["learning_rate"]})
    drawn: dict[str, Line2D] = {}
    for panel, of_panel in zip(axes, found, strict=False):
        drawn |= _draw(panel, of_panel, rates)
    named = {label: drawn[label] for label in map(_label, rates)}
    figure.legend(
        named.values(), named.keys(), loc="outside lower center", ncols=len(named), frameon=False, fontsize=8
    )  # fmt: skip
    for unused in axes[len(found) :]:
        unused.set_visible(False)
    points = pd.concat(panel.points for panel in found)
    runs = pd.concat(panel.runs for panel in found)
    notes = [
        f"Lines: α of the last {WINDOW} prompts. Grey: learning rate 0, the same prompts without learning. Dotted: "
        "the kind of prompt changes",
        *(_learning_caption(panel) for panel in found),
        *captions(runs, "online"),
    ]
    return Drawn("online", ONLINE_TITLE, figure, points, notes)


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


def _learning_caption(panel: Panel) -> str:
    """'α on the last third of the prompts: .61 at learning rate 0, .66 at 0.003'."""
    last = ", ".join(f"{row['alpha_last']:.3f} at rate {row['learning_rate']:g}" for _, row in panel.runs.iterrows())
    learnt = panel.runs[panel.runs["learning_rate"] > 0].iloc[-1]
    title = panel.title.replace("\n", ", ")
    return (
        f"{title}: α on the last third of the prompts {last}; {learnt['learnt_positions']:.0f} tokens learnt "
        f"from in {learnt['learning_s']:.0f} s"
    )
