"""Whether intervals agree."""

from specbench.stats import Interval


def within_4_errors(one: Interval, other: Interval) -> bool:
    """Whether two estimates with 95% intervals lie within 4 standard errors of each other."""
    error = (other.high - other.low + one.high - one.low) / 4 / 2**0.5
    return abs(one.value - other.value) < 4 * error
