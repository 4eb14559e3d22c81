"""Numbers that no machine can have produced undisturbed.

A pass checks its drafted tokens with a run of the target over them and one more, which takes as long as a step over one
token, or longer. So v is at least 1, and a speedup at most the tokens that a pass gives. Where a run says otherwise,
something else had the machine while one of the two was timed.
"""

from collections.abc import Mapping
from typing import Any

# Another kernel may serve several tokens than one, and medians vary: the least v of our undisturbed runs is 1.14.
SLACK = 0.1


def impossible(summary: Mapping[str, Any]) -> list[str]:
    """What of a run's summary cannot be, in words; empty where nothing is wrong. Such a run was disturbed while it was
    timed, and its c, v and speedups mean nothing."""
    found = []
    v, speedup, low = (summary.get(key) for key in ("verify_cost", "speedup_measured", "speedup_low"))
    tokens = summary["tokens_per_pass"]
    if v is not None and v < 1 - SLACK:
        found.append(f"v = {v:.2f}: checking several tokens cannot take less time than checking 1")
    if speedup is not None and (speedup > tokens * (1 + SLACK) or (low is not None and low > tokens)):
        found.append(f"a speedup of {speedup:.2f} at {tokens:.2f} tokens a pass: a pass takes a target step or longer")
    return found
