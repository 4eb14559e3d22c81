"""Which instances of a parametrised test run in the quick suite, where the test is marked `covering`."""

from collections.abc import Mapping, Sequence

import pytest


def covering(instances: Sequence[Mapping[str, object]], most: int | None = None) -> list[int]:
    """A small subset in which every value of each parameter occurs: at each step the first instance that adds most.

    Args:
        instances: each instance's parameters, by name.
        most: at most so many are returned, spread evenly over the subset. All values need not occur then.

    Returns:
        Indices into `instances`, in ascending order; equal for equal arguments. At least one, where there is any.
    """
    values = [set(enumerate(map(repr, one.values()))) for one in instances]
    missing = set().union(*values)
    found: list[int] = []
    while missing:
        found.append(max(range(len(values)), key=lambda index: (len(values[index] & missing), -index)))
        missing -= values[found[-1]]
    found = sorted(found) or [0][: len(instances)]
    if most is None or len(found) <= most:
        return found
    return [found[place * len(found) // most] for place in range(most)]


def mark_the_rest(items: Sequence[pytest.Item]) -> None:
    """Mark as `full` the instances of tests marked `covering` that are not in the covering subset.

    `@pytest.mark.covering` covers every value of each parameter, `covering("engine")` of this parameter alone,
    `covering(most=2)` keeps two instances, and `covering(by=f)` covers the values of f(**parameters).
    """
    tests: dict[tuple[str, str], list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("covering") and hasattr(item, "callspec"):
            tests.setdefault((item.nodeid.partition("::")[0], item.originalname), []).append(item)
    for instances in tests.values():
        mark = instances[0].get_closest_marker("covering")
        assert mark is not None
        by = mark.kwargs.get("by")
        given = [item.callspec.params for item in instances]
        if by is not None:
            seen: list[Mapping[str, object]] = [{"by": by(**one)} for one in given]
        else:
            seen = [{name: one[name] for name in mark.args or one} for one in given]
        kept = covering(seen, mark.kwargs.get("most"))
        for index, item in enumerate(instances):
            if index not in kept:
                item.add_marker(pytest.mark.full)
