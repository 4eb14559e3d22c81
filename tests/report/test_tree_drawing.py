"""The tree of a pass, drawn: branches, the accepted path, and what was never tested."""

from dataclasses import replace
from typing import Any

import pytest

from specbench.errors import UserError
from specbench.report.marked_passes import lines, telling_pass, tree_of_pass
from tests.support.made_passes import made_pass, made_trace

PIECES = {str(token): f" {letter}" for token, letter in enumerate("abcdefgh")}
# a and b follow the text; c and d follow b; e follows a.
TREE = made_pass(drafted=5, tokens=[0, 1, 2, 3, 4], parents=[-1, -1, 1, 1, 0])
PASSES: list[Any] = [
    replace(TREE, accepted=2, emitted=3, path=[1, 3]),
    replace(TREE, accepted=0, emitted=1, path=[]),
    made_pass(drafted=1, tokens=[0], accepted=1, emitted=2),
]
RECORD: Any = {"run_id": "r", "pieces": PIECES}
PROMPT: Any = {"speculative": made_trace(tokens=[1, 3, 5, 6, 0, 7], passes=PASSES)}


def drawn(number: int) -> list[tuple[str, str]]:
    return [(twig.branches + twig.text, twig.kind) for twig in tree_of_pass(RECORD, PROMPT, number)]


def test_the_accepted_path_and_the_token_after_it() -> None:
    assert drawn(0) == [
        ("├─ a", "rejected"),
        ("│  └─ e", "unvisited"),
        ("└─ b", "accepted"),
        ("   ├─ c", "rejected"),
        ("   └─ d", "accepted"),
        ("      └─ f", "target"),
    ]


def test_a_pass_in_which_nothing_was_accepted() -> None:
    kinds = [kind for _, kind in drawn(1)]
    assert kinds == ["rejected", "unvisited", "rejected", "unvisited", "unvisited", "target"]


def test_the_text_of_a_tree_is_that_of_its_path() -> None:
    rows = lines(RECORD, PROMPT, width=80)
    assert [[(piece.text.strip(), piece.kind) for piece in row.pieces] for row in rows] == [
        [("b", "accepted"), ("d", "accepted"), ("f", "target")],
        [("a", "rejected"), ("g", "target")],
        [("a", "accepted"), ("h", "target")],
    ]


def test_which_pass_is_drawn() -> None:
    assert telling_pass(PROMPT) == 0
    assert telling_pass({"speculative": made_trace(tokens=[0], passes=[PASSES[2]])}) is None  # type: ignore[typeddict-item]
    with pytest.raises(UserError, match="--tree 3: this pass drafted no tree"):
        tree_of_pass(RECORD, PROMPT, 2)
