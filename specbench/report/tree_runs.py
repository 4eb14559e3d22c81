"""Runs of trees, and of chains of the same pairs beside them, for the table and the figure `trees`."""

import pandas as pd

from specbench.config.tree import AUTO
from specbench.records.choice import choose
from specbench.records.frame import PAIR, Records, measured, one_sample
from specbench.records.schema import Row
from specbench.report.measured import tokens_per_pass
from specbench.report.paper import experiment

CHAIN = "chain"
SAME = [*PAIR, "hardware", "dtype"]  # chains that trees are compared with
KEPT = [
    *SAME, "engine", "simulated", "lossless", "accept", "alpha", "tokens_per_pass", "tokens_per_pass_predicted",
    "prediction", "c", "verify_cost", "overhead", "speedup_calibrated", "speedup_measured", "speedup_low",
    "speedup_high", "prompts", "created", "unproved", "too_small", "run_id",
]  # fmt: skip


def tree_runs(records: Records) -> pd.DataFrame:
    """One row a run, with `shape`, `size` (the sequence's last token included) and the interval of its tokens a pass.

    The interval is `tokens_low`, `tokens_high`. Pairs without a tree are left out.
    """
    trees = measured(records.trees)
    trees = trees[trees["top_k"].isna() & trees["top_p"].isna()]
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
    """What a tree is called beside others of its kind, and the most tokens that it has the target read."""
    tree = records.catalog.head(row["run_id"]).config["tree"]
    name, size = str(tree["shape"]), tree.get("size")
    if name == "widths":
        name += f" {'×'.join(map(str, tree['widths']))}"
        level, nodes = 1, 1
        for width in tree["widths"]:
            level *= width
            nodes += level
        size = nodes if size is None else min(size, nodes)
    if size == AUTO:
        name, size = f"{name} {AUTO}", round(row["nodes_per_pass"]) + 1
    children = tree.get("children", "distinct")
    return name + ("" if children == "distinct" or name == "dynamic" else f" {children}"), int(size)
