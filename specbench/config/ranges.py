"""A range check that names the key, the value and what is allowed."""

from specbench.errors import UserError, closest_first

MAX_GAMMA = 64
MAX_BATCH = 1024


def require(holds: bool, key: str, value: object, allowed: str) -> None:
    """Check that `holds`; `allowed` describes the values that `key` may have.

    Raises:
        UserError: it does not; the message names `key`, its value and `allowed`.
    """
    if not holds:
        names = allowed.split(" | ")
        if len(names) > 1 and all(name.isprintable() and " " not in name for name in names):
            allowed = " | ".join(closest_first(str(value), names))
        raise UserError(f"{key}={value}: must be {allowed}")
