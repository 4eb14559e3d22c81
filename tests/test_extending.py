"""What another package adds by entry points: the example of docs/, installed beside specbench, listed and run."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from specbench.algorithm.acceptance.base import Proposal, Verdict
from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.draft import Draft, DraftSession, require_base
from specbench.config.paths import PACKAGE
from specbench.conformance import NotConforming, check_draft, check_rule
from specbench.errors import UserError
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling
from tests.support.decode import speculative
from tests.support.toy import PROMPT, VOCABULARY, ToyModel, random_table

EXAMPLE = PACKAGE.parent / "docs" / "extension"
SCRIPT = """
import contextlib, io, json, sys
import specbench_example.draft as example, specbench_example.rule
from specbench.conformance import check_draft
from specbench.conformance import check_rule
from specbench.engine.session import Prompt
import torch
check_rule(specbench_example.rule.accept_cautiously)
check_draft(example.RepeatDraft(2, 5, torch.device("cpu")), 5, Prompt((), (0, 3)), [1, 1, 2])
from specbench.cli import main
outcomes = []
for argv in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(argv)
    outcomes.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(outcomes))
"""
SMALL = ["device=cpu", "dtype=float32", "engine=eager", "max_new_tokens=6", "warmup=0"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example as an installer lays it out: the package, and its entry points among the metadata."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "specbench_example").symlink_to(EXAMPLE / "specbench_example")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    metadata = folder / "specbench_example-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def outcomes(site: Path, *commands: list[str]) -> list[tuple[int, str, str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(PACKAGE.parent)])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(commands), env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [tuple(one) for one in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.full
def test_the_example_package_is_listed_and_runs(site: Path, tmp_path: Path) -> None:
    picked = ["target=my-t5", "draft=repeat", "draft.times=2", "accept=cautious", "task=greetings", "gamma=2"]
    run = ["run", *picked, *SMALL, f"results={tmp_path}"]
    ran, sampled, refused, usage, of_draft, *listed = outcomes(
        site, run, [*run, "sampling.temperature=1"], [*run, "draft.times=0"], ["run", "--help"],
        ["run", "draft=repeat", "--help"],
        *(["list", group, "--format", "json"] for group in ("target", "draft", "task", "accept")),
    )  # fmt: skip
    assert ran[0] == 0, ran[2]
    assert "task greetings, 2 prompts" in ran[2] and "my-t5" in ran[1] and "BLEU" in ran[1]
    assert sampled[0] == 0, sampled[2]
    assert refused[0] == 2 and "draft.times=0: must be at least 1" in refused[2]
    assert all(name in usage[1] for name in ("my-t5", "greetings", "cautious", "repeat"))
    assert "how often the last token" in of_draft[1]
    for (code, out, _), name in zip(listed, ("my-t5", "repeat", "greetings", "cautious"), strict=True):
        (choice,) = [one for one in json.loads(out) if one["name"] == name]
        assert code == 0 and choice["needs"] == "now" and "specbench-example" in choice["note"]


@pytest.mark.slow
def test_the_example_installs(tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    if subprocess.run([*install, str(tmp_path), str(EXAMPLE)], capture_output=True).returncode:
        pytest.skip("the build backend is not installed")
    assert (tmp_path / "specbench_example" / "greetings.jsonl").is_file()
    assert outcomes(tmp_path, ["list", "draft"])[0][0] == 0


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("rule", [accept_exact, accept_block])
def test_our_own_rules_conform(rule: object) -> None:
    check_rule(rule)  # type: ignore[arg-type]


@pytest.mark.statistical
def test_a_lossy_rule_is_caught() -> None:
    def all_of_it(p, q, drafted, generator):  # type: ignore[no-untyped-def]
        return Verdict.chain(len(drafted), int(torch.multinomial(p[-1], 1, generator=generator)))

    with pytest.raises(NotConforming, match="not drawn from the target"):
        check_rule(all_of_it)


class Wrong(Draft, DraftSession):
    """A right draft but for one thing."""

    operations = 0.0

    def __init__(self, fault: str) -> None:
        self.inner, self.fault = ModelDraft(ToyModel(random_table(2)), VOCABULARY), fault

    def start(self, *given):  # type: ignore[no-untyped-def]
        self.session = self.inner.start(*given)
        return self

    def propose(self, tokens, gamma, generator):  # type: ignore[no-untyped-def]
        tokens, q, *_ = self.session.propose(tokens, gamma, generator)
        if self.fault == "greedy":
            tokens = [int(q[0].argmax()), *tokens[1:]]
        return Proposal(tokens, {"sums": q * 2, "fewer rows": q[:1], "another q": q.flip(-1)}.get(self.fault, q))

    def rollback(self, length):  # type: ignore[no-untyped-def]
        self.session.rollback(length)

    def score(self, tokens, prefix_length):  # type: ignore[no-untyped-def]
        scored = self.session.score(tokens, prefix_length)
        return scored.roll(1, 0) if self.fault == "shifted score" else scored


@pytest.mark.statistical
@pytest.mark.parametrize("fault", ["", "sums", "fewer rows", "greedy", "another q", "shifted score"])
def test_a_draft_whose_q_is_wrong_is_caught(fault: str) -> None:
    if not fault:
        check_draft(Wrong(fault), VOCABULARY, PROMPT, [1, 2, 0, 1])
        return
    with pytest.raises(NotConforming):
        check_draft(Wrong(fault), VOCABULARY, PROMPT, [1, 2, 0, 1])


def test_a_class_without_the_base_class_is_refused_by_name() -> None:
    """It would lack the defaults, and a method whose name is misspelt would be a feature that is silently off."""

    class Bare:
        def propose(self, tokens, gamma, generator):  # type: ignore[no-untyped-def]
            return Proposal([])

    class Starts(Draft):
        operations = 0.0

        def start(self, *_):  # type: ignore[no-untyped-def]
            return Bare()

    with pytest.raises(UserError, match="^draft: Bare must extend specbench.algorithm.draft.DraftSession, which has"):
        speculative(
            ToyModel(random_table(1)), Starts(), PROMPT, gamma=2, sampling=Sampling(), max_new_tokens=3,
            generator=torch.Generator(),
        )  # fmt: skip
    with pytest.raises(UserError, match="^draft: Bare must extend specbench.algorithm.draft.Draft, which has"):
        require_base(Bare(), Draft, "draft")
