"""The records of a results folder as one frame, and the whole of those that are asked for.

Two places are read: `runs/`, what this machine measured, and `kept/`, compressed copies that are committed with the
tables and figures made from them.
"""

import gzip
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.config.kinds import beyond_the_paper
from specbench.errors import UserError
from specbench.records import store

# Records that agree in these measure the same thing on the same machine; only the best of them is shown.
PAIR = ["target", "draft", "task", "temperature"]
MACHINE = ["hardware", "dtype", "engine", "simulated"]
SAME = [*PAIR, "top_k", "top_p", "gamma", "accept", "prompts", *MACHINE]
METRICS = {"bleu": "BLEU", "rouge": "ROUGE-L"}  # what tables call a score
EXPECTED = [
    *SAME, "run_id", "prompts", "tokens", "alpha", "alpha_low", "alpha_high", "c", "verify_cost", "overhead", "c_hat",
    "tokens_per_pass", "prediction", "speedup_predicted", "speedup_calibrated",
    "speedup_measured", "speedup_low", "speedup_high",
    "speedup_end_to_end", "speedup_end_to_end_low", "speedup_end_to_end_high", "lossless", "lossy", "created",
]  # fmt: skip


class Records:
    """`frame` has one row a record (its summary), without those that a newer one of the same config replaces.
    It is Algorithm 1 at fixed gammas with models, unigrams and bigrams, as in the paper; `beyond` has the others: those
    whose gamma changes from pass to pass, those of another acceptance rule, those of other drafts. Both are empty where
    there is no record."""

    def __init__(self, results: str | Path) -> None:
        self.results = Path(results)
        self._files: dict[str, Path] = {}
        self._whole: dict[str, dict[str, Any]] = {}
        best = _best(pd.DataFrame(self._rows()))
        own_draft = best["draft"].map(lambda name: beyond_the_paper(str(name))).astype(bool)
        as_paper = best["gamma"].notna() & (best["accept"] == "exact") & ~own_draft
        self.frame = best[as_paper].reset_index(drop=True)
        self.beyond = best[~as_paper].reset_index(drop=True)

    @property
    def every(self) -> pd.DataFrame:
        """`frame` and `beyond`."""
        return pd.concat([self.frame, self.beyond], ignore_index=True)

    def whole(self, run_id: str) -> dict[str, Any]:
        """All that a record holds."""
        if run_id not in self._whole:
            self._whole[run_id] = json.loads(_text(self._files[run_id]))
        return self._whole[run_id]

    def find(self, name: str) -> str:
        """The run id that `name` means: an id, its digest, or any part of it that only one record has."""
        if name in self._files:
            return name
        found = [run_id for run_id in self._files if name in run_id]
        if len(found) == 1:
            return found[0]
        if found:
            some = ", ".join(found[:3]) + (" ..." if len(found) > 3 else "")
            raise UserError(f"{name}: {len(found)} records have this in their name ({some}); give more of it")
        raise UserError(f"{name}: no record of that name in {self.results}; 'specbench results' lists them")

    def _rows(self) -> list[dict[str, Any]]:
        rows = {}
        for file in [
            *sorted(kept_folder(self.results).glob("*.json.gz")),
            *sorted(store.runs_folder(self.results).glob("*.json")),
        ]:
            try:
                row = _summary(file)
            except (ValueError, KeyError, OSError, EOFError) as error:
                warnings.warn(f"{file}: skipped, it is no record ({error})", stacklevel=2)
                continue
            if store.FAILED in row:
                continue  # says why a run failed, and holds no number
            self._files[row["run_id"]] = file
            rows[row["run_id"]] = row
        return list(rows.values())


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """Without simulated records, whose alpha was chosen and whose texts mean nothing."""
    return frame[~frame["simulated"].astype(bool)]


def one_sample(frame: pd.DataFrame) -> pd.DataFrame:
    """Of each pair and machine the records over one number of prompts: that with the most gammas, for gammas are to be
    compared over the same prompts."""
    taken = [frame.iloc[:0]]
    for _, group in frame.groupby([*PAIR, "top_k", "top_p", *MACHINE], dropna=False):
        gammas = group.groupby("prompts")["gamma"].nunique()
        most = gammas[gammas == gammas.max()].index.max()
        taken.append(group[group["prompts"] == most])
    return pd.concat(taken)


def kept_folder(results: str | Path) -> Path:
    """Where compressed records lie that are committed."""
    return Path(results) / "kept"


def digest(run_id: str) -> str:
    """The last part of a run id, which tells records apart in a narrow column."""
    return run_id.rpartition("-")[2]


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


def _text(file: Path) -> str:
    if file.suffix == ".gz":
        with gzip.open(file, "rt", encoding="utf-8") as opened:
            return opened.read()
    return file.read_text(encoding="utf-8")


def _summary(file: Path) -> dict[str, Any]:
    if file.suffix != ".gz":
        return store.read_summary(file)
    with gzip.open(file, "rt", encoding="utf-8") as opened:
        head = opened.readline()
    record = json.loads(head.rstrip().removesuffix(",") + "}")
    return {"run_id": record["run_id"], **record["summary"]}


def _where(frame: pd.DataFrame) -> list[str]:
    """What tells the records' machines apart in a label; nothing where all are from one. An engine is named only where
    one config ran on several: drafts without weights need none, so engines differ from pair to pair."""
    names: dict[str, Callable[[Any], str]] = {"hardware": short, "dtype": str, "engine": str}
    telling = [column for column in ("hardware", "dtype") if frame[column].dropna().nunique() > 1]
    if (frame.groupby([*PAIR, "gamma", "hardware", "dtype"], dropna=False)["engine"].nunique() > 1).any():
        telling.append("engine")
    rows = frame.to_dict("records")
    return [", ".join(names[column](row[column]) for column in telling if pd.notna(row[column])) for row in rows]


def _best(frame: pd.DataFrame) -> pd.DataFrame:
    """Of each config the newest record."""
    frame = frame.reindex(columns=list(dict.fromkeys([*EXPECTED, *frame.columns])))
    for column in ("simulated", "lossy"):
        frame[column] = [said is True for said in frame[column]]
    frame["accept"] = frame["accept"].fillna("exact")  # records older than the other rules
    frame["gamma"] = pd.to_numeric(frame["gamma"], errors="coerce")
    frame["prediction"] = frame["prediction"].fillna("Eq. 1").where(frame["gamma"].notna())  # older: always from one α
    requested = frame["gamma_requested"] if "gamma_requested" in frame else frame["gamma"]
    pairs = zip(frame["gamma"], requested, strict=True)
    frame["gamma_said"] = [f"{gamma:g}" if pd.notna(gamma) else str(asked) for gamma, asked in pairs]
    frame["where"] = _where(frame)
    frame = frame.sort_values("created", kind="stable").drop_duplicates([*SAME, "gamma_said"], keep="last")
    return frame.sort_values([*PAIR, "gamma", "prompts"], kind="stable").reset_index(drop=True)
