"""Passes and traces made up for tests: what a test does not say is nothing."""

from typing import Any

from specbench.records.decoded import Pass, Trace


def made_pass(**given: Any) -> Pass:
    """A pass with these fields."""
    return Pass(**{"drafted": 0, "accepted": 0, "emitted": 1, "draft_s": 0.0, "verify_s": 0.0, "accept_s": 0.0} | given)


def made_trace(**given: Any) -> Trace:
    """A decoding with these fields."""
    return Trace(**{"tokens": [], "start_s": 0.0, "decode_s": 0.0} | given)
