"""The quick suite's part of a product of options: every value once, deterministic, never empty."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.covering import covering

pytest_plugins = ["pytester"]

AXES = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@given(AXES)
def test_every_value_of_a_product_occurs(sizes: list[int]) -> None:
    instances = [dict(zip("abc", one, strict=False)) for one in itertools.product(*(range(size) for size in sizes))]
    kept = [instances[index] for index in covering(instances)]
    for axis, size in zip("abc", sizes, strict=False):
        assert {one[axis] for one in kept} == set(range(size))
    assert len(kept) <= sum(sizes)
    assert len(covering(instances, most=2)) == min(2, len(kept))


def test_values_that_do_not_compare_and_no_instance_at_all() -> None:
    instances = [{"kind": "t5", "sizes": [1]}, {"kind": "gpt2", "sizes": [1]}, {"kind": "t5", "sizes": [2]}]
    assert covering(instances) == [0, 1, 2]
    assert covering([{}, {}]) == [0] and covering([]) == []


PRODUCT = """
import pytest

@pytest.mark.covering
@pytest.mark.parametrize("a", [1, 2, 3])
@pytest.mark.parametrize("b", [1, 2])
def test_product(a, b): pass

@pytest.mark.covering("b")
@pytest.mark.parametrize("a", [1, 2, 3])
@pytest.mark.parametrize("b", [1, 2])
def test_one_axis(a, b): pass

@pytest.mark.covering(by=lambda a: a % 2)
@pytest.mark.parametrize("a", range(9))
def test_by(a): pass

@pytest.mark.parametrize("a", range(4))
def test_unmarked(a): pass
"""
INI = "[pytest]\naddopts = --strict-markers -m 'not full'\nmarkers =\n    covering\n    full\n"


def test_all_instances_run_where_full_is_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import pytest\nfrom tests.support.covering import mark_the_rest\n"
        "@pytest.hookimpl(tryfirst=True)\ndef pytest_collection_modifyitems(items): mark_the_rest(items)\n"
    )
    pytester.makeini(INI)
    pytester.makepyfile(PRODUCT)
    pytester.inline_run("-p", "no:cacheprovider").assertoutcome(passed=3 + 2 + 2 + 4)
    pytester.inline_run("-p", "no:cacheprovider", "-m", "full or not full").assertoutcome(passed=6 + 6 + 9 + 4)
