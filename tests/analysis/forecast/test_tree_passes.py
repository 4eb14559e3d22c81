"""Passes of trees counted along the target's completions: by hand, and compared with decoding at T = 0 and T = 1; and
trees among the candidates of a recommendation."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.algorithm.acceptance.base import Children, DraftedTree
from specbench.algorithm.acceptance.tree_rules import KSequential
from specbench.algorithm.acceptance.tree_rules import walk as walk_down
from specbench.algorithm.tree_draft import TreeDraft
from specbench.analysis.acceptance.agreement import agreements
from specbench.analysis.acceptance.ranks import RankReader, Ranks
from specbench.analysis.forecast import tree_passes, walk
from specbench.analysis.forecast.grown_trees import counts_of_children, forecast_passes, replayed_passes
from specbench.cli import main
from specbench.compose.grid import split
from specbench.errors import UserError
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling
from specbench.stats import over_rows, ratio
from specbench.theory.trees import ROOT, ByConfidence, TreeShape
from tests.support.branches import Branch, outcomes
from tests.support.decode import autoregressive, speculative
from tests.support.intervals import within_4_errors
from tests.support.toy import EOS, PROMPT, VOCABULARY, ToyModel, random_table

GREEDY, SAMPLED = Sampling(0.0), Sampling(1.0)
TARGET, DRAFT = ToyModel(random_table(11)), ModelDraft(ToyModel(random_table(12)), VOCABULARY)
SHAPES = {"chain": TreeShape.chain(3), "wide": TreeShape.of_widths([3]), "tree": TreeShape.of_widths([2, 2, 1])}


def test_counting_the_passes_of_a_tree_by_hand() -> None:
    first, second, none = [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]
    two = TreeShape.of_widths([2, 1])  # a second child of the second level is not there
    assert tree_passes([[first, first, none, none]], two).tolist() == [[0, 0, 1], [0, 0, 1]]
    assert tree_passes([[second, second, none]], two).sum() == 2  # accepted, then the target's own; then one more
    assert tree_passes([[second, first]], two, most=9).tolist() == [[0, 0, 1], [0, 0, 0]]  # it drafted the end
    assert tree_passes([[first, first, first]], two, most=3).tolist() == [[0, 0, 1], [0, 0, 0]]
    assert tree_passes([[none, first, first]], two, most=3).tolist() == [[0, 0, 1], [0, 1, 0]]  # room for a level alone
    assert tree_passes([[[0.5, 0.25], none]], two, most=9).tolist() == [[0, 0, 1], [0, 0, 0.25]]
    given = [[0.7], [0.2], [0.9], [0.4]]
    # Level 2 has other children than level 1: a proposal that begins a token earlier.
    assert tree_passes([[first, first, none], [none, none, none]], two).tolist() == [[0, 0, 1], [0, 0, 1]]
    assert tree_passes([[first, first, none], [none, first, none]], two).sum() == 1
    assert tree_passes([[first, first, none, none], [first] * 4], TreeShape.chain(3)).sum() == 2  # no third head
    chain = walk([one for (one,) in given], gamma=3, most=9).passes.sum()
    assert tree_passes([given], TreeShape.chain(3), 9).sum() == pytest.approx(chain)


def ranks_along(text: list[int], sampling: Sampling, seed: int) -> Ranks:
    reader = RankReader(sampling, torch.Generator().manual_seed(seed), most=4)
    agreements(TARGET, [DRAFT], PROMPT, text, sampling, readers=[reader])
    return reader.found


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_passes_are_those_of_decoding(shape: str) -> None:
    for most in (2, 5, 9):
        keys: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": most, "generator": torch.Generator()}
        text = autoregressive(TARGET, PROMPT, **keys).tokens
        tree = TreeDraft(DRAFT, SHAPES[shape], "fixed", frozenset({EOS}))
        decoded = speculative(TARGET, tree, PROMPT, gamma=SHAPES[shape].depth, **keys)
        counted = tree_passes(ranks_along(text, GREEDY, 0).given_for("distinct"), SHAPES[shape], most)
        assert counted.sum() == len(decoded.passes)


@pytest.mark.full
@pytest.mark.parametrize("children", ["fixed", "replaced", "distinct"])
@pytest.mark.parametrize("shape", ["wide", "tree"])
@pytest.mark.statistical
def test_sampled_passes_are_those_of_decoding_in_the_mean(shape: str, children: Children) -> None:
    """A false alarm for one seed in 15,000 each."""
    count, generator = 500, torch.Generator().manual_seed(1)
    keys: dict[str, Any] = {"sampling": SAMPLED, "max_new_tokens": 12, "generator": generator}
    texts = [autoregressive(TARGET, PROMPT, **keys).tokens for _ in range(count)]
    ranks = [ranks_along(text, SAMPLED, seed) for seed, text in enumerate(texts)]
    counted = [tree_passes(one.given_for(children), SHAPES[shape], 12).sum() for one in ranks]
    tree = TreeDraft(DRAFT, SHAPES[shape], children, frozenset({EOS}))
    traces = [speculative(TARGET, tree, PROMPT, gamma=SHAPES[shape].depth, **keys) for _ in range(count)]
    decoded = over_rows([(len(t.tokens), len(t.passes)) for t in traces], ratio)
    estimated = over_rows([(len(t), float(n)) for t, n in zip(texts, counted, strict=True)], ratio)
    assert within_4_errors(estimated, decoded), (estimated, decoded)


@pytest.mark.parametrize("shape", ["wide", "tree"])
def test_passes_under_k_seq_follow_its_own_ranks(shape: str) -> None:
    """Of two tokens, by enumeration: what K-SEQ accepts where the completion has this token."""
    sampling, tree = SAMPLED, SHAPES[shape]
    children = tree.children[0]
    p, q = (model.table_VVV[0, 0] for model in (TARGET, DRAFT.model))
    drafting = TreeDraft(DRAFT, tree, "replaced", frozenset({EOS}))
    taken, emitted = torch.zeros(VOCABULARY), torch.zeros(VOCABULARY)

    def played(chance: Branch) -> tuple[bool, int]:
        tokens = [chance.draw(q) for _ in range(children)]
        one_level = DraftedTree(tokens, [ROOT] * children)
        verdict = walk_down(p.expand(children + 1, -1), q.expand(children, -1), one_level, chance, KSequential)
        return bool(verdict.path), tokens[verdict.path[0]] if verdict.path else verdict.token

    for likely, (accepted, token) in outcomes(played):
        taken[token] += likely * accepted
        emitted[token] += likely
    for token in range(VOCABULARY - 1):
        reader = RankReader(sampling, torch.Generator(), k_seq=counts_of_children(drafting.plan))
        agreements(TARGET, [DRAFT], PROMPT, [token, EOS], sampling, readers=[reader])
        found = forecast_passes(TARGET, drafting, PROMPT, [token, EOS], sampling, 9, reader.found, k_seq=True)
        if shape == "wide":  # a second pass where no child was accepted
            assert found is not None
            assert found.sum() == pytest.approx(2 - float(taken[token] / emitted[token]), abs=1e-4)
        else:  # its levels have 2, 2 and 1 children, each with ranks of its own
            assert {"k-seq 1", "k-seq 2"} <= set(reader.found.given)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_passes_of_a_dynamic_tree_are_replayed(temperature: float) -> None:
    """Greedily the very passes of decoding; sampled, those of the texts that decoding wrote."""
    sampling, tree = (
        Sampling(temperature),
        TreeDraft(DRAFT, ByConfidence(5, 3, 2), "fixed", frozenset({EOS})),
    )
    for seed in range(20):
        decoded = speculative(
            TARGET, tree, PROMPT,
            gamma=3, sampling=sampling, max_new_tokens=10, generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        counted = replayed_passes(TARGET, tree, PROMPT, decoded.tokens, sampling, 10)
        assert counted.sum() == len(decoded.passes) and counted[0].sum() == 1


TREES: dict[str, tuple[list[str], list[list[str]]]] = {
    "shapes and sizes": (
        ["tree=[none,sequoia,widths]", "tree.size=[8,16]"],
        [["tree=none"], *([f"tree={s}", f"tree.size={n}"] for s in ("sequoia", "widths") for n in (8, 16))],
    ),
    "a key of one shape": (
        ["tree=[widths,sequoia]", "tree.depth=[3]"], [["tree=widths"], ["tree=sequoia", "tree.depth=3"]],
    ),
    "sizes of one shape": (["tree=dynamic", "tree.size=[4,8]"], [["tree=dynamic", f"tree.size={n}"] for n in (4, 8)]),
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_lists_of_trees_are_taken_apart(name: str) -> None:
    argv, expected = TREES[name]
    assert split(argv, {})[1] == expected


def test_a_size_without_a_tree_is_refused() -> None:
    with pytest.raises(UserError, match="tree.size=8: no tree here has this option; give tree=SHAPE"):
        split(["tree.size=[8,16]"], {})


@pytest.mark.full
def test_trees_are_ranked_beside_chains_and_proved(
    folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = [
        f"target.path={folders['gpt2']}", f"draft.path={folders['gpt2-draft']}", "task=ende",
        f"task.path={folders['rows']}", f"results={tmp_path}", "dtype=float32", "device=cpu", "engine=eager",
        "max_new_tokens=12", "resamples=100",
    ]  # fmt: skip
    trees = ["tree=[none,sequoia,widths,dynamic]", "tree.size=[5]", "tree.depth=[3]", "gammas=[2]", "rounds=2"]
    assert main(["recommend", *argv, *trees, "verify=4"]) == 0
    out = capfd.readouterr().out
    assert "a tree pays if: " in out and "v(5) " in out and "† tree: " in out, out
    (file,) = (tmp_path / "recommend").glob("*.json")
    record = json.loads(file.read_text())
    rows = {row["tree"]: row for row in record["rows"]}
    assert set(rows) == {None, "sequoia 5", "widths 4×2×2×1 to 5", "dynamic 5"}
    assert rows["sequoia 5"]["nodes"] == 5 and rows["sequoia 5"]["gamma"] <= 3
    assert {one["tree"] for one in record["verified"]} == set(rows)
    # Greedily the texts' passes are known, so that tokens per pass are predicted to the last digit.
    for one in record["verified"]:
        assert one["tokens_per_pass"] == pytest.approx(rows[one["tree"]]["tokens_per_pass"])


@pytest.mark.full
def test_rules_of_trees_are_ranked_by_their_own_acceptance(
    folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """K-SEQ by K-SEQ's ranks, and no lossy rule by those of lossless decoding."""
    argv = [
        f"target.path={folders['gpt2']}", f"draft.path={folders['gpt2-draft']}", "task=ende", "limit=4",
        f"task.path={folders['rows']}", f"results={tmp_path}", "dtype=float32", "device=cpu", "engine=eager",
        "max_new_tokens=8", "resamples=100", "sampling.temperature=1", "tree=widths", "tree.widths=[3,2]",
        "tree.children=replaced", "gammas=[2]", "rounds=2",
    ]  # fmt: skip
    assert main(["recommend", *argv, "accept=[exact,k-seq]"]) == 0
    (file,) = (tmp_path / "recommend").glob("*.json")
    rows = {row["accept"]: row for row in json.loads(file.read_text())["rows"]}
    multi_round, k_seq = rows["exact"]["acceptance"], rows["k-seq"]["acceptance"]
    assert isinstance(multi_round[0], float) and [len([x for x in level if x]) for level in k_seq] == [3, 2]
    assert rows["k-seq"]["tokens_per_pass"] != rows["exact"]["tokens_per_pass"]
    capfd.readouterr()
    assert main(["recommend", *argv, "accept=typical"]) == 2
    assert "accept=typical: its acceptance on tree=widths at T>0 is not predicted" in capfd.readouterr().err


@pytest.mark.parametrize("verb", ["alpha", "recommend --validate"])
def test_verbs_that_rank_no_trees_refuse_them(verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*verb.split(), "tree=sequoia"]) == 2
    assert f"tree=sequoia: specbench {verb} does not use tree" in capfd.readouterr().err
