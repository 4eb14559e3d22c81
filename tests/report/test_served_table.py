"""The table of servers: a verdict that verifies nothing is said once."""

from typing import Any

import pytest

from specbench.report.tables.servers import TAKEN, _show


@pytest.mark.parametrize(
    ("verdict", "verified", "lossless", "shown"),
    [
        ("the target's", True, True, "the target's"),
        ("not verified", False, True, "not verified"),
        ("identical, plain passes only", False, True, "not verified (identical, plain passes only)"),
        ("a fault of speculation", False, False, "a fault of speculation"),
    ],
)
def test_a_verdict_is_said_as_on_the_screen(verdict: str, verified: bool, lossless: bool, shown: str) -> None:
    row: dict[str, Any] = dict.fromkeys(TAKEN) | {"run_id": "served-a-b-c-T0-g3-12345678"}
    row |= {"verdict": verdict, "verified": verified, "lossless": lossless}
    assert _show(row)["verdict"] == shown
