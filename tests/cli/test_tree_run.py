"""`specbench run tree=...` from argv to record, on small random networks."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import main
from tests.support.calls import called


@pytest.fixture
def run(folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """Run with small settings; returns (exit code, stdout, stderr, the newest record or None)."""

    def call(*overrides: str, draft: str = "") -> Any:
        argv = [
            "run", f"target.path={folders['gpt2']}", draft or f"draft.path={folders['gpt2-draft']}", "task=ende",
            f"task.path={folders['rows']}", f"task.train_path={folders['rows']}", f"results={tmp_path}",
            "dtype=float32", "device=cpu", "max_new_tokens=12", *overrides,
        ]  # fmt: skip
        return called(argv, tmp_path, capfd)

    return call


@pytest.mark.full
def test_a_greedy_run_of_the_best_shape_from_a_probe(run: Any) -> None:
    code, out, err, record = run("tree=sequoia", "tree.size=8", "tree.depth=3", "engine=static")
    assert code == 0, err
    summary = record["summary"]
    assert summary["identical"] == 1.0 and summary["lossless"]
    assert summary["tree"] == summary["gamma_requested"] == "sequoia 8" and summary["gamma"] is None
    assert summary["nodes_per_pass"] <= 7 and summary["depth_per_pass"] <= 3
    assert sum(summary["acceptance_by_rank"]) <= 1
    assert summary["prediction"] == "by rank" and len(summary["acceptance_by_rank_estimated"]) == 8
    # Greedily the passes of a text are known without verifying a tree.
    assert summary["tokens_per_pass_predicted"] == pytest.approx(summary["tokens_per_pass"])
    assert len(record["gamma"].acceptance) == 8 and 1 <= record["gamma"].most <= 3
    a_pass = record["prompts"][0]["speculative"].passes[0]
    assert len(a_pass.parents) == a_pass.drafted and len(a_pass.path) >= a_pass.accepted
    assert "tree=sequoia is probed on" in err
    assert "tree sequoia 8 (" in out and "acceptance by rank" in out


@pytest.mark.full
@pytest.mark.parametrize("accept", ["exact", "traversal"])
@pytest.mark.parametrize(
    "tree", [("tree=widths", "tree.widths=[2,2]"), ("tree=dynamic", "tree.size=8", "tree.depth=3", "tree.top=3")]
)
def test_a_sampled_run_of_a_tree_is_proved(run: Any, tree: tuple[str, ...], accept: str) -> None:
    code, _, err, record = run(*tree, f"accept={accept}", "sampling.temperature=1", "engine=eager")
    assert code == 0, err
    summary = record["summary"]
    assert summary["lossless"] and abs(summary["proof_z"]) < 5 and summary["accept"] == accept
    assert summary["speedup_measured"] > 0 and summary["tokens_per_pass_predicted"] >= 1


OF_MODEL = "draft@draft.{0}=gpt-nano draft.{0}.shipped=null draft.{0}.path={1}"
BATCHED = {
    "widths": "draft.path={1} tree=widths tree.widths=[2,2]",
    "sequoia": "draft.path={1} tree=sequoia tree.size=6 tree.depth=3 accept=traversal",
    "dynamic": "draft.path={1} tree=dynamic tree.size=6 tree.depth=3 tree.top=3",
    "several drafts": f"draft=merged {OF_MODEL.format('first', '{1}')} draft@draft.third=lookup tree=widths",
    "a window of its own": "draft=lookahead",
}


@pytest.mark.full
@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", BATCHED)
def test_rows_of_a_batch_read_trees(run: Any, folders: dict[str, Path], name: str, temperature: int) -> None:
    """Rows whose drafts find nothing, or whose last pass drafts nothing, read a chain beside them."""
    draft, *words = BATCHED[name].format("", folders["gpt2-draft"]).split()
    of = ("engine=static", "warmup=1", "limit=3", f"sampling.temperature={temperature}", "batch=2")
    code, _, err, record = run(*words, *of, draft=draft)
    assert code == 0, err
    summary = record["summary"]
    assert summary["lossless"] and summary["batch"] == 2 and summary["tokens_per_pass"] >= 1
    assert temperature or summary["identical"] == 1.0


@pytest.mark.full
def test_an_ngram_draft_grows_trees(run: Any, tmp_path: Path) -> None:
    code, _, err, record = run(
        "tree=widths", f"draft.cache_dir={tmp_path / 'cache'}", "engine=eager", draft="draft=bigram"
    )
    assert code == 0, err
    assert record["summary"]["identical"] == 1.0 and record["summary"]["nodes_per_pass"] > 4


@pytest.mark.full
def test_the_size_is_chosen_from_what_verifying_costs_here(
    run: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, _, err, record = run("tree=sequoia", "tree.size=auto", "tree.depth=3", "engine=eager")
    assert code == 0, err
    chosen = record["gamma"]
    assert chosen.size in (2, 4, 8, 16, 32, 64, 128) and set(chosen.verify) >= {2, 16} and chosen.level > 0
    assert record["summary"]["nodes_per_pass"] < chosen.size and record["summary"]["identical"] == 1.0
    where = ["--results", str(tmp_path), "--min-prompts", "1"]
    assert main(["figures", "verify", *where, "--format", "svg", "--output", str(tmp_path / "figures")]) == 0
    assert "roofline" in (text := (tmp_path / "figures" / "verify.csv").read_text()) and len(text.splitlines()) == 2
    capfd.readouterr()
    assert main(["run", "tree=widths", "tree.size=auto"]) == 2
    assert "tree.size=auto: must be from 2 to 256" in capfd.readouterr().err
    assert main(["recommend", "tree=sequoia", "tree.size=auto"]) == 2
    assert "tree.size=auto: must be a list of sizes, which are ranked" in capfd.readouterr().err


@pytest.mark.full
def test_trees_have_a_table_and_a_figure_with_published_figures_beside_them(
    run: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for keys in (("tree=widths", "tree.size=6"), ("gamma=5",)):
        assert run(*keys, "engine=eager")[0] == 0
    where = ["--results", str(tmp_path), "--min-prompts", "1"]
    capfd.readouterr()
    assert main(["tables", "trees", *where]) == 0
    table = capfd.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| ")]
    ours = {row[4]: row for row in rows if row[0] == "gpt2"}
    assert set(ours) == {"chain", "widths 4×2×2×1"} and {row[5] for row in ours.values()} == {"6"}
    assert any(row[4] == "Sequoia" and row[6] == "5.08" and "Chen et al. 2024" in row[-1] for row in rows)
    assert "nan" not in table
    assert main(["figures", "trees", *where, "--format", "svg", "--output", str(tmp_path / "figures")]) == 0
    values = (tmp_path / "figures" / "trees.csv").read_text()
    assert "widths 4×2×2×1" in values and "EAGLE-2" in values
    assert main(["tables", "beyond", *where]) == 0
    assert "widths" not in capfd.readouterr().out.split("## ")[-1]  # trees have a table of their own


DRAFTS = {
    "lookup": "draft=lookup",
    "retrieval": "draft=retrieval",
    "early-exit": "draft=early-exit",
    "cascade": "draft=cascade draft.via.path={1} draft.via.shipped=null",
    "merged": f"draft=merged {OF_MODEL.format('first', '{1}')} draft@draft.third=lookup",
}


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("name", DRAFTS)
def test_every_kind_of_draft_grows_trees(run: Any, folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    """The best shape from a probe and greedily; and sampled, which proves itself."""
    if name == "retrieval" and find_spec("pydivsufsort") is None:
        pytest.skip("needs pydivsufsort")
    words = DRAFTS[name].format("", folders["gpt2-draft"]).split()
    options = [*words[1:], f"draft.cache_dir={tmp_path / 'cache'}", "engine=eager", "warmup=1", "limit=3"]
    code, _, err, record = run("tree=sequoia", "tree.size=8", "tree.depth=3", *options, draft=words[0])
    assert code == 0, err
    summary = record["summary"]
    assert summary["identical"] == 1.0 and summary["tree"] == "sequoia 8" and summary["tokens_per_pass"] >= 1
    code, _, err, record = run("tree=widths", "sampling.temperature=1", "accept=traversal", *options, draft=words[0])
    assert code == 0, err
    assert record["summary"]["lossless"] and abs(record["summary"]["proof_z"]) < 5


@pytest.mark.full
def test_rules_of_trees_alone(run: Any) -> None:
    options = ("tree=widths", "tree.children=replaced", "sampling.temperature=1", "engine=eager", "limit=3")
    code, out, err, record = run("accept=k-seq", *options)
    assert code == 0, err
    assert record["summary"]["lossless"] and record["summary"]["accept"] == "k-seq" and "k-seq" in out
    # Predicted from its own ranks: child r of a node is accepted with (1 - beta)^r beta, the same beta for all.
    for prompt in record["prompts"]:
        ranks = [share for share in prompt["tree"]["accepted"] if share > 0]
        assert len(ranks) == 4 and all(
            b * b <= 1.0001 * a * c for a, b, c in zip(ranks, ranks[1:], ranks[2:], strict=False)
        )
    code, out, err, record = run("accept=multi-path", "tree.widths=[3,1]", *options)
    assert code == 0, err
    assert record["summary"]["lossless"] and abs(record["summary"]["proof_z"]) < 5 and "multi-path" in out
    code, out, err, record = run("accept=typical", *options)
    assert code == 0, err
    assert record["summary"]["lossy"] and "(lossy)" in out
