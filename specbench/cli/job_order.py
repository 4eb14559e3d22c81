"""The order of a sweep's jobs in which each model is loaded once."""

from collections.abc import Sequence

# Keys that change the weights in memory, the most expensive first; all others may vary without loading weights.
LOADED_BY = ("target", "device", "dtype", "engine", "draft")


def by_models(jobs: Sequence[Sequence[str]]) -> list[list[str]]:
    """`jobs`, a list of key=value each, sorted so that those of one target stand together, and of one draft within it.

    Otherwise the order is as given: values come in the order in which they first appear.
    """
    ranks: dict[str, int] = {}
    for job in jobs:
        for override in job:
            ranks.setdefault(override, len(ranks))

    def models(job: Sequence[str]) -> list[list[int]]:
        return [[ranks[one] for one in job if _group(one) == group] for group in LOADED_BY]

    return [list(job) for job in sorted(jobs, key=models)]


def _group(override: str) -> str:
    """'draft' of 'draft=t5-small', 'draft.path=DIR' and 'draft@draft.via=t5-nano'."""
    key = override.partition("=")[0].lstrip("+~")
    return key.partition("@")[0].partition(".")[0]
