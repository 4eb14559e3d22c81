"""Real weights and real text from outside the project: skipped by name where they are not at hand."""

from pathlib import Path

import pytest

from specbench.cli import main
from specbench.records.catalog import Catalog


@pytest.mark.full
@pytest.mark.parametrize("gamma", [1, 4, 7])
def test_a_trained_pair_on_captions(shared: Path, tmp_path: Path, gamma: int) -> None:
    """Its README gives alpha .52 at T=0 on these sentences; the bounds are wide, since eight are decoded here."""
    models, rows = shared / "models", shared / "data" / "ende" / "multi30k-test2016.jsonl.gz"
    if not (models / "t5-13m").is_dir() or not rows.is_file():
        pytest.skip("needs models/t5-13m and data/ende in the shared folder")
    code = main(
        [
            "run", f"target.path={models / 't5-13m'}", f"draft.path={models / 't5-2m'}", "task=ende",
            f"task.path={rows}",
            f"gamma={gamma}", "limit=8", "dtype=float32", "threads=1", f"results={tmp_path}",
        ]
    )  # fmt: skip
    assert code == 0
    (row,) = Catalog(tmp_path).rows()
    assert row["identical"] == 1.0
    assert 0.3 < row["alpha"] < 0.75
    assert 1 < row["tokens_per_pass"] < 1 + gamma
