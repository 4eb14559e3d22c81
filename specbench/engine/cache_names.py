"""The name of a `transformers` network's cache, as an argument and in its output: `cache` from release 5.24 on.

Before, it was `past_key_values`, and `cache_params` in Mamba's family.
"""

import inspect
from functools import lru_cache
from typing import Any

NAMES = ("cache_params", "cache", "past_key_values")


@lru_cache(maxsize=64)
def _argument(kind: Any) -> str:
    parameters = inspect.signature(kind.forward).parameters
    return next((name for name in NAMES if name in parameters), NAMES[-1])


def cache_argument(network: Any) -> str:
    """The name of the argument of `network`'s forward that takes a cache."""
    kind: Any = type(network)
    return _argument(kind)


def cache_of(output: Any) -> Any:
    """The cache in the output of a forward."""
    return next(getattr(output, name) for name in NAMES if name in output)
