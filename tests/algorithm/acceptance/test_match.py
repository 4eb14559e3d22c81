"""Strict match and a greedy draft: lossless by enumeration, and with an alpha of their own; `accept=match|onehot`."""

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import residual
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.rules.lenient import Lenient
from specbench.algorithm.acceptance.rules.match import accept_match
from specbench.algorithm.acceptance.rules.onehot import greedy_rows
from specbench.analysis.acceptance.agreement import agreements
from specbench.cli import main
from specbench.conformance import check_rule
from specbench.methods.model.draft import ModelDraft
from specbench.records.catalog import Catalog
from specbench.sampling import Sampling
from specbench.theory import expected_tokens
from tests.support.calls import Run, refusal, small_run
from tests.support.decode import autoregressive, speculative
from tests.support.laws import token_by_token
from tests.support.toy import PROMPT, VOCABULARY, ToyModel, random_table

Folders = dict[str, Path]
Capture = pytest.CaptureFixture[str]
SAMPLED = "sampling.temperature=1"
V, G = 4, 2
Played = Callable[[Tensor, Tensor, Sequence[int]], Iterator[tuple[int, float, Tensor]]]
ALGORITHM_1 = token_by_token(Lenient(1.0))


def rows(seed: int, count: int) -> Tensor:
    """Distributions [count, V] in fp64, one token of each impossible."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.rand(count, V, generator=generator, dtype=torch.float64) ** 2 + 0.01
    table[torch.arange(count), torch.arange(count) % V] = 0.0
    return table / table.sum(-1, keepdim=True)


@pytest.fixture
def match(monkeypatch: pytest.MonkeyPatch) -> Played:
    """The rule itself, played on every outcome of the target's draws."""

    def played(p_GV: Tensor, q_GV: Tensor, drafted: Sequence[int]) -> Iterator[tuple[int, float, Tensor]]:
        for draws in itertools.product(range(V), repeat=len(drafted) + 1):
            chance = float(torch.stack([p_V[token] for p_V, token in zip(p_GV, draws, strict=True)]).prod())
            if chance > 0:
                monkeypatch.setattr(
                    "specbench.algorithm.acceptance.rules.match.drawn", lambda rows, _, now=draws: torch.tensor(now)
                )
                verdict = accept_match(p_GV, q_GV, drafted, torch.Generator())
                yield verdict.accepted, chance, torch.eye(V, dtype=torch.float64)[verdict.token]

    return played


def strays(outcomes: Played, p_GV: Tensor, q_GV: Tensor, drawn_from_GV: Tensor) -> float:
    """Total variation of G + 1 tokens from those of p: a pass over tokens drawn from `drawn_from_GV`, then draws from
    p."""
    law: dict[tuple[int, ...], float] = defaultdict(float)
    for drafted in itertools.product(range(V), repeat=G):
        likely = float(torch.stack([row[token] for row, token in zip(drawn_from_GV, drafted, strict=True)]).prod())
        if likely == 0:
            continue
        for accepted, chance, next_V in outcomes(p_GV, q_GV, drafted):
            for rest in itertools.product(range(V), repeat=G - accepted):
                after = [float(p_GV[accepted + 1 + place, token]) for place, token in enumerate(rest)]
                for token in range(V):
                    text = (*drafted[:accepted], token, *rest)
                    law[text] += likely * chance * float(next_V[token]) * math.prod(after)
    own = {
        text: float(torch.stack([p_GV[place, token] for place, token in enumerate(text)]).prod())
        for text in itertools.product(range(V), repeat=G + 1)
    }
    return sum(abs(law[text] - own[text]) for text in own) / 2


@pytest.mark.parametrize("seed", range(5))
def test_both_are_lossless_by_enumeration(match: Played, seed: int) -> None:
    p_GV, q_GV = rows(seed, G + 1), rows(seed + 50, G)
    greedy_GV = greedy_rows(q_GV)
    assert strays(match, p_GV, q_GV, q_GV) < 1e-12
    assert strays(match, p_GV, greedy_GV, greedy_GV) < 1e-12
    assert strays(ALGORITHM_1, p_GV, greedy_GV, greedy_GV) < 1e-12  # accept=onehot
    assert strays(ALGORITHM_1, p_GV, q_GV, q_GV) < 1e-12


@pytest.mark.full
def test_a_rule_of_the_conformance_tests() -> None:
    check_rule(accept_match, samples=2000)


def test_faults_of_such_rules_are_caught(match: Played) -> None:
    p_GV, q_GV = rows(1, G + 1), rows(51, G)

    def changed(following: Callable[[int], Tensor]) -> Played:
        def played(p: Tensor, q: Tensor, drafted: Sequence[int]) -> Iterator[tuple[int, float, Tensor]]:
            for accepted, chance, next_V in match(p, q, drafted):
                yield accepted, chance, next_V if accepted == len(drafted) else following(accepted)

        return played

    drawn_anew, algorithm_1s = changed(lambda place: p_GV[place]), changed(lambda place: residual(p_GV, q_GV_1)[place])
    q_GV_1 = torch.cat([q_GV, p_GV[-1:]])
    assert strays(drawn_anew, p_GV, q_GV, q_GV) > 0.01
    assert strays(algorithm_1s, p_GV, q_GV, q_GV) > 0.01
    assert strays(ALGORITHM_1, p_GV, q_GV, greedy_rows(q_GV)) > 0.01  # the argmax drafted, and compared with all of q


def test_alphas_of_the_three_rules_from_one_reading() -> None:
    """By hand at each position, and in their order: strict match of two draws is never above Algorithm 1."""
    target, draft = ToyModel(random_table(1)), ToyModel(random_table(2))
    text = [1, 2, 1, 0, 2, 2]
    (along,) = agreements(target, [ModelDraft(draft, VOCABULARY)], PROMPT, text, Sampling(1.0))
    before = [0, *text]
    for place, token in enumerate(text):
        context = (before[place - 1] if place else 0, before[place])
        p_V, q_V = target.table_VVV[context], draft.table_VVV[context]
        best = int(q_V.argmax())
        two, one = along.others["match"], along.others["onehot"]
        assert two.beta[place] == pytest.approx(float(p_V @ q_V), abs=1e-6)
        assert two.ratio[place] == pytest.approx(float(q_V[token]), abs=1e-6)
        assert (one.beta[place], one.ratio[place]) == (pytest.approx(float(p_V[best]), abs=1e-6), token == best)
        assert two.beta[place] <= along.beta[place] + 1e-6
    assert along.at("match").beta == two.beta and along.at("onehot").ratio == one.ratio


def test_at_t_0_all_are_one() -> None:
    target, draft = ToyModel(random_table(1)), ModelDraft(ToyModel(random_table(2)), VOCABULARY)
    (along,) = agreements(target, [draft], PROMPT, [1, 2], Sampling(0.0))
    assert not along.others and along.at("match") == along.at("onehot") == along
    keys = {"gamma": 3, "sampling": Sampling(0.0), "max_new_tokens": 9}
    own = speculative(target, draft, PROMPT, **keys, generator=torch.Generator())  # type: ignore[arg-type]
    for options in ({"accept": accept_match}, {"greedy_draft": True}):
        other = speculative(target, draft, PROMPT, **keys, **options, generator=torch.Generator())  # type: ignore[arg-type]
        assert other.tokens == own.tokens
        assert [(one.drafted, one.accepted) for one in other.passes] == [
            (one.drafted, one.accepted) for one in own.passes
        ]


def test_a_row_without_mass_has_no_likeliest_token() -> None:
    assert greedy_rows(torch.tensor([[0.0, 0.0], [0.5, 0.5], [0.2, 0.8]])).tolist() == [[0, 0], [1, 0], [0, 1]]


class Alike(ToyModel):
    """The same distribution everywhere, and no end: positions are independent, as Eq. 1 has them."""

    eos_ids: frozenset[int] = frozenset()


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("rule", ["match", "onehot", "exact"])
def test_equation_1_of_the_own_alpha_is_the_measured_tokens_a_pass(rule: str) -> None:
    """Within 4 standard errors: one false alarm in 16,000 seeds."""
    gamma, length, generator = 4, 3000, torch.Generator().manual_seed(3)
    p_V, q_V = torch.tensor([0.5, 0.3, 0.15, 0.05]), torch.tensor([0.2, 0.4, 0.3, 0.1])
    target, draft = Alike(p_V.expand(4, 4, 4)), ModelDraft(Alike(q_V.expand(4, 4, 4)), VOCABULARY)
    text = autoregressive(
        target, PROMPT, sampling=Sampling(1.0), max_new_tokens=5, generator=torch.Generator().manual_seed(0)
    ).tokens
    (along,) = agreements(target, [draft], PROMPT, text, Sampling(1.0))
    alpha = along.at(rule).beta[0] if rule != "exact" else along.beta[0]
    assert alpha == pytest.approx({"match": 0.27, "onehot": 0.3, "exact": 0.7}[rule], abs=1e-6)
    trace = speculative(
        target, draft, PROMPT, gamma=gamma, sampling=Sampling(1.0), max_new_tokens=length, generator=generator,
        accept=accept_match if rule == "match" else accept_exact, greedy_draft=rule == "onehot",
    )  # fmt: skip
    emitted = torch.tensor([one.emitted for one in trace.passes[:-2]], dtype=torch.float64)  # the last has no room
    assert abs(emitted.mean() - expected_tokens(alpha, gamma)) < 4 * emitted.std() / len(emitted) ** 0.5


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "limit=3")


def without_gamma(argv: Sequence[str]) -> list[str]:
    """`argv` without keys that `alpha`, `recommend` and trees do not have."""
    return [one for one in argv if not one.startswith(("gamma=", "warmup="))]


@pytest.mark.full
@pytest.mark.parametrize("rule", ["match", "onehot"])
def test_a_sampled_run_is_proved_and_predicted_from_its_own_alpha(
    run, folders: Folders, tmp_path: Path, capfd: Capture, rule: str
) -> None:  # type: ignore[no-untyped-def]
    code, out, err, record = run(f"accept={rule}", SAMPLED)
    summary = record["summary"]
    assert code == 0 and summary["lossless"] and not summary["lossy"] and "total_variation" not in summary, err
    assert (summary["accept"], abs(summary["proof_z"]) < 4) == (rule, True) and f"-{rule}-" in record["run_id"]
    assert summary["alpha_rule"] > 0 and summary["alpha_rule_low"] <= summary["alpha_rule"]
    assert summary["tokens_per_pass_predicted"] == pytest.approx(expected_tokens(summary["alpha_rule"], 3))
    shown = " ".join(out.split())
    assert "α under the rule" in shown and "LOSSY" not in shown and summary["speedup_measured"] is not None

    # alpha gives the same from its one reading.
    argv = without_gamma(small_run(folders, tmp_path, "limit=3", SAMPLED, verb="alpha"))
    capfd.readouterr()
    assert main([*argv, "accept=[exact,match,onehot]"]) == 0
    out = capfd.readouterr().out
    assert "α at T>0 by rule" not in out and "trees:" not in out and "the same command with --verbose" in out
    assert main([*argv, "accept=[exact,match,onehot]", "--verbose"]) == 0
    assert "α at T>0 by rule" in capfd.readouterr().out
    (file,) = (tmp_path / "alpha").glob("*.json")
    rows_of = {row["accept"]: row for row in json.loads(file.read_text())["rows"]}
    assert rows_of[rule]["alpha_rule"] == pytest.approx(summary["alpha_rule"], abs=1e-6)
    for row in rows_of.values():
        assert row[f"alpha_{rule}"] == rows_of[rule]["alpha_rule"] and row["alpha"] == pytest.approx(summary["alpha"])
        assert row[f"alpha_{rule}_low"] <= row[f"alpha_{rule}"] <= row[f"alpha_{rule}_high"] and not row["lossy"]
    assert "alpha_rule" not in rows_of["exact"]


@pytest.mark.full
@pytest.mark.parametrize("rule", ["match", "onehot"])
def test_rows_of_a_batch_are_proved_as_well(run, rule: str) -> None:  # type: ignore[no-untyped-def]
    summary = run(f"accept={rule}", SAMPLED, "batch=2")[3]["summary"]
    assert summary["lossless"] and abs(summary["proof_z"]) < 4 and summary["batch"] == 2
    assert summary["tokens_per_pass_predicted"] == pytest.approx(expected_tokens(summary["alpha_rule"], 3))


@pytest.mark.full
def test_at_t_0_a_run_has_one_alpha_and_the_targets_text(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for rule in ("match", "onehot"):
        summary = run(f"accept={rule}")[3]["summary"]
        assert summary["identical"] == 1.0 and "alpha_rule" not in summary
    assert {row["accept"] for row in Catalog(tmp_path).rows()} == {"match", "onehot"}


@pytest.mark.parametrize("rule", ["match", "onehot"])
def test_trees_are_refused_with_what_they_have_in_its_place(
    folders: Folders, tmp_path: Path, capfd: Capture, rule: str
) -> None:
    argv = without_gamma(small_run(folders, tmp_path, f"accept={rule}"))
    said = refusal([*argv, "tree=widths", "tree.widths=[2,1]"], capfd)
    assert f"accept={rule}: not together with tree=widths" in said and "accept=exact tree.children=fixed" in said


@pytest.mark.full
def test_recommend_ranks_them(folders: Folders, tmp_path: Path, capfd: Capture) -> None:
    argv = without_gamma(small_run(folders, tmp_path, "limit=3", SAMPLED, verb="recommend"))
    assert main([*argv, "accept=[exact,match,onehot]", "gammas=[2]", "rounds=2"]) == 0
    (file,) = (tmp_path / "recommend").glob("*.json")
    found = {row["accept"]: row for row in json.loads(file.read_text())["rows"]}
    assert set(found) == {"exact", "match", "onehot"}
    assert found["match"]["tokens_per_pass"] <= found["exact"]["tokens_per_pass"] + 1e-9
    assert found["match"]["alpha"]["value"] < found["exact"]["alpha"]["value"]
