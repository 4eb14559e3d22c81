"""Two runs that differ in any key never stand for each other."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from specbench.config.model import ModelConfig
from specbench.config.schema import RunConfig, TaskConfig
from specbench.methods.cascade.config import CascadeConfig
from specbench.methods.lookup.config import LookupConfig
from specbench.methods.ngram.config import BigramConfig
from specbench.methods.retrieval.config import RetrievalConfig
from specbench.records.catalog import kept_files
from specbench.records.frame import Records
from specbench.records.keeping import keep
from specbench.records.store import config_digest, differing
from tests.support.made_records import make

CONFIG = RunConfig(
    target=ModelConfig(name="t5-mini"), draft=LookupConfig(name="lookup"),
    task=TaskConfig(name="ende-mini", reference_field="de"),
)  # fmt: skip
# Keys that two runs may differ in while all that tables show is the same.
OTHER: dict[str, dict[str, Any]] = {
    "max_new_tokens": {"max_new_tokens": 64},
    "seed": {"seed": 1},
    "draft.match": {"draft": replace(CONFIG.draft, match=5)},
    "draft.corpus": {"draft": RetrievalConfig(name="lookup", corpus="corpus.txt")},
    "draft.inner_gamma": {"draft": CascadeConfig(name="lookup", inner_gamma=5)},
    "draft.discount": {"draft": BigramConfig(name="lookup", discount=0.5)},
    "draft.inner.discount": {"draft": CascadeConfig(name="lookup", inner=BigramConfig(discount=0.5))},
    "task.path": {"task": replace(CONFIG.task, path="rows.jsonl")},
    "target.path": {"target": replace(CONFIG.target, path="models/mine")},
    "limit": {"limit": 4},
    "warmup": {"warmup": 0},
}


@pytest.mark.parametrize("key", OTHER)
def test_records_that_differ_in_one_key_both_stay(key: str, tmp_path: Path) -> None:
    other = replace(CONFIG, **OTHER[key])
    made = {make(tmp_path, config=asdict(CONFIG)), make(tmp_path, config=asdict(other), again=1)}
    assert set(Records(tmp_path).chains["run_id"]) == made
    keep(Records(tmp_path), print)
    assert {file.name for file in kept_files(tmp_path)} == {f"{run_id}.json.xz" for run_id in made}
    assert key in differing(asdict(CONFIG), asdict(other))


def test_keeping_few_records_removes_no_copy_of_another_config(tmp_path: Path) -> None:
    kept = make(tmp_path)
    small = make(tmp_path, prompts=4, seed=1)
    keep(Records(tmp_path), print)
    keep(Records(tmp_path, fewest_prompts=20), print)
    assert {file.name for file in kept_files(tmp_path)} == {f"{kept}.json.xz", f"{small}.json.xz"}


def test_a_key_at_its_default_counts_as_absent() -> None:
    old = asdict(CONFIG)
    del old["warmup"]
    old["draft"] |= {"layers": 1, "via": None, "path": None}  # keys of other kinds, which every draft had once
    assert config_digest(old) == config_digest(asdict(CONFIG))
    assert config_digest(old) != config_digest(asdict(replace(CONFIG, warmup=0)))


def test_where_a_record_goes_and_prose_are_no_part_of_a_config() -> None:
    other = replace(CONFIG, results="elsewhere", force=True, target=replace(CONFIG.target, note="trained by somebody"))
    assert config_digest(asdict(other)) == config_digest(asdict(CONFIG))


def test_keys_can_be_left_out_of_a_digest() -> None:
    assert config_digest(asdict(CONFIG), "gamma") == config_digest(asdict(replace(CONFIG, gamma=1)), "gamma")
    assert config_digest(asdict(CONFIG), "draft") == config_digest(
        asdict(replace(CONFIG, **OTHER["draft.match"])), "draft"
    )
