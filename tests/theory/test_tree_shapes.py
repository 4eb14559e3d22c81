"""Shapes of trees: expected tokens, the dynamic programme, and nodes chosen by value."""

import itertools

import pytest

from specbench.theory.best_tree import best_first, best_shape, best_size
from specbench.theory.trees import ROOT, TreeShape, expected_tree_tokens

FALLING = (0.6, 0.2, 0.1)


@pytest.mark.parametrize(("size", "tokens"), [(4, 2.176), (8, 2.746), (16, 3.306), (64, 4.326)])
def test_the_best_shape_has_the_known_expected_tokens(size: int, tokens: float) -> None:
    shape = best_shape(FALLING, size)
    assert shape.size == size
    assert expected_tree_tokens(shape, FALLING) == pytest.approx(tokens, abs=6e-4)


def test_a_chain_has_the_tokens_of_equation_1() -> None:
    assert expected_tree_tokens(TreeShape.chain(5), (0.8,)) == pytest.approx((1 - 0.8**6) / 0.2)
    assert expected_tree_tokens(TreeShape.chain(200), (0.6,)) == pytest.approx(2.5)


@pytest.mark.parametrize("acceptance", [FALLING, (0.3, 0.4, 0.0), (0.1, 0.0, 0.5), (0.0, 0.0)])
@pytest.mark.parametrize("depth", [1, 2, 3, None])
def test_no_shape_of_the_size_and_depth_is_better(acceptance: tuple[float, ...], depth: int | None) -> None:
    """Against all trees of up to five nodes."""
    best = best_shape(acceptance, 5, depth)
    assert best.depth <= (depth or 4) and best.most_children <= len(acceptance)
    others = [
        expected_tree_tokens(TreeShape(parents), acceptance)
        for parents in itertools.product(range(ROOT, 3), repeat=best.size - 1)
        if all(parent < node for node, parent in enumerate(parents)) and TreeShape(parents).depth <= (depth or 4)
        and TreeShape(parents).most_children <= len(acceptance)
    ]  # fmt: skip
    assert expected_tree_tokens(best, acceptance) == pytest.approx(max(others))


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_no_shape_is_better_where_acceptance_differs_from_level_to_level(depth: int) -> None:
    """Later heads agree less, and there are three of them; flat vectors would grow another tree."""
    levels = [(0.5, 0.4, 0.08), (0.3, 0.1), (0.2,)]
    best = best_shape(levels, 6, depth)
    assert best.depth <= 3
    every = [
        TreeShape(parents)
        for parents in itertools.product(range(ROOT, 4), repeat=5)
        if all(parent < node for node, parent in enumerate(parents)) and TreeShape(parents).depth <= depth
    ]
    assert expected_tree_tokens(best, levels) == pytest.approx(max(expected_tree_tokens(one, levels) for one in every))
    flat = expected_tree_tokens(best_shape(levels[0], 6, depth), levels)
    assert flat < expected_tree_tokens(best, levels)
    sizes = {2: 1.0, 4: 1.2, 6: 1.3}
    size, levels_used, speedup = best_size(levels, sizes, 0.05, depth)
    tried = {
        (n, d): expected_tree_tokens(best_shape(levels, n, d), levels) / (sizes[n] + d * 0.05)
        for n in sizes for d in range(1, depth + 1)
    }  # fmt: skip
    assert speedup == pytest.approx(max(tried.values())) == pytest.approx(tried[size, levels_used])


@pytest.mark.parametrize("size", [8, 16, 32])
def test_the_best_shape_is_no_worse_than_the_chain_of_its_cost(size: int) -> None:
    for acceptance in (FALLING, (0.95, 0.02), (0.2, 0.2, 0.2)):
        chain = expected_tree_tokens(TreeShape.chain(size - 1), acceptance)
        assert expected_tree_tokens(best_shape(acceptance, size), acceptance) >= chain - 1e-12


def test_a_size_that_the_depth_does_not_hold_is_cut_down() -> None:
    assert best_shape((0.6, 0.2), 32, 2) == TreeShape((ROOT, ROOT, 0, 0, 1, 1))


def test_widths_and_the_nodes_that_a_size_leaves() -> None:
    shape = TreeShape.of_widths([2, 2])
    assert shape.parents == (ROOT, ROOT, 0, 0, 1, 1)
    assert (shape.size, shape.depth, shape.ranks, shape.children) == (7, 2, [0, 1, 0, 1, 0, 1], [2, 2, 2, 0, 0, 0, 0])
    assert shape.truncated(4) == TreeShape((ROOT, ROOT, 0))
    assert shape.truncated(100) == shape


def test_of_equal_values_the_shallower_node_remains() -> None:
    assert best_first([0.5, 0.25, 0.25, 0.5], [1, 1, 2, 2], 3) == [0, 1, 3]


@pytest.mark.parametrize("acceptance", [(0.3, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.4)])
def test_an_acceptance_of_zero_does_not_cost_the_tree_its_nodes(acceptance: tuple[float, ...]) -> None:
    """0 times what is impossible is not possible."""
    shape = best_shape(acceptance, 5, 2)
    assert shape.size == 5 and shape.depth <= 2


def test_the_best_size_is_that_of_all_sizes_and_depths_tried() -> None:
    sizes = (2, 4, 8, 16, 32)
    for name, verify in {"free": dict.fromkeys(sizes, 1.0), "steep": {n: 1 + 0.1 * (n - 1) for n in sizes}}.items():
        size, depth, speedup = best_size(FALLING, verify, 0.1, 6)
        tried = {
            (n, d): expected_tree_tokens(best_shape(FALLING, n, d), FALLING) / (verify[n] + d * 0.1)
            for n in sizes for d in range(1, 7)
        }  # fmt: skip
        assert speedup == pytest.approx(max(tried.values())) == pytest.approx(tried[size, depth])
        assert (size == 32) == (name == "free")
