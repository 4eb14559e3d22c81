"""Records that tables and figures select, and points made from raw passes, which a record's summary does not hold."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

from specbench.analysis import costs as pass_costs
from specbench.analysis.distinct import groups_of
from specbench.config.drafts import DRAFT_KINDS
from specbench.config.model import ModelConfig
from specbench.records.decoded import Pass
from specbench.records.frame import MACHINE, PAIR, Records, one_sample
from specbench.records.run_record import RunRecord
from specbench.stats import Interval, over_rows, ratio

WITHOUT_WEIGHTS = [name for name, kind in DRAFT_KINDS.items() if not issubclass(kind, ModelConfig)]


# The family of each kind of draft, in figures; a kind that is not named here is trained for one target.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "models": ("model", "pard"),
    "n-grams": ("unigram", "bigram", "ngram", "random"),
    "copies": ("lookup", "suffix", "retrieval"),
    "several drafts": ("cascade", "horizontal", "merged", "router"),
    "the target itself": ("early-exit", "layer-skip", "quantised", "window", "lookahead", "pass"),
}
TRAINED = "trained for the target"
FAMILY = {kind: family for family, kinds in FAMILIES.items() for kind in kinds}


def with_families(frame: pd.DataFrame, records: Records) -> pd.DataFrame:
    """`frame` with the column `family` of each record's draft."""
    kinds = [records.catalog.head(run_id).config.get("draft", {}).get("kind", "model") for run_id in frame["run_id"]]
    return frame.copy().assign(family=[FAMILY.get(kind, TRAINED) for kind in kinds])


def neural(frame: pd.DataFrame) -> pd.DataFrame:
    """Records of drafts that are models."""
    return frame[~frame["draft"].isin(WITHOUT_WEIGHTS)]


def plain_sampling(frame: pd.DataFrame) -> pd.DataFrame:
    """Records without top-k, top-p and other processing of logits."""
    plain = frame["top_k"].isna() & frame["top_p"].isna()
    return frame[plain & frame["processing"].isna() if "processing" in frame else plain]


def matching(frame: pd.DataFrame, row: Mapping[str, Any], keys: Iterable[str]) -> pd.DataFrame:
    """The rows of `frame` whose values under `keys` equal `row`'s."""
    same = pd.Series(True, index=frame.index)
    for key in keys:
        same &= frame[key] == row[key]
    return frame[same]


def passes_of(record: RunRecord) -> list[Pass]:
    """All passes of a record, over its prompts."""
    return [a_pass for prompt in record["prompts"] for a_pass in prompt["speculative"].passes]


def tokens_per_pass(record: RunRecord) -> Interval:
    """Emitted tokens of a target pass."""
    return _ratio(record, lambda passes: (sum(p.emitted for p in passes), len(passes)))


def operations(record: RunRecord) -> Interval:
    """Counted arithmetic operations per token, in target steps."""
    c_hat = record["summary"]["c_hat"]
    return _ratio(record, lambda passes: pass_costs.operations(passes, c_hat))


def _ratio(record: RunRecord, totals: Callable[[list[Pass]], tuple[float, float]]) -> Interval:
    columns = [totals(prompt["speculative"].passes) for prompt in record["prompts"]]
    return over_rows(columns, ratio, groups=groups_of(record["prompts"]))


def points(records: Records, gammas: set[int], alphas: tuple[float, float]) -> pd.DataFrame:
    """Measured points of neural drafts for the figures over alpha: those inside the axes, at the gammas drawn there."""
    frame = one_sample(neural(records.paper_runs))
    frame = frame[frame["gamma"].isin(gammas) & frame["alpha"].between(*alphas)]
    kept = [*PAIR, "gamma", *MACHINE, "where", "alpha", "alpha_low", "alpha_high", "c", "verify_cost"]
    kept += ["speedup_measured", "speedup_low", "speedup_high", "created", "run_id"]
    rows = []
    for _, row in frame.iterrows():
        whole = records.whole(row["run_id"])
        tokens, counted = tokens_per_pass(whole), operations(whole)
        rows.append({key: row[key] for key in kept} | {
            "tokens_per_pass": tokens.value, "tokens_low": tokens.low, "tokens_high": tokens.high,
            "operations": counted.value, "operations_low": counted.low, "operations_high": counted.high,
        })  # fmt: skip
    return pd.DataFrame(rows)


def outside(records: Records, alphas: tuple[float, float]) -> list[str]:
    """Pairs whose alpha is off the paper's axes, in words."""
    frame = records.paper_runs[~records.paper_runs["alpha"].between(*alphas)]
    best = frame.sort_values("tokens").drop_duplicates(PAIR, keep="last")
    return [
        f"{row['target']}+{row['draft']} T={row['temperature']:g} α={row['alpha']:.2f}" for _, row in best.iterrows()
    ]
