"""Models and data sets of the hub, served by a stand-in on the loopback: in a word, pinned, and a hub's faults."""

import json
from pathlib import Path

import pytest
import yaml

from specbench.config.catalogue import held
from specbench.config.paths import conf_dir
from tests.support import commands, published
from tests.support.hub import NEWEST, Hub, Outcome, Repository, run_all, serve
from tests.support.medusa_files import write as write_medusa

# One fixture runs every command of this file.
pytestmark = pytest.mark.full

Folders = dict[str, Path]
SMALL = ["device=cpu", "dtype=float32", "engine=eager", "max_new_tokens=4", "limit=2"]
RUN = [*SMALL, "warmup=0"]
PUBLISHED = {"eagle": "e" * 40, "medusa": "d" * 40, "hydra": "c" * 40}  # a published layout and its commit
ROWS = b'{"prompt": "the dog sees"}\n{"prompt": "a cat runs under the tree"}\n'
PAIRS = "".join(
    json.dumps({"translation": {"en": f"the {a} dog", "de": f"der {a} hund"}}) + "\n" for a in ("old", "red", "small")
).encode()
CARD = b"""---
configs:
- config_name: de-en
  data_files:
  - {split: test, path: t.jsonl}
  - {split: train, path: t.jsonl}
---
"""
# The documented commands on the hub, and what makes seconds of them here.
DOCUMENTED = {
    "specbench run target=t5-xxl draft=t5-small gamma=7 sampling.temperature=1": RUN,
    "specbench sweep gamma=1,3,5,7 draft=unigram,bigram,t5-small target=t5-large": [*RUN, "gamma=1"],
    "specbench alpha draft=unigram,bigram,t5-small target=t5-large": [*SMALL, "tokens=4"],
}


@pytest.fixture(scope="module")
def outcomes(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Every command of this file, by a word or by itself, run in one process."""
    root = tmp_path_factory.mktemp("hub")
    hub = Hub()
    for name in ("target", "gated", "limited", "broken", "cut", "full"):
        fault = name if name in ("gated", "limited", "broken", "cut") else None
        hub.model(f"owner/{name}", folders["llama"], fault=fault)
    hub.model("owner/draft", folders["llama-draft"], commit="b" * 40)
    layer = published.write(root / "eagle", *published.eagle())
    hub.model("owner/eagle", layer, commit="e" * 40)
    (root / "medusa").mkdir()
    write_medusa(root / "medusa")
    hub.model("owner/medusa", root / "medusa", commit="d" * 40)
    hub.model("owner/hydra", published.write(root / "hydra", *published.hydra(), "hydra_lm_head.pt"), commit="c" * 40)
    hub.model("owner/cut-eagle", layer, fault="cut")
    hub.dataset("owner/rows", {"test.jsonl": ROWS})
    hub.dataset("owner/cut-rows", {"test.jsonl": ROWS * 9000}, fault="cut")
    hub.dataset("owner/gated-rows", {"test.jsonl": ROWS}, fault="gated")
    for name in ("t5-xxl", "t5-small", "t5-large"):
        model = held("model")[name].content
        hub.model(model["hub"], folders["t5"], commit=model["revision"])
    ende = yaml.safe_load((conf_dir() / "task" / "ende.yaml").read_text())
    hub.repositories[f"datasets/{ende['hub']}"] = Repository({"t.jsonl": PAIRS, "README.md": CARD}, ende["revision"])
    (root / "rows.jsonl").write_bytes(ROWS)
    rows, results = [f"task={root}/rows.jsonl"], [f"results={root}/results"]
    own = {
        "newest": ["run", "target=owner/target", "draft=owner/draft", *rows, *RUN],
        "pinned": ["run", f"target=owner/target@{NEWEST}", f"draft=owner/draft@{'b' * 40}", *rows, *RUN],
        "branch": ["run", "target=owner/target@main", "draft=random", *rows, *RUN],
        "list": ["alpha", "target=owner/target", f"draft=[owner/draft@main,random,{folders['llama-draft']}]", *rows,
                 "sampling.temperature=0", "tokens=4", *SMALL],
        "cascade": ["run", "target=owner/target", "draft=cascade", "draft@draft.via=owner/draft",
                    "draft@draft.inner=random", *rows, *RUN],
        **{kind: ["run", "target=owner/target", f"draft={kind}", f"draft.hub=owner/{kind}", "draft.revision=main",
                  *rows, *RUN] for kind in PUBLISHED},
        "cut-eagle": ["run", "target=owner/target", "draft=eagle", "draft.hub=owner/cut-eagle", *rows, *RUN],
        "no-medusa": ["run", "target=owner/target", "draft=medusa", "draft.hub=owner/draft", *rows, *RUN],
        "no-hydra": ["run", "target=owner/target", "draft=hydra", "draft.hub=owner/draft", *rows, *RUN],
        "no-eagle": ["run", "target=owner/target", "draft=eagle", "draft.hub=owner/draft", *rows, *RUN],
        "rows": ["run", "target=owner/target", "draft=random", "task=owner/rows", *RUN],
        **{word: ["run", f"target=owner/{word}", "draft=random", *rows, *RUN]
           for word in ("gated", "limited", "broken", "cut", "nothing", "target@nope")},
        **{word: ["run", "target=owner/target", "draft=random", f"task=owner/{word}", *RUN]
           for word in ("cut-rows", "gated-rows", "no-rows")},
        "full": ["no space", "run", "target=owner/full", "draft=random", *rows, *RUN],
    }  # fmt: skip
    documented = {one.line: one.argv for one in commands.documented() if one.line in DOCUMENTED}
    all_of_them = own | {line: [*argv, *DOCUMENTED[line]] for line, argv in documented.items()}
    with serve(hub):
        done = run_all(hub, root / "home", [[*argv, *results] for argv in all_of_them.values()])
    return dict(zip(all_of_them, done, strict=True))


def record_of(outcome: Outcome) -> dict[str, dict[str, dict[str, str]]]:
    file = next(line for line in outcome.out.splitlines() if line.startswith("record: ")).split()[1]
    record: dict[str, dict[str, dict[str, str]]] = json.loads(Path(file).read_text())
    return record


@pytest.mark.full
def test_the_newest_commit_is_recorded_and_the_words_that_pin_it_are_printed(outcomes: dict[str, Outcome]) -> None:
    newest, pinned = outcomes["newest"], outcomes["pinned"]
    assert newest.code == pinned.code == 0, newest.err + pinned.err
    assert f"owner/target is at commit {NEWEST[:12]}; to pin it: target=owner/target@{NEWEST}" in newest.err
    assert f"to pin it: draft=owner/draft@{'b' * 40}" in newest.err
    assert "to pin it" not in pinned.err
    assert "already there" in pinned.out  # one config, one record
    config = record_of(newest)["config"]
    assert (config["target"]["hub"], config["target"]["revision"]) == ("owner/target", NEWEST)
    assert config["draft"]["revision"] == "b" * 40


def test_a_branch_is_recorded_as_its_commit(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["branch"]
    assert outcome.code == 0 and f"target=owner/target@{NEWEST}" in outcome.err
    assert record_of(outcome)["config"]["target"]["revision"] == NEWEST


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_published_draft_is_read_from_the_hub(kind: str, outcomes: dict[str, Outcome]) -> None:
    outcome, commit = outcomes[kind], PUBLISHED[kind]
    assert outcome.code == 0, outcome.err
    assert f"to pin it: draft.revision={commit}" in outcome.err
    record = record_of(outcome)
    assert (record["summary"]["draft"], record["summary"]["identical"]) == (f"{kind}-{kind}", 1.0)
    assert record["config"]["draft"]["revision"] == commit
    assert record["summary"]["drafted_per_pass"]


@pytest.mark.parametrize("word", ["list", "cascade", "rows"])
def test_a_word_stands_wherever_a_name_does(word: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[word].code == 0, outcomes[word].err
    if word == "rows":
        assert "to pin it: task.revision=" in outcomes[word].err


SAID = {
    "gated": (
        2,
        "target: owner/gated is gated: ask for access on its page on the hub, then log in with 'hf auth login'",
    ),
    "limited": (1, "target: the model hub refused owner/limited for now (HTTP 429); run it again later"),
    "broken": (1, "target: the model hub refused owner/broken for now (HTTP 503); run it again later"),
    "cut": (1, "target: the download of owner/cut was cut off; run the same command again"),
    "cut-eagle": (1, "draft: the download of owner/cut-eagle was cut off; run the same command again"),
    "no-medusa": (2, "draft.hub=owner/draft: no published medusa heads that can be read; give draft.path"),
    "no-hydra": (2, "draft.hub=owner/draft: no published hydra heads that can be read; give draft.path"),
    "no-eagle": (2, "draft: owner/draft has no tensor fc.weight: it is no checkpoint of draft=eagle"),
    "nothing": (2, "target: the hub has no repository owner/nothing; check its name, or log in"),
    "target@nope": (2, "target: owner/target has no revision nope; leave it out to take the newest commit"),
    "full": (1, "target: no space left on the disk for owner/full in "),
    "cut-rows": (1, "task=prompts: the download of owner/cut-rows was cut off; run the same command again"),
    "gated-rows": (2, "task: owner/gated-rows is gated: ask for access"),
    "no-rows": (2, "task: the hub has no repository owner/no-rows"),
}


@pytest.mark.parametrize("word", SAID)
def test_a_fault_of_the_hub_is_one_line(word: str, outcomes: dict[str, Outcome]) -> None:
    code, said = SAID[word]
    outcome = outcomes[word]
    *before, last = outcome.err.splitlines()
    assert (outcome.code, last[: len(said) + 11]) == (code, f"specbench: {said}")
    assert all("to pin it" in line or line.startswith(("run ", "loading")) for line in before), outcome.err


@pytest.mark.parametrize("line", DOCUMENTED)
def test_readmes_commands_on_the_hub(line: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[line].code == 0, outcomes[line].err
