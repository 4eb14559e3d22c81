"""All drafts and rules in one table, with the loss of lossy rules; chains, token trees and published trees in another.

The first table has the rows of `experiments/beyond.yaml`, each with the command that fills it, and all other runs, at
their fastest gamma.
"""

from itertools import accumulate, product
from operator import mul
from typing import Any

import pandas as pd

from specbench.config.schema import METRICS
from specbench.config.tree import AUTO
from specbench.formatting import NONE, cells, draft_name, number, titles
from specbench.quality import quality_difference
from specbench.records.cells import SIZE_THEN_SPEED, choose, remark
from specbench.records.frame import PAIR, Records, measured, one_sample
from specbench.records.run_record import Row
from specbench.report.measured import matching, plain_sampling, tokens_per_pass
from specbench.report.paper import experiment, fill, fill_twin
from specbench.report.table import Table
from specbench.report.tables import notes
from specbench.report.tables.shorter import MOST_OTHERS, of_left_out, of_rows, shorter
from specbench.report.views import BEYOND, DIFFERENCE, TREES, keys

ENTRY = [*PAIR, "accept", "policy"]  # a draft under a rule with a gamma policy
PLACE = ["hardware", "dtype"]  # engines differ from draft to draft


def entry_name(row: Row) -> str:
    """'t5-nano, block', 't5-nano, heuristic γ', 'eagle, dynamic 16'."""
    rule = "" if row["accept"] == "exact" else row["accept"]
    policy = row["policy"] and (f"γ={row['policy']}" if row["policy"][0].isdigit() else f"{row['policy']} γ")
    tree = row["tree"] if isinstance(row.get("tree"), str) else ""
    return ", ".join(filter(None, [draft_name(row["draft"]), rule, policy, tree]))


def comparable(records: Records) -> pd.DataFrame:
    """All measured records of chains, one prompt at a time, without top-k and top-p.

    `policy` is the gamma policy; empty for a number.
    """
    # Copied: `astype` leaves every column apart, so that adding one is slow, and pandas warns.
    frame = plain_sampling(measured(records.chains)).astype({"accept": str, "gamma_said": str}).copy()
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


GROUP = ["target", "task", "temperature"]
TAKEN = keys(
    BEYOND, "alpha", "alpha_low", "alpha_high", "alpha_rule", "alpha_rule_low", "alpha_rule_high", "c", "verify_cost",
    "tokens_per_pass", "speedup_measured", "speedup_low", "speedup_high", "lossless", "lossy", "total_variation",
    "quality_metric", "quality_baseline", "quality_speculative", *DIFFERENCE, "identical", "prompts",
    "hardware", "run_id", "fitting", "chosen_for", "passes_run",
)  # fmt: skip
TITLE = "Beyond the paper. Every draft and every rule"


def beyond(records: Records, most: int | None = MOST_OTHERS) -> Table:
    """Table of every draft and rule beyond the paper."""
    frame = comparable(records)
    plan = planned()
    entries = {tuple(row[key] for key in ENTRY) for row in plan}
    own = [tuple(row) not in entries for row in frame[ENTRY].itertuples(index=False)]
    rows = [cell for row in plan for cell in _filled(row, frame)]
    rows += [_ours(record) for _, record in fastest(frame[pd.Series(own, index=frame.index, dtype=bool)]).iterrows()]
    groups = list(dict.fromkeys(_group(row) for row in rows))
    rows.sort(key=lambda row: groups.index(_group(row)))  # stable: within a group the plan's own order
    rows = [_with_difference(row, records) for row in rows]
    values = pd.DataFrame(rows).reindex(columns=[*ENTRY, "gamma_said", "state", *TAKEN, "unproved", "command"])
    shown = shorter(rows, records, most)
    used = of_rows(frame, shown)
    under = [
        "α: mean of β (Corollary 3.6); under the rule: the acceptance probability under match, onehot or a lossy rule, "
        "along the target's completions. v: verification cost. measured: decoding time per token, target alone over "
        "speculative. [95% interval over prompts]",
        *notes.of_passes(used),
        "lossy: completions do not have the target's distribution; TV is the mean total variation per token, along the "
        "target's completions. quality: score of the run's completions and its paired difference from the target's; "
        "no difference is given between two samples of one distribution (lossless, T > 0). identical: share of "
        "completions equal to the target's, at T=0.",
        *of_left_out("beyond", rows, shown),
        *notes.of_alpha(used),
        *notes.of_choice(values, records),
        *notes.of_records(used),
        *notes.of_loops(used, records),
        *notes.of_precision(used),
        *(_filling() if (values["state"] == "no record").any() else []),
        *notes.silent("beyond"),
    ]
    return Table("beyond", TITLE, pd.DataFrame([_show(row) for row in shown]), values, under)


def _group(row: Row) -> tuple[object, ...]:
    return tuple(row[key] for key in GROUP)


def _filled(row: Row, frame: pd.DataFrame) -> list[Row]:
    """The records of a planned row: for each machine the newest of those over the most prompts."""
    found = choose(matching(frame, row, (*ENTRY, "gamma_said")), PLACE)
    return [_ours(record) for _, record in found.iterrows()] or [row | {"state": "no record"}]


def _ours(record: "pd.Series[Any]") -> Row:
    wrong = not record["lossless"] and not record["lossy"]
    return {
        **{key: record[key] for key in (*ENTRY, "gamma_said")},
        "state": "not lossless" if wrong else "lossy" if record["lossy"] else "lossless",
        **{key: record.get(key) for key in TAKEN},
        "unproved": bool(record["unproved"]),
    }


def _filling() -> list[str]:
    plan = experiment("beyond")
    commands = "; ".join(f"`{command}`" for command in plan["own"])
    return [
        f"no record: the command in the row fills it, `make beyond` all of them; `{fill('beyond')}` "
        f"runs T5-XXL; for your own models: {commands}"
    ]


def _show(row: Row) -> Row:
    named = {
        "M_p": row["target"], "task": row["task"], "T": f"{row['temperature']:g}", "M_q": draft_name(row["draft"]),
        "rule": row["accept"], "γ": row["gamma_said"],
    }  # fmt: skip
    if row["state"] == "no record":
        empty = dict.fromkeys(titles(BEYOND), NONE) | dict.fromkeys(("α", "measured"), "no record")
        return named | empty | {"record": f"none: `{row['command']}`"}
    chosen = remark(row["fitting"], row["chosen_for"])
    return named | cells(BEYOND, row) | {"record": notes.record(row["run_id"], remark=chosen)}


def _with_difference(row: Row, records: Records) -> Row:
    """The paired difference of scores, computed from the completions of records of older versions, which lack it."""
    low = row.get("quality_difference_low")
    if row["state"] == "no record" or not pd.isna(low) or row["quality_metric"] not in METRICS:
        return row
    record = records.whole(row["run_id"])
    if "shown" in record:  # a kept record, which has not all completions
        return row
    prompts = record["prompts"]
    ours, alone = ([prompt[way].text for prompt in prompts] for way in ("speculative", "baseline"))
    less = quality_difference(row["quality_metric"], ours, alone, [prompt["reference"] or "" for prompt in prompts])
    return row | dict(zip(DIFFERENCE, (less.value, less.low, less.high), strict=True))


CHAIN = "chain"
SAME = [*PAIR, "hardware", "dtype"]  # chains that trees are compared with
KEPT = keys(
    TREES, *SAME, "engine", "simulated", "lossless", "accept", "alpha", "tokens_per_pass", "tokens_per_pass_predicted",
    "prediction", "c", "verify_cost", "overhead", "speedup_calibrated", "speedup_measured", "speedup_low",
    "speedup_high", "prompts", "created", "unproved", "too_small", "passes_run", "run_id",
)  # fmt: skip


def tree_runs(records: Records) -> pd.DataFrame:
    """One row a run, with `shape`, `size` (the sequence's last token included) and the interval of its tokens per pass.

    The interval is `tokens_low`, `tokens_high`. Pairs without a tree are left out.
    """
    trees = plain_sampling(measured(records.trees))
    if trees.empty:
        return pd.DataFrame(columns=[*KEPT, "shape", "size", "tokens_low", "tokens_high"])
    trees = choose(trees.assign(label=trees["tree"]), [*SAME, "accept", "label"])
    pairs = set(trees[SAME].itertuples(index=False, name=None))
    chains = measured(records.chains)
    chains = one_sample(chains[chains["gamma"].notna() & (chains["accept"] == "exact")])
    chains = chains[[pair in pairs for pair in chains[SAME].itertuples(index=False, name=None)]]
    rows = [_row(records, one) for one in [*chains.to_dict("records"), *trees.to_dict("records")]]
    return pd.DataFrame(rows).sort_values([*SAME, "size"], kind="stable").reset_index(drop=True)


def published() -> list[Row]:
    """Figures of others: a row a method and temperature."""
    return [
        {key: one[key] for key in ("method", "source", "target", "task", "device")}
        | {"temperature": temperature, "tokens_per_pass": tokens, "speedup": speedup}
        for one in experiment("trees")["published"]
        for temperature, tokens, speedup in one["rows"]
    ]


def _row(records: Records, row: Row) -> Row:
    tokens = tokens_per_pass(records.whole(row["run_id"]))
    shape, size = (CHAIN, int(row["gamma"]) + 1) if pd.isna(row["tree"]) else _shape(records, row)
    return {key: row.get(key) for key in KEPT} | {
        "shape": shape, "size": size, "tokens_low": tokens.low, "tokens_high": tokens.high,
    }  # fmt: skip


def _shape(records: Records, row: Row) -> tuple[str, int]:
    """A tree's name among others of its kind, and the maximum number of tokens that the target reads for it."""
    tree = records.catalog.head(row["run_id"]).config["tree"]
    name, size = str(tree["shape"]), tree.get("size")
    if name == "widths":
        name += f" {'×'.join(map(str, tree['widths']))}"
        nodes = 1 + sum(accumulate(tree["widths"], mul))
        size = nodes if size is None else min(size, nodes)
    if size == AUTO:
        name, size = f"{name} {AUTO}", round(row["nodes_per_pass"]) + 1
    children = tree.get("children", "distinct")
    return name + ("" if children == "distinct" or name == "dynamic" else f" {children}"), int(size)


TREES_TITLE = "Token trees. Tokens a pass and speed of chains and trees"
PUBLISHED = "published"
COLUMNS = ["M_p", "M_q", "task", "T", "shape", "n", *titles(TREES), "record"]


def trees(records: Records, most: int | None = MOST_OTHERS) -> Table:
    """Table of chains and trees: tokens per pass and speedups."""
    runs = tree_runs(records)
    all_rows = runs.to_dict("records")
    listed = shorter(all_rows, records, most)
    rows = [_our_tree(row) for row in listed] or [_none()]
    values = pd.concat([runs.assign(whose="ours"), pd.DataFrame(published()).assign(whose=PUBLISHED)])
    under = [
        "n: tokens that the target reads in a pass, the last accepted token included; a chain of size n drafts γ = "
        "n − 1. predicted: for a tree by teacher forcing along the target's completions, ends included; for a chain "
        "by Eq. 1. v: cost of verifying n tokens, in target steps. calibrated: predicted tokens over the cost of "
        "the passes (a chain by position, as of lookup and heads: in-sample, since its acceptance is of the same "
        "passes). measured: decoding time per token, target alone over speculative. [95% interval "
        "over prompts]",
        "published: numbers from the cited papers, not measured here; –: not given there",
        *of_left_out("trees", all_rows, listed),
        *notes.of_passes(of_rows(runs, listed)),
        *notes.of_records(of_rows(runs, listed)),
        *notes.of_loops(of_rows(runs, listed), records),
        *([f"no record: `{fill('trees')}`, or `{fill_twin('trees')}` on the models that ship"] if runs.empty else []),
        *notes.silent("trees"),
    ]
    shown = pd.DataFrame([*rows, *map(_published_row, published())]).reindex(columns=COLUMNS).fillna(NONE)
    return Table("trees", TREES_TITLE, shown, values.reset_index(drop=True), under)


def _our_tree(row: Row) -> Row:
    rule = "" if row["accept"] == "exact" else f", {row['accept']}"
    return {
        "M_p": row["target"], "M_q": draft_name(row["draft"]), "task": row["task"], "T": f"{row['temperature']:g}",
        "shape": row["shape"] + rule, "n": str(row["size"]), **cells(TREES, row), "record": notes.record(row["run_id"]),
    }  # fmt: skip


def _none() -> Row:
    return {"M_p": NONE, "shape": "no record", "record": f"none: `{fill_twin('trees')}`"}


def _published_row(row: Row) -> Row:
    place = [one for one in (row["task"], row["device"]) if one != NONE]
    return {
        "M_p": row["target"], "task": ", ".join(place) or NONE, "T": f"{row['temperature']:g}", "shape": row["method"],
        "tokens/pass": number(row["tokens_per_pass"]), "measured": number(row["speedup"]),
        "record": f"{PUBLISHED}: {row['source']}",
    }  # fmt: skip
