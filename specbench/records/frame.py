"""The records of a results folder as data frames, and whole records on request."""

import gzip
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.border import Unreadable
from specbench.config.draft_labels import beyond_the_paper, falls_with_position
from specbench.config.model import own_weights
from specbench.environment import CHANGES
from specbench.files import with_floats, write_atomically
from specbench.records import store
from specbench.records.catalog import Catalog, kept_folder
from specbench.records.documents import KeptAlphaDocument, read_document, write_document
from specbench.records.marks import is_unproved, passes_run, prompts_for_proof
from specbench.records.schema import Config, Row, RunRecord
from specbench.records.store import Head, config_digest

PAIR = ["target", "draft", "task", "temperature"]
MACHINE = ["hardware", "dtype", "engine", "simulated"]
CONFIG = ["config", *MACHINE]  # records that agree in these measure the same; one stands for them (`_newest`)
EXPECTED = [
    *PAIR, "top_k", "top_p", "gamma", "accept", "prompts", *MACHINE, "run_id", "config", "setting", "own_weights",
    "tokens", "alpha", "alpha_low", "alpha_high", "c", "verify_cost", "overhead", "c_hat",
    "tokens_per_pass", "prediction", "speedup_predicted", "speedup_calibrated",
    "speedup_measured", "speedup_low", "speedup_high",
    "speedup_end_to_end", "speedup_end_to_end_low", "speedup_end_to_end_high", "lossless", "lossy", "identical",
    "proof_z", "proof_tokens", "proof_power", "disturbed", "created", "batch",
    "tree", "tokens_per_pass_predicted", "vocabulary", "learnt_positions", "falls", "processing", "context",
    "passes_run", "runs",
]  # fmt: skip


class Records:
    """All usable records as tables, a row each.

    `paper_runs` is Algorithm 1 at fixed gammas with models, unigrams and bigrams, one prompt at a time, as in the
    paper; `beyond` has records of other gamma policies, acceptance rules and drafts. Token trees are only in `trees`,
    batches only in `batches`, drafts that learn between prompts only in `learning`, and runs with processed logits
    (penalties and the like) or with a `context` only in `processed`, so that no table mixes them with chains of single
    prompts. All are empty without records. The column `config` is a digest of every key of the run, `setting` of all
    but gamma; `unproved` says that nothing proves a record's completions (`too_small`: because its proof has too little
    power), `falls` that the draft's acceptance falls with the position, so that alpha, that of a proposal's first
    token, predicts no speed.

    Of the records of one config on one machine that of the most processes (`runs`) stands for all, and of these the
    newest. Left out are also records of fewer than `fewest_prompts` prompts (`left_out`), and of disturbed runs
    (`disturbed`).
    """

    def __init__(self, results: str | Path, fewest_prompts: int = 1) -> None:
        self.results = Path(results)
        self.fewest_prompts = fewest_prompts
        self.catalog = Catalog(results, undisturbed=True)
        self._all = _columns(pd.DataFrame([_row(head) for head in self.catalog.heads]))
        disturbed = self._all["disturbed"].astype(bool)
        self.disturbed = list(self._all[disturbed]["run_id"])
        newest = _newest(self._all[~disturbed])
        small = newest["prompts"] < fewest_prompts
        self.left_out = list(newest[small]["run_id"])
        large = newest[~small]
        own_way = large["processing"].notna() | large["context"].notna()
        self.processed = large[own_way].reset_index(drop=True)
        large = large[~own_way]
        own_draft = large["draft"].map(lambda name: beyond_the_paper(str(name))).astype(bool)
        own_draft |= large["vocabulary"].notna()  # nor does it have drafts of another vocabulary
        learns = large["learnt_positions"].notna()
        alone = (large["batch"] == 1) & ~learns
        as_paper = large["gamma"].notna() & (large["accept"] == "exact") & ~own_draft
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
        """`chains`, `trees`, `batches`, `learning` and `processed`: for lists of records, where nothing is compared."""
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
    """The records of one setting for each pair and machine, which differ in gamma alone.

    The setting with the most gammas; of equals the most prompts, then the newest.
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
    # In how many processes it was measured is no part of what was measured.
    digests = {"config": config_digest(head.config, "runs"), "setting": config_digest(head.config, "gamma", "runs")}
    # A record without a config stands for no other.
    passes = passes_run(head.row, head.config)
    runs = head.config.get("runs", 1)
    own = {"own_weights": own_weights(head.config), "falls": _falls(head), "passes_run": passes, "runs": runs}
    return head.row | own | (digests if head.config else dict.fromkeys(digests, head.run_id))


def _falls(head: Head) -> bool:
    """Whether one alpha does not describe the draft; a simulated alpha is that of every position."""
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
    for column in ("simulated", "lossy", "disturbed", "falls"):
        frame[column] = pd.Series([value is True for value in frame[column]], index=frame.index, dtype=bool)
    frame["batch"] = pd.to_numeric(frame["batch"], errors="coerce").fillna(1).astype(int)  # older: one at a time
    frame["accept"] = frame["accept"].fillna("exact")  # records older than the other rules
    ends = [column for column in frame if str(column).endswith(("_low", "_high"))]  # None where there is no interval
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
    """Of each config and machine the record of the most processes, and of these the newest."""
    frame = frame.sort_values(["runs", "created"], kind="stable").drop_duplicates(CONFIG, keep="last")
    frame["where"] = _where(frame)
    return frame.sort_values([*PAIR, "gamma", "prompts", "created"], kind="stable").reset_index(drop=True)


REASONS = {
    "prompts": "most prompts",
    "tokens": "most tokens",
    "speedup_measured": "fastest",
    "created": "newest",
}
SIZE_THEN_DATE = ("prompts", "created")
SIZE_THEN_SPEED = ("prompts", "speedup_measured", "created")  # where the cell leaves gamma open
EARLIER = ("fitting", "chosen_for")  # the columns that an earlier choice added


def choose(frame: pd.DataFrame, cell: Sequence[str], by: Sequence[str] = SIZE_THEN_DATE) -> pd.DataFrame:
    """One record for each combination of the columns `cell`, in the order of `frame`: the highest by the columns `by`.

    Adds `fitting`, how many records fit the cell, and `chosen_for`, the column that decided; empty for a single record.
    If `frame` was chosen from more, the records that were dropped then are counted too.
    """
    numbers = frame.groupby(list(cell), dropna=False, sort=False).ngroup().tolist() if len(frame) else []
    groups: dict[int, list[int]] = {}
    for place, group in enumerate(numbers):
        groups.setdefault(group, []).append(place)
    # Only these columns are looked at: a frame may have hundreds, and taking rows of all of them is slow.
    values = {name: frame[name].tolist() for name in (*by, *EARLIER) if name in frame}
    found: dict[int, tuple[int, str]] = {}  # place -> how many fit, and why it was chosen
    for places in groups.values():
        place, reason = _first(places, {name: values[name] for name in by})
        fitting = sum(values["fitting"][one] for one in places) if "fitting" in values else len(places)
        found[place] = fitting, reason or (values["chosen_for"][place] if "chosen_for" in values else "")
    chosen = frame.iloc[list(found)]
    return chosen.assign(
        fitting=pd.Series([fitting for fitting, _ in found.values()], index=chosen.index, dtype=int),
        chosen_for=pd.Series([reason for _, reason in found.values()], index=chosen.index, dtype=str),
    ).sort_index()


def remark(fitting: object, chosen_for: object) -> str:
    """'most prompts of 3' for a cell that several records fit; otherwise ''."""
    return f"{chosen_for} of {fitting:.0f}" if isinstance(fitting, int | float) and fitting > 1 else ""


def _first(places: list[int], values: Mapping[str, list[Any]]) -> tuple[int, str]:
    """The first of `places` by the columns `values`, and the last column that mattered."""
    left, reason = places, ""
    for column, cells in values.items():
        known = [cells[place] for place in left if not pd.isna(cells[place])]
        highest = max(known, default=None)
        best = [place for place in left if cells[place] == highest] if known else left
        if len(best) < len(left):
            left, reason = best, REASONS[column]
    return left[-1], reason or ("the last" if len(places) > 1 else "")


# Small copies of records, committed together with the tables and figures drawn from them.
#
# A copy is the record with times to the microsecond and a summary made from these times, without what says nothing
# about the run, compressed. A record that names a folder of this machine is not copied, since nobody else could
# repeat it; of a relative path the copy has the name alone.


LOCAL = "local"  # in the results folder: what is drawn from records that were not kept
DIRTY = "it comes from code with uncommitted changes; commit them and run it again, or give --dirty"
PLACES = ("path", "train_path", "corpus", "cache_dir")  # keys of a config that name files and folders
LEFT_OUT = ("platform",)  # of the environment: the kernel's build says more of the host than of the run


def keep(
    records: Records,
    say: Callable[[str], None],
    resummarised: Callable[[RunRecord], RunRecord] | None = None,
    dirty: bool = False,
) -> list[Path]:
    """Copy every record of `records`; returns the copies.

    A copy is removed if a newer record of the same config on the same machine replaces it.

    Args:
        records: all of a folder.
        say: gets a line for each record that is not copied, and for each copy that is removed.
        resummarised: makes the summary of a record anew from its raw prompts, so that a copy agrees with its rounded
            times (`analysis.summary.resummarised`); None: summaries remain as the run made them.
        dirty: copy records of code with uncommitted changes too, which nobody else can have. A copy that is there
            already stays.
    """
    folder = kept_folder(records.results)
    files = []
    for run_id in records.disturbed:
        say(f"{run_id}: not kept, the machine was shared or held back while it was timed")
    for run_id in sorted(records.all_runs["run_id"]):
        record = records.whole(run_id)
        if local := _local_paths(record["config"]):
            say(f"{run_id}: not kept, it names {local[0]} of this machine")
            continue
        file = folder / f"{store.require_file_name(run_id)}.json.gz"
        is_copy = records.catalog.head(run_id).file == file
        if not is_copy and not dirty and is_dirty(record["environment"]):
            say(f"{run_id}: not kept, {DIRTY}")
            continue
        files.append(file)
        if not is_copy:
            whole = rounded(record)
            write_atomically(file, compact(resummarised(whole) if resummarised else whole))
        for old in records.replaced(run_id):
            if (copy := folder / f"{old}.json.gz").is_file():
                say(f"{old}: copy removed, {run_id} is newer and of the same config")
                copy.unlink()
    return files + _keep_alphas(records.results, folder / "alpha", say, dirty)


def drawing_folder(records: Records, folder: Path, say: Callable[[str], None]) -> Path:
    """`folder`, or `local/` if drawing these records there would replace a drawing of the kept records.

    The folders beside `kept/` are committed with it. A record without a copy in there is drawn into `local/` instead.
    """
    committed = kept_folder(records.results).is_dir() and folder.resolve().parent == records.results.resolve()
    used = {*records.all_runs["run_id"], *records.disturbed}  # a drawing names disturbed records under it
    new = [run_id for run_id in records.catalog.unkept if run_id in used]
    if not committed or not new:
        return folder
    elsewhere = records.results / LOCAL / folder.name
    some = ", ".join(new[:3]) + (" ..." if len(new) > 3 else "")
    say(
        f"{len(new)} records are not in {kept_folder(records.results)} ({some}), so {folder} is left as it is and "
        f"{elsewhere} is written; 'specbench report --keep' copies them, and then {folder} is drawn again"
    )
    return elsewhere


def is_dirty(environment: Mapping[str, object]) -> bool:
    """Whether a record was made by code that differed from its commit."""
    return str(environment.get("commit") or "").endswith(CHANGES)


def _keep_alphas(results: Path, folder: Path, say: Callable[[str], None], dirty: bool) -> list[Path]:
    """The tables of `specbench alpha`, without the scores of every token."""
    files = []
    for file in sorted((results / "alpha").glob("*.json")):
        try:
            record = read_document(file, KeptAlphaDocument)
        except Unreadable as error:
            say(f"{file}: not kept, it is not a record of specbench alpha ({error})")
            continue
        if local := [path for config in record.get("configs", ()) for path in _local_paths(config)]:
            say(f"{record['alpha_id']}: not kept, it names {local[0]} of this machine")
            continue
        if not dirty and is_dirty(record.get("environment", {})) and not (folder / file.name).is_file():
            say(f"{record['alpha_id']}: not kept, {DIRTY}")
            continue
        copy = {key: record[key] for key in ("alpha_id", "rows")}
        files.append(write_document(folder / file.name, copy, indent=1))
    return files


def rounded(record: RunRecord) -> RunRecord:
    """A record whose raw prompts have times to the microsecond."""
    return {**record, "prompts": with_floats(record["prompts"], _shortened)}


def compact(record: RunRecord) -> bytes:
    """The copy's bytes, the same for the same record. Its first line is the head, as in `runs/`."""
    copy = {**record, "config": {**_with_names(record["config"]), "results": "results"}}
    body = {key: with_floats(value, _shortened) for key, value in record.items() if key not in store.HEAD}
    body["environment"] = {k: v for k, v in record["environment"].items() if k not in LEFT_OUT}
    text = f"{store.head_line(copy)},\n{json.dumps(body, ensure_ascii=False, separators=(',', ':'))[1:]}\n"
    return gzip.compress(text.encode(), mtime=0)


def _shortened(value: float) -> float:
    """To the microsecond; of less than a millisecond, as drafting without a model takes, four digits."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, min(9, max(6, 3 - math.floor(math.log10(abs(value))))))


def _with_names(config: Config) -> dict[str, Any]:
    """`config` with the names of files and folders in place of their paths, which say how a disk is laid out."""
    return {key: _named(key, value) for key, value in config.items()}


def _named(key: str, value: object) -> object:
    if isinstance(value, dict):
        return _with_names(value)
    if isinstance(value, list):
        return [_named(key, one) for one in value]
    return Path(value).name if key in PLACES and isinstance(value, str) else value


def _local_paths(config: Config) -> list[str]:
    """Folders and files of this machine that a run was given, for its target, its task, and each draft of a cascade."""
    found = []
    for key, value in config.items():
        if isinstance(value, dict):
            found += _local_paths(value)
        elif key in PLACES and isinstance(value, str) and Path(value).is_absolute():
            found.append(value)
    return found
