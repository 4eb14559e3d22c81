"""A run's id: the same if and only if the resolved config and the files that the run reads are the same."""

import shutil
from pathlib import Path

import pytest

from specbench.config.draft import DraftConfig
from specbench.config.model import ModelConfig
from specbench.config.schema import RunConfig, TaskConfig
from specbench.experiment.identity import identify
from specbench.methods.lookup.config import LookupConfig
from specbench.methods.several.config import HorizontalConfig
from specbench.methods.target_layers.config import EarlyExitConfig, LayerSkipConfig


def test_a_model_card_is_not_part_of_a_run_and_weights_are(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders["t5"], folder)

    def run_id() -> str:
        return identify(RunConfig(target=ModelConfig(path=str(folder)), dtype="float32"))

    before = run_id()
    for name in ("README.md", "recipe.yaml"):
        (folder / name).write_text("What this model is for.")
    assert run_id() == before
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    assert run_id() != before


def test_every_file_of_a_folder_of_rows_is_part_of_a_run(tmp_path: Path) -> None:
    """Also a file that would describe a model: its lines are prompts."""

    def run_id() -> str:
        return identify(RunConfig(task=TaskConfig(name="prompts", path=str(tmp_path))))

    (tmp_path / "rows.txt").write_text("A prompt.")
    before = run_id()
    (tmp_path / "README.md").write_text("Another prompt.")
    assert run_id() != before


# Ids of kept records, whose digests are made with a key that these drafts lost.
HELD: dict[str, DraftConfig] = {
    "e4c95bce": EarlyExitConfig(name="early-exit", layers=2),
    "30f657d8": LayerSkipConfig(name="layer-skip", skip=["mlp1"]),
    "647979fc": HorizontalConfig(first=EarlyExitConfig(layers=1), second=LookupConfig()),
}


@pytest.mark.parametrize("digest", HELD)
def test_runs_keep_their_ids_without_a_removed_key(digest: str) -> None:
    assert identify(RunConfig(draft=HELD[digest], gamma=5)).rpartition("-")[2] == digest
