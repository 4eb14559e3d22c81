"""Fixtures shared by all tests: toy models with exact tables, tiny random networks, and where extra data lies."""

import os
from pathlib import Path

import pytest

# Idle threads must not spin against other processes of a small machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SHARED = Path(os.environ.get("SPECBENCH_SHARED", Path(__file__).resolve().parents[2] / "shared"))


@pytest.fixture
def shared() -> Path:
    """A folder of real data and models that is not part of the project; tests that need it are skipped without."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the folder {SHARED.name} (SPECBENCH_SHARED)")
    return SHARED
