"""A results folder of made-up records: a pair of ours at several gammas, n-grams, and one row of the paper."""

from pathlib import Path

import pytest

from specbench.records.frame import Records
from tests.support.made_records import make


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for gamma in (1, 3, 5, 7):
        for temperature in (0.0, 1.0):
            make(folder, gamma=gamma, temperature=temperature, alpha=0.7 - 0.1 * temperature)
    for gamma in (3, 7):
        make(folder, draft="bigram", gamma=gamma, alpha=0.2, c=0.001)
    make(folder, target="t5-xxl", draft="t5-small", task="ende", gamma=7, alpha=0.75, c=0.02, simulated=True)
    return folder


@pytest.fixture
def records(results: Path) -> Records:
    return Records(results)


@pytest.fixture
def nothing(tmp_path: Path) -> Records:
    return Records(tmp_path)
