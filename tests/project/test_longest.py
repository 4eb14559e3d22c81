"""Which files begin first where processes share the tests."""

from types import SimpleNamespace
from typing import Any

from tests.support.longest import LONGEST, longest_first
from tests.support.paths import ROOT


def test_files_that_begin_first_are_files_of_tests() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []
    assert len(set(LONGEST)) == len(LONGEST)


def test_the_longest_come_first_and_the_tests_of_a_file_stay_together() -> None:
    others = ["tests/cli/test_cli.py::test_a[x::y]", "tests/cli/test_cli.py::test_b", "tests/test_api.py::test_c"]
    long = [f"tests/{name}::test_{place}" for name in LONGEST for place in range(2)]
    items: Any = [SimpleNamespace(nodeid=name) for name in [*others[:2], *reversed(long), others[2]]]
    longest_first(items)
    found = [item.nodeid for item in items]
    assert found[len(long) :] == others
    assert [name.partition("::")[0] for name in found[: len(long) : 2]] == [f"tests/{name}" for name in LONGEST]
    assert [name[-1] for name in found[: len(long)]] == ["1", "0"] * len(LONGEST)
