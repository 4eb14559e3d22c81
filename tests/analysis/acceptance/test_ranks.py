"""Acceptance by rank by teacher forcing: the formulas against rules played, and the bound that none exceeds."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from specbench.algorithm.acceptance import expected
from specbench.algorithm.acceptance.expected import (
    distinct,
    fixed,
    k_sequential,
    of_k_sequential,
    optimal_acceptance,
    replaced,
)
from specbench.algorithm.acceptance.tree_rules import (
    DraftedTree,
    KSequential,
    WithoutReplacement,
    WithReplacement,
    acceptance_by_rank,
    walk,
    without,
)
from specbench.analysis.acceptance.agreement import agreements
from specbench.analysis.acceptance.ranks import OPTIMUM, RankReader, acceptance_vector
from specbench.cli import main
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling
from specbench.theory.trees import ROOT
from tests.support.branches import Branch, outcomes
from tests.support.toy import PROMPT, VOCABULARY, ToyModel, random_table

P, Q = torch.tensor([[0.4, 0.3, 0.2, 0.1]]), torch.tensor([[0.1, 0.2, 0.3, 0.4]])
EVERY_TOKEN = torch.arange(4)[:, None]
GREEDY, SAMPLED = Sampling(temperature=0.0), Sampling(temperature=1.0)


def some(seed: int, *shape: int) -> torch.Tensor:
    values = torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) ** 2 + 0.01
    return values / values.sum(-1, keepdim=True)


def test_golden_acceptances_of_one_and_two_children() -> None:
    assert replaced(P, Q, EVERY_TOKEN[:1], 2).accepted_LK[0].cumsum(0).tolist() == pytest.approx([0.6, 0.72])
    assert fixed(P, Q, EVERY_TOKEN[:1], 2).accepted_LK[0].tolist() == pytest.approx([0.1, 0.2])
    assert of_k_sequential(P, Q, 2)[0].tolist() == pytest.approx([0.6, 0.75])
    drawn = distinct(P.expand(20_000, -1), Q.expand(20_000, -1), EVERY_TOKEN[:1].expand(20_000, 1), 2, generator(0))
    # False alarm: 4 standard errors of a mean of numbers in [0, 1], 6e-5.
    assert drawn.accepted_LK.sum(-1).mean() == pytest.approx(0.7643, abs=4 * 0.5 / 20_000**0.5)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", range(3))
def test_the_formulas_are_those_of_the_rules_played(seed: int) -> None:
    p, q = some(seed, 4), some(seed + 50, 4)

    def children(chance: Branch, again: bool) -> list[int]:
        tokens: list[int] = []
        for _ in range(3):
            tokens.append(chance.draw(q if again else without(q, tokens)))
        return tokens

    def mean(start: type[WithReplacement] | type[WithoutReplacement]) -> list[float]:
        def play(chance: Branch) -> list[float]:
            tokens = children(chance, start is WithReplacement)
            return acceptance_by_rank(p, q.expand(3, -1), tokens, start)

        return [sum(likely * found[rank] for likely, found in outcomes(play)) for rank in range(3)]

    assert replaced(p[None], q[None], EVERY_TOKEN[:1], 3).accepted_LK[0].tolist() == pytest.approx(
        mean(WithReplacement), abs=1e-6
    )
    many = 20_000
    drawn = distinct(p.expand(many, -1), q.expand(many, -1), EVERY_TOKEN[:1].expand(many, 1), 3, generator(seed))
    for found, wanted in zip(drawn.accepted_LK.mean(0).tolist(), mean(WithoutReplacement), strict=True):
        assert found == pytest.approx(wanted, abs=4 * 0.5 / many**0.5)

    def played(chance: Branch) -> tuple[int, int]:
        tokens = children(chance, True)
        verdict = walk(p.expand(4, -1), q.expand(3, -1), DraftedTree(tokens, [ROOT] * 3), chance, KSequential)
        return (verdict.path[0], tokens[verdict.path[0]]) if verdict.path else (3, verdict.token)

    of_each = torch.zeros(4, 4)  # [rank, token]; 3: none was accepted
    for likely, (rank, token) in outcomes(played):
        of_each[rank, token] += likely
    assert of_k_sequential(p[None], q[None], 3)[0, -1].item() == pytest.approx(of_each[:3].sum().item(), abs=1e-5)
    ranked = k_sequential(p.expand(4, -1), q.expand(4, -1), EVERY_TOKEN, 5, 3)
    assert ranked.accepted_LK[0].tolist() == pytest.approx([*of_each[:3].sum(-1).tolist(), 0, 0], abs=1e-5)
    assert ranked.given_LK[:, :3].T.flatten().tolist() == pytest.approx((of_each[:3] / p).flatten().tolist(), abs=1e-5)


def test_what_is_accepted_is_the_mean_of_what_is_accepted_given_the_token() -> None:
    """Over texts drawn from p: sum over x of p(x) given[x] = accepted, for each way of choosing children."""
    p, q = some(1, 4).expand(4, -1), some(2, 4).expand(4, -1)
    for found in (fixed(p, q, EVERY_TOKEN, 3), replaced(p, q, EVERY_TOKEN, 3)):
        assert (p[0] @ found.given_LK).tolist() == pytest.approx(found.accepted_LK[0].tolist(), abs=1e-6)
    token_given = [distinct(p[:1], q[:1], token[None], 3, generator(5)).given_LK[0] for token in EVERY_TOKEN]
    accepted = distinct(p[:1], q[:1], EVERY_TOKEN[:1], 3, generator(5)).accepted_LK[0]
    assert (p[0] @ torch.stack(token_given)).tolist() == pytest.approx(accepted.tolist(), abs=1e-6)


def test_children_beyond_the_tokens_that_q_has_are_never_accepted() -> None:
    p, q = torch.tensor([[0.5, 0.3, 0.2, 0.0]]), torch.tensor([[0.6, 0.4, 0.0, 0.0]])
    found = distinct(p, q, EVERY_TOKEN[:1], 6, generator(1)).accepted_LK[0].tolist()
    assert found[2:] == [0, 0, 0, 0] and sum(found) == pytest.approx(0.8)
    assert optimal_acceptance(p[0].numpy(), q[0].numpy(), 4, replaced=False).tolist() == pytest.approx([0.8] * 4)


@pytest.mark.parametrize("seed", range(3))
def test_acceptances_of_distinct_children_add_up_to_a_probability(seed: int) -> None:
    """The ranks of each path of rejected children, not of their mean alone, add up to at most 1.

    A path of children drawn from q and weighted by whether each is rejected has the same mean, and some sums above 2.
    """
    p, q, tokens = some(seed, 400, 12), some(seed + 50, 400, 12), torch.arange(400)[:, None] % 12
    nearly = (p + 0.02 * q) / 1.02  # a good draft: what is accepted is close to 1
    for draft in (q, nearly, p):
        found = distinct(p, draft, tokens, 8, generator(seed), times=1)
        for one in found:
            assert one.min() >= 0 and one.sum(-1).max() <= 1 + 1e-5
    # False alarm: 4 standard errors, 6e-5.
    many = 20_000
    one_by_one = [
        sum(acceptance_by_rank(p[0], [q[0]] * 3, draws.tolist(), WithoutReplacement))
        for draws in torch.multinomial(q[0].expand(2000, -1), 3, generator=generator(seed))
    ]
    drawn = distinct(p[:1].expand(many, -1), q[:1].expand(many, -1), tokens[:1].expand(many, 1), 3, generator(seed))
    mean = sum(one_by_one) / len(one_by_one)
    assert drawn.accepted_LK.sum(-1).mean().item() == pytest.approx(mean, abs=4 * 0.5 / 2000**0.5)


def test_no_rule_exceeds_the_bound_and_the_bound_grows() -> None:
    p, q = some(3, 6, 40), some(4, 6, 40)
    rules = {"replaced": [replaced(p, q, EVERY_TOKEN[:1].expand(6, 1), 8).accepted_LK.cumsum(-1)]}
    rules["replaced"].append(of_k_sequential(p, q, 8))
    for name, found in rules.items():
        for p_V, q_V, *accepted in zip(p.double().numpy(), q.double().numpy(), *found, strict=True):
            bound = optimal_acceptance(p_V, q_V, 8, replaced=name == "replaced")
            assert (np.diff(bound) >= -1e-9).all() and bound[0] == pytest.approx(np.minimum(p_V, q_V).sum())
            assert all((one.numpy() <= bound + 1e-5).all() for one in accepted)


@pytest.mark.parametrize("width", [1.0, 3.0])
def test_rare_tokens_in_runs_hardly_change_the_bound(width: float, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=400) * width
    p, q = (np.exp(one) / np.exp(one).sum() for one in (logits, logits + random.normal(size=400)))
    in_runs = optimal_acceptance(p, q, 8, replaced=False)
    monkeypatch.setattr(expected, "SINGLES", 400)
    assert in_runs == pytest.approx(optimal_acceptance(p, q, 8, replaced=False), abs=1e-3)


def test_ranks_of_a_draft_that_is_the_target() -> None:
    model = ToyModel(random_table(1))
    draft = ModelDraft(model, VOCABULARY)
    texts = [[1, 2, 0, 1], [2, 2]]
    for sampling in (GREEDY, SAMPLED):
        readers = [RankReader(sampling, generator(0), 1, most=3) for _ in texts]
        for text, reader in zip(texts, readers, strict=True):
            agreements(model, [draft], PROMPT, text, sampling, readers=[reader])
        ranks = [reader.found for reader in readers]
        greedy = sampling is GREEDY
        for children in ("replaced", "distinct"):
            assert acceptance_vector(ranks, children) == pytest.approx([1, 0, 0], abs=1e-5)  # type: ignore[arg-type]
        assert [len(one.given["fixed"]) for one in ranks] == [4, 2] == [one.places for one in ranks]
        assert (set(OPTIMUM.values()) <= set(ranks[0].of_children)) == (not greedy)
        for sums in ranks[0].of_children.values():
            assert sums[-1] <= 4 + 1e-4


@pytest.mark.full
def test_alpha_shows_the_children_of_drafts_that_grow_trees(
    folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([
        "alpha", f"target.path={folders['t5']}", "task=ende", f"task.path={folders['rows']}",
        f"task.train_path={folders['rows']}", f"results={tmp_path}", f"draft.path=[{folders['t5-draft']}]",
        "draft=[random]", "dtype=float32", "device=cpu", "engine=eager", "max_new_tokens=12",
        "--verbose",
    ]) == 0  # fmt: skip
    shown = capfd.readouterr().out
    assert "distinct: optimum" in shown and "replaced: K-SEQ" in shown
    (file,) = (tmp_path / "alpha").glob("*.json")
    rows = {(row["draft"], row["temperature"]): row for row in json.loads(file.read_text())["rows"]}
    assert "acceptance_by_rank" not in rows["random", 0]
    for temperature in (0, 1):
        row = rows["t5-draft", temperature]
        first = row["acceptance_by_rank"]["fixed" if temperature == 0 else "distinct"][0]
        assert first["value"] == pytest.approx(row["alpha"], abs=1e-5) and first["low"] <= first["high"]
    for row in rows.values():
        every = [*row["alpha_by_position"], *row["lenient"].values()]
        every += [one for of in ("acceptance_by_rank", "acceptance_of_children") for way in row.get(of, {}).values()
                  for one in way]  # fmt: skip
        assert all(0 <= one[key] <= 1 + 1e-9 for one in every for key in ("low", "value", "high")), row
    found = rows["t5-draft", 1]["acceptance_of_children"]
    for rule, bound in (("distinct", "optimum, distinct"), ("k-seq", "optimum, replaced")):
        for reached, best in zip(found[rule], found[bound], strict=True):
            assert reached["value"] <= best["value"] + (0.05 if rule == "distinct" else 1e-4)
