"""The records of a results folder as data frames, and whole records on request."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.config.draft_labels import beyond_the_paper, falls_with_position
from specbench.config.model import own_weights
from specbench.records.catalog import Catalog
from specbench.records.marks import is_unproved, prompts_for_proof
from specbench.records.passes_run import passes_run
from specbench.records.run_record import Row, RunRecord
from specbench.records.store import Head, config_digest

PAIR = ["target", "draft", "task", "temperature"]
MACHINE = ["hardware", "dtype", "engine", "simulated"]
CONFIG = ["config", *MACHINE]  # records that agree in these measure the same; one stands for them (`_newest`)
EXPECTED = [
    *PAIR, "top_k", "top_p", "gamma", "accept", "prompts", *MACHINE, "run_id", "config", "setting", "own_weights",
    "tokens", "alpha", "alpha_low", "alpha_high", "c", "verify_cost", "overhead", "target_step_s", "c_hat",
    "tokens_per_pass", "prediction", "speedup_predicted", "speedup_calibrated",
    "speedup_measured", "speedup_low", "speedup_high",
    "speedup_end_to_end", "speedup_end_to_end_low", "speedup_end_to_end_high", "lossless", "lossy", "identical",
    "proof_z", "proof_tokens", "proof_power", "disturbed", "created", "batch",
    "tree", "tokens_per_pass_predicted", "vocabulary", "learnt_positions", "falls", "processing", "context",
    "passes_run", "runs", "served",
]  # fmt: skip


class Records:
    """All usable records as tables, one row each.

    `paper_runs` is Algorithm 1 at fixed gammas with models, unigrams and bigrams, one prompt at a time, as in the
    paper; `beyond` has records of other gamma policies, acceptance rules and drafts. Token trees are only in `trees`,
    batches only in `batches`, drafts that learn between prompts only in `learning`, and runs with processed logits
    (penalties and the like) or with a `context` only in `processed`, so that no table mixes them with chains of single
    prompts. Other engines' servers are only in `served`. All are empty without records. The column `config` is a digest
    of every key of the run, `setting` of all but gamma; `unproved` says that nothing proves a record's completions
    (`too_small`: because its proof has too little power), `falls` that the draft's acceptance falls with the position,
    so that alpha, which belongs to a proposal's first token, predicts no speed.

    Among the records of one config on one machine, the one of most processes (`runs`) stands for all, and among these
    the newest. Records of fewer than `fewest_prompts` prompts (`left_out`) and of disturbed runs (`disturbed`) are left
    out.
    """

    def __init__(self, results: str | Path, fewest_prompts: int = 1) -> None:
        self.results = Path(results)
        self.fewest_prompts = fewest_prompts
        self.catalog = Catalog(results, undisturbed=True)
        # A record is disturbed, replaced by a newer one, of too few prompts, or in exactly one of the tables.
        self._all = _columns(pd.DataFrame([_row(head) for head in self.catalog.heads]))
        disturbed = self._all["disturbed"].astype(bool)
        self.disturbed = list(self._all[disturbed]["run_id"])
        newest = _newest(self._all[~disturbed])
        served = newest["served"].astype(bool)
        self.served = newest[served].reset_index(drop=True)
        newest = newest[~served]
        small = newest["prompts"] < fewest_prompts
        self.left_out = list(newest[small]["run_id"])
        large = newest[~small]
        is_processed = large["processing"].notna() | large["context"].notna()
        self.processed = large[is_processed].reset_index(drop=True)
        large = large[~is_processed]
        beyond_paper = large["draft"].map(lambda name: beyond_the_paper(str(name))).astype(bool)
        beyond_paper |= large["vocabulary"].notna()  # nor does it have drafts of another vocabulary
        learns = large["learnt_positions"].notna()
        alone = (large["batch"] == 1) & ~learns
        as_paper = large["gamma"].notna() & (large["accept"] == "exact") & ~beyond_paper
        chain = large["tree"].isna()
        self.paper_runs = large[alone & chain & as_paper].reset_index(drop=True)
        self.beyond = large[alone & chain & ~as_paper].reset_index(drop=True)
        self.trees = large[alone & ~chain].reset_index(drop=True)
        self.batches = large[(large["batch"] > 1) & ~learns].reset_index(drop=True)
        self.learning = large[learns].reset_index(drop=True)

    @property
    def chains(self) -> pd.DataFrame:
        """`paper_runs` and `beyond`: chains of single prompts."""
        return pd.concat([self.paper_runs, self.beyond], ignore_index=True)

    @property
    def all_runs(self) -> pd.DataFrame:
        """`chains`, `trees`, `batches`, `learning` and `processed`: for lists of records, which compare nothing."""
        parts = [self.chains, self.trees, self.batches, self.learning, self.processed]
        return pd.concat(parts, ignore_index=True)

    def whole(self, run_id: str) -> RunRecord:
        """All that a record holds."""
        return self.catalog.whole(run_id)

    def replaced(self, run_id: str) -> list[str]:
        """The records of the same config on the same machine that this one replaces."""
        same = self._all[[*CONFIG, "run_id"]].set_index("run_id")
        equal = (same == same.loc[run_id]) | (same.isna() & same.loc[run_id].isna())
        return [other for other in same.index[equal.all(axis=1)] if other != run_id]


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """Without simulated records, whose alpha was chosen and whose completions are meaningless."""
    return frame[~frame["simulated"].astype(bool)]


def one_sample(frame: pd.DataFrame) -> pd.DataFrame:
    """The records of one setting for each pair and machine, which differ only in gamma.

    It is the setting with the most gammas; among equals the one with the most prompts, then the newest.
    """
    taken = [frame.iloc[:0]]
    for _, group in frame.groupby([*PAIR, "top_k", "top_p", *MACHINE], dropna=False):
        settings = group.groupby("setting").agg({"gamma": "nunique", "prompts": "max", "created": "max"})
        ranked = settings.sort_values(["gamma", "prompts", "created"], kind="stable")
        same = group[group["setting"] == ranked.index[-1]].sort_values("created", kind="stable")
        taken.append(group.loc[same.drop_duplicates("gamma", keep="last").index.sort_values()])
    return pd.concat(taken)


def rule_name(row: Any) -> str:
    """The acceptance rule of a record, and that it is lossy; nothing for Algorithm 1."""
    name = "" if row["accept"] == "exact" else str(row["accept"])
    return f"{name} (lossy)" if row["lossy"] else name


def short(hardware: str) -> str:
    """Hardware in a word, for labels: 'H200', 'CPU'."""
    if "threads" in hardware:
        return "CPU"
    return hardware.removeprefix("NVIDIA ").partition(" ")[0]


def date(created: object) -> str:
    """The day of a record's time stamp."""
    return str(created)[:10]


def _row(head: Head) -> Row:
    # The number of processes is no part of the measured config.
    digests = {"config": config_digest(head.config, "runs"), "setting": config_digest(head.config, "gamma", "runs")}
    # A record without a config stands for no other.
    passes = passes_run(head.row, head.config)
    runs = head.config.get("runs", 1)
    own = {"own_weights": own_weights(head.config), "falls": _falls(head), "passes_run": passes, "runs": runs}
    own["passes_guessed"] = "passes_run" not in head.summary
    return head.row | own | (digests if head.config else dict.fromkeys(digests, head.run_id))


def _falls(head: Head) -> bool:
    """Whether one alpha does not describe the draft; a simulated alpha holds at every position."""
    by_position = head.summary.get("prediction") == "by position"
    return by_position or (not head.summary.get("simulated") and falls_with_position(str(head.summary.get("draft"))))


def _where(frame: pd.DataFrame) -> list[str]:
    """The words that tell the records' machines apart in a label; empty if all are from one machine.

    An engine is named only if one config ran on several: drafts without weights need none, so engines differ from pair
    to pair.
    """
    names: dict[str, Callable[[Any], str]] = {"hardware": short, "dtype": str, "engine": str}
    telling = [column for column in ("hardware", "dtype") if frame[column].dropna().nunique() > 1]
    if (frame.groupby([*PAIR, "gamma", "hardware", "dtype"], dropna=False)["engine"].nunique() > 1).any():
        telling.append("engine")
    rows = frame.to_dict("records")
    return [", ".join(names[column](row[column]) for column in telling if pd.notna(row[column])) for row in rows]


def _columns(frame: pd.DataFrame) -> pd.DataFrame:
    """`frame` with all columns that tables read, filled if records lack them."""
    frame = frame.reindex(columns=list(dict.fromkeys([*EXPECTED, *frame.columns])))
    for column in ("simulated", "lossy", "disturbed", "falls", "served"):
        frame[column] = pd.Series([value is True for value in frame[column]], index=frame.index, dtype=bool)
    frame["batch"] = pd.to_numeric(frame["batch"], errors="coerce").fillna(1).astype(int)  # older: one at a time
    frame["accept"] = frame["accept"].fillna("exact")  # records older than the other rules
    ends = [column for column in frame if str(column).endswith(("_low", "_high"))]  # None if there is no interval
    for column in ("gamma", *ends):
        frame[column] = pd.to_numeric(frame[column], errors="coerce")
    older = frame["prediction"].isna() & frame["gamma"].notna() & frame["speedup_predicted"].notna()
    frame["prediction"] = frame["prediction"].mask(older, "Eq. 1")  # older records: always from one α
    rows = frame.to_dict("records")
    frame["unproved"] = pd.Series(map(is_unproved, rows), index=frame.index, dtype=bool)
    frame["too_small"] = pd.Series([prompts_for_proof(row) is not None for row in rows], index=frame.index, dtype=bool)
    requested = frame["gamma_requested"] if "gamma_requested" in frame else frame["gamma"]
    pairs = zip(frame["gamma"], requested, strict=True)
    frame["gamma_said"] = [f"{gamma:g}" if pd.notna(gamma) else str(asked) for gamma, asked in pairs]
    return frame


def _newest(frame: pd.DataFrame) -> pd.DataFrame:
    """One record for each config and machine: the one of most processes, and among these the newest."""
    frame = frame.sort_values(["runs", "created"], kind="stable").drop_duplicates(CONFIG, keep="last")
    frame["where"] = _where(frame)
    return frame.sort_values([*PAIR, "gamma", "prompts", "created"], kind="stable").reset_index(drop=True)
