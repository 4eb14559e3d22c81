"""A range check that names the key, the value and what is allowed."""

from specbench.errors import UserError

MAX_GAMMA = 64
MAX_BATCH = 1024


def require(holds: bool, key: str, value: object, allowed: str) -> None:
    """Raise a UserError that names `key`, its value and what is allowed, unless `holds`."""
    if not holds:
        raise UserError(f"{key}={value}: must be {allowed}")
