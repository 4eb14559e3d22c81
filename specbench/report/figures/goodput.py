"""Goodput against load: a line for each draft and gamma, and where drafts stop paying."""

from itertools import pairwise

import pandas as pd

from specbench.records.choosing import LoadDocument
from specbench.report.figure import Drawn
from specbench.report.load_tables import TIE, best_drafts
from specbench.report.style import (
    FAINT,
    INK,
    PAPER,
    SERIES,
    at_end,
    panels,
    spread,
)

MOST_LINES = 6  # drafts and gammas, those with the highest goodput somewhere


DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1.2)))


def goodput(record: LoadDocument, name: str = "load") -> Drawn:
    """Draw goodput over load, with the points that were served for real."""
    frame = pd.DataFrame([
        {name: row[name] for name in ("candidate", "gamma", "load", "rate", "goodput", "goodput_low", "goodput_high")}
        for row in record["rows"]
    ])  # fmt: skip
    real = {(one["candidate"], one["gamma"], one["rate"]): one for one in record["verified"]}
    keys = list(zip(frame["candidate"], frame["gamma"], frame["rate"], strict=True))
    for column, part in (("served", "measured"), ("simulated", "simulated")):
        frame[column] = [real[key][part]["goodput"] if key in real else None for key in keys]  # type: ignore[literal-required]
    figure, (axes,) = panels(width=6.2, height=3.4)
    groups = dict(list(frame.groupby(["candidate", "gamma"], sort=False)))
    alone, *drafts = groups
    drafts = sorted(drafts, key=lambda key: -float(groups[key]["goodput"].max()))[:MOST_LINES]
    shown = [alone, *(key for key in groups if key in drafts)]
    top = 1.12 * float(frame[["goodput", "served"]].max().max())
    ends = spread([float(groups[key]["goodput"].iloc[-1]) for key in shown], top * 0.065)
    lift = max(0.0, top * 0.03 - min(ends))  # labels near 0 would overlap the axis labels
    last = float(frame["load"].max())
    for place, (key, end) in enumerate(zip(shown, ends, strict=True)):
        group, colour = groups[key], INK if key == alone else SERIES[(place - 1) % len(SERIES)]
        style = DASHES[0] if key == alone else DASHES[(place - 1) // len(SERIES) % len(DASHES)]
        axes.plot(
            group["load"], group["goodput"], color=colour, linestyle=style, linewidth=2.2 if key == alone else 1.4
        )
        known = group.dropna(subset=["served"])
        axes.plot(known["load"], known["served"], "o", color=colour, markerfacecolor=PAPER, markersize=5, zorder=4)
        axes.plot(known["load"], known["simulated"], "x", color=colour, markersize=4, zorder=4)
        label = "target alone" if key == alone else f"{key[0]}, γ={key[1]}"
        at_end(axes, last, end + lift, label, colour, dx=8)
    crossing = where_drafts_stop(record)
    if crossing is not None:
        axes.axvline(crossing, color=FAINT, linewidth=0.8, linestyle=(0, (2, 2)))
        axes.annotate(
            f"no draft above {crossing:.2f}", (crossing, top), xytext=(4, -8), textcoords="offset points", color=FAINT,
            fontsize=9,
        )  # fmt: skip
    axes.set(xlabel="load", ylabel="goodput (requests/s)", ylim=(0, top))
    promise = record["promise"]
    setting = (
        f"{record['target']} on {record['task']}, T={record['temperature']:g}. {record['hardware']}, "
        f"{record['dtype']}, at most {record['server_rows']} requests at a time"
    )
    notes = [
        setting,
        f"Goodput: requests per second with the first token within {1000 * promise['ttft_s']:.3g} ms and "
        f"{1000 * promise['tpot_s']:.3g} ms per token after it. Load 1: what the target alone serves with a full "
        "batch. Lines: simulated from measured costs of turns. Circles: served for real; crosses: simulated with the "
        "arrivals of these",
    ]
    if signs := record.get("disturbed_by"):
        notes.append(f"Contended: {signs}, so the costs are unreliable")
    under = f"{setting}. Lines: simulated; circles: served for real; crosses: simulated with their arrivals"
    return Drawn(name, "Goodput against load", figure, frame, notes, under)


def where_drafts_stop(record: LoadDocument) -> float | None:
    """The load from which the target alone has the highest goodput; None if a draft has it to the end."""
    gains = [(alone["load"], draft["goodput"] - (1 - TIE) * alone["goodput"]) for alone, draft in best_drafts(record)]
    if gains[-1][1] > 0:
        return None
    found = gains[-1][0]
    for (below, gain), (above, loss) in reversed(list(pairwise(gains))):
        if gain > 0:
            return below + (above - below) * gain / (gain - loss)
        found = below
    return found
