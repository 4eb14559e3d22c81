"""Every command of README, docs, the Makefile, error lines, --help, `list` and conf/ is run, or composed.

Those that need a GPU, the hub, weights or hours are composed.

A measuring verb is run once, with its command in README; its other commands, which differ in keys that are made small
here anyway, are composed, and run by the slow test.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from specbench.cli import VERBS, main
from specbench.cli import choices as picked
from specbench.config.paths import shipped
from specbench.config.verbs import PEERS
from specbench.records.catalog import digest
from specbench.train.recipe_schema import Recipe
from tests.support import commands, engine_samples, sweeps
from tests.support.kept_records import copy_of, newest

Capture = pytest.CaptureFixture[str]
DOCUMENTED = commands.documented()
PRINTED = commands.printed()
Usable = dict[str, set[str]]
MEASURING = ("run", "sweep", "alpha", "recommend", "recommend --validate", "recommend --load", "bench", "bench beam")
MODELS = {
    "target.path=FOLDER": "t5-mini", "draft.path=FOLDER": "t5-nano", "distill.target=TARGET": "t5-mini",
    "distill.target=FOLDER": "t5-mini", "distill.target=CHAT_MODEL": "gpt-mini", "model.start_from=DRAFT": "gpt-nano",
}  # fmt: skip
PLACEHOLDERS = {
    "gamma=A,B": "gamma=1,3",
    "target=NAME": "target=t5-mini",
    "data.path=[FILE]": "data.path=[prompts.jsonl]",
}
# One command of each measuring verb that is always run; it is one of README's.
FIRST = [
    one
    for one in DOCUMENTED
    if one.line
    in (
        "specbench sweep experiment=table2-mini",
        "specbench alpha draft=t5-nano,bigram,unigram",
        "specbench recommend draft=t5-nano,bigram accept=exact,block sampling.temperature=1",
        "specbench recommend --validate draft=t5-nano,bigram rounds=24",
        "specbench recommend --load draft=t5-nano --for vllm",
        "specbench bench limit=8 repeats=3 gammas=2,4,7,10",
        "specbench bench beam limit=24 u=4,8,16 task=ende-mini-sentences",
    )
]
# Seconds instead of minutes: what is left is a run of the shipped pair over a prompt.
SMALL = ["limit=1", "max_new_tokens=16", "dtype=float32", "device=cpu", "threads=1"]
SMALLER = {
    "run": ["engine=eager", "warmup=0"],
    "sweep": ["engine=eager", "warmup=0"],
    "alpha": ["engine=eager", "tokens=4"],
    "recommend": ["engine=eager", "tokens=4", "resamples=100", "gammas=[1,2]", "rounds=2", "verify=1", "warmup=0"],
    "recommend --validate": ["engine=eager", "tokens=4", "resamples=100", "gammas=[1]", "rounds=2", "repeats=1"],
    "recommend --load": ["engine=eager", "gammas=[1]", "rounds=2", "requests=20", "limit=6", "batch=1,2"],
    "bench": ["engine=eager", "gammas=[2]", "parts=a", "repeats=1"],
    "bench beam": ["gamma=[1]", "width=2", "u=[2]"],
}


@pytest.fixture(scope="module", autouse=True)
def composed_once(short_probes: None) -> Iterator[None]:
    """The choices of a group are composed once for all the commands that list them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picked, "choices", cache(picked.choices))
        patch.setattr("specbench.cli.listing.choices", picked.choices)
        yield


@pytest.fixture(scope="module")
def usable() -> Usable:
    """The choices that need nothing, by their group."""
    groups = ("target", "draft", "task", "experiment")
    return {group: {one.name for one in picked.choices(group, None) if one.needs == picked.NOW} for group in groups}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with some records, rows and a baseline, which the commands are run in."""
    folder = tmp_path_factory.mktemp("workplace")
    for results in ("results", "fresh"):
        (folder / results / "kept").mkdir(parents=True)
        (folder / results / "runs").mkdir()
    for head in (newest(draft="bigram", temperature=0, gamma=gamma) for gamma in (3, 7)):
        copy_of(head, folder / "results")
    for name in ("ROWS.jsonl.gz", "PROMPTS.jsonl.gz", "FILE"):
        shutil.copy(shipped("data", "sum-mini.jsonl.gz"), folder / name)
    for name, form in (("METRICS.txt", "vllm-metrics"), ("SERVER.log", "vllm-log"), ("RESPONSES.json", "sglang")):
        (folder / name).write_text(engine_samples.FILES[form])
    (folder / "BEFORE.txt").write_text(engine_samples.vllm_metrics(engine_samples.REQUESTS[:1]))
    (folder / "AFTER.txt").write_text(engine_samples.vllm_metrics())
    (folder / "prompts.jsonl").write_text('{"prompt": "translate English to German: The dog sleeps."}\n')
    (folder / "mine" / "target").mkdir(parents=True)
    (folder / "mine" / "target" / "chat-7b.yaml").write_text("{name: chat-7b, hub: OWNER/NAME, revision: COMMIT}\n")
    before = Path.cwd()
    os.chdir(folder)
    with pytest.MonkeyPatch.context() as patch:
        sweeps.quieten(patch)
        assert main(["run", "draft=random", "results=fresh", *SMALL, *SMALLER["run"]]) == 0
    assert main(["compare", "--baseline", "results/baseline.jsonl", "--results", "fresh", "--write"]) == 0
    assert main(["compare", "--history", "--write", "--kept"]) == 0
    yield folder
    os.chdir(before)


def filled(command: commands.Command) -> list[str]:
    """The words of a command with its placeholders filled in."""
    words = command.argv
    # Not `last`, which may be a batch: explain is of one prompt at a time.
    explained = digest(newest(draft="bigram", temperature=0, gamma=3).run_id)
    run_of = {"RUN": explained if words[0] == "explain" else "last", "DIR": "mine"}
    if words == ["compare", "RUN", "RUN"]:  # two of the same prompts
        return ["compare", explained, digest(newest(draft="bigram", temperature=0, gamma=7).run_id)]
    for place, word in enumerate(words):
        if word in MODELS:
            words[place] = f"{word.partition('=')[0]}={shipped('models', MODELS[word])}"
        words[place] = PLACEHOLDERS.get(word, run_of.get(word, words[place]))
    return words


def mode(words: list[str]) -> str:
    """The verb of a command line, with what makes it another measurement: 'recommend --validate', 'bench beam'."""
    if words[0] == "recommend" and (modes := [word for word in ("--validate", "--load") if word in words]):
        return f"recommend {modes[0]}"
    return "bench beam" if words[:2] == ["bench", "beam"] else words[0]


def needs_more(words: list[str], usable: Usable) -> bool:
    """Whether a command needs the hub, a GPU, a model or a package that is not here."""
    text = " ".join(words)
    peers = [word.removeprefix("peers=").split(",") for word in words if word.startswith("peers=")]
    if any(find_spec(package) is None for named in peers for peer in named for package in PEERS[peer][1]):
        return True
    if any(mark in text for mark in ("device=cuda", "hub=ID", "chat_template", "tp_plan", "CHAT_MODEL")):
        return True
    for word in words:
        group, _, value = word.partition("=")
        if group == "experiment" and "mini" not in value:
            return True
        own_rows = group == "task" and "task.path=" in text
        if group in usable and not own_rows and not set(value.strip("[]").split(",")) <= usable[group]:
            return True
    return False


def run(command: commands.Command, usable: Usable, monkeypatch: pytest.MonkeyPatch, full: bool = False) -> None:
    verb, *words = filled(command)
    if verb == "train":
        from specbench.train.recipe_checks import check

        def prepared(recipe: Recipe, composed_from: str) -> str:
            assert commands.exists("recipe", composed_from)
            return check(recipe).output

        monkeypatch.setattr("specbench.train.recipe.train", prepared)
    elif verb in ("certify", "server", "fetch"):  # their texts, servers and hubs are made in tests of their own
        words += ["--cfg", "job"]
    elif verb in MEASURING and not {"--help", "--cfg"} & set(words):
        here = (full or command in FIRST or verb == "run") and not needs_more(words, usable)
        words += [*SMALL, *SMALLER[mode([verb, *words])]] if here else ["--cfg", "job"]
    assert main([verb, *words]) == 0


def name_of(command: commands.Command) -> str:
    return f"{command.page}: {' '.join(command.line.split())[:70]}"


@pytest.mark.full
@pytest.mark.parametrize("command", DOCUMENTED, ids=name_of)
def test_a_documented_command(
    command: commands.Command, workplace: Path, usable: Usable, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(command, usable, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("command", [one for one in DOCUMENTED if one not in FIRST], ids=name_of)
def test_a_documented_command_in_full(
    command: commands.Command, workplace: Path, usable: Usable, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(command, usable, monkeypatch, full=True)


@pytest.mark.full
@pytest.mark.parametrize("command", PRINTED, ids=name_of)
def test_a_printed_command(
    command: commands.Command, workplace: Path, usable: Usable, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """What an error line, a note or a comment tells a reader to run."""
    verb, *words = filled(command)
    trains = verb == "train" and any(word.startswith("data.path=") for word in words)
    if verb == "list":  # test_listing lists each group
        assert words[0] in (*picked.GROUPS, "--all")
    elif verb in ("report", "tables"):  # which tests/report runs; all records take seconds
        with contextlib.suppress(SystemExit):
            main([verb, "--help"])
        assert {word for word in words if word.startswith("--")} <= set(
            re.findall(r"--[a-z-]+", capsys.readouterr().out)
        )
    elif trains:
        kinds = {"specdec": ["t5-mini"], **{name: ["gpt-mini"] for name in ("dflash", "dspark", "pard")}}
        recipe = next(word for word in words if word.startswith("recipe=")).removeprefix("recipe=")
        for target in kinds.get(recipe, ["t5-mini", "gpt-mini"]):
            line = re.sub(r"distill.target=\w+", f"distill.target=shipped:models/{target}", command.line)
            run(commands.Command(command.page, line), usable, monkeypatch)
    elif verb not in (*MEASURING, "train") or "--help" in words:
        run(command, usable, monkeypatch)
    else:  # its keys are tried with the commands of the pages
        assert main([verb, *words, *([] if "--dry-run" in words else ["--cfg", "job"])]) == 0


@pytest.mark.parametrize("verb", VERBS)
def test_help_prints_no_other_command(verb: str, capsys: Capture) -> None:
    with contextlib.suppress(SystemExit):  # argparse ends the process
        main([verb, "--help"])
    about = capsys.readouterr().out.partition("\n\n")[2]  # after the usage of the verb itself
    assert about
    known = {command.line for command in PRINTED}
    for row in re.split(r"\n\n|\n(?= {1,20}\S)", about):  # a continued line begins farther right
        assert set(commands.commands_in(row)) <= known


# Experiments are files whose text is in PRINTED; to list what they need composes each.
@pytest.mark.parametrize("group", [group for group in picked.GROUPS if group != "experiment"])
def test_list_prints_no_other_command(group: str, composed_once: None) -> None:
    choices = picked.choices(group, None)
    known = {command.line for command in PRINTED}
    for choice in choices:
        for line in commands.commands_in(f"{choice.origin} ; {choice.note}"):
            assert line in known or line.startswith("specbench train recipe="), choice
        for recipe in re.findall(r"recipe=([a-z0-9][\w.-]*\w)", f"{choice.origin} {choice.note}"):
            assert commands.exists("recipe", recipe), choice


def test_a_choice_that_is_named_exists() -> None:
    of_training = {"seq2seq", "lm"}
    missing = [
        (where, f"{group}={name}")
        for where, group, name in commands.named_choices()
        if not commands.exists(group, name) and not (group == "task" and name in of_training)
    ]
    assert not missing


@pytest.mark.full
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", sorted({*commands.make_targets()} - {"real"}))  # which wants a model's folder
def test_the_commands_of_make(target: str, workplace: Path, usable: Usable, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in commands.made(target):
        run(command, usable, monkeypatch)


def test_commands_are_found_in_sentences() -> None:
    found = commands.commands_in("train some: specbench train recipe=eagle 'data.path=[A B]', and give draft.path=X")
    assert found == ["specbench train recipe=eagle 'data.path=[A B]'"]
    assert commands.commands_in(
        "'specbench list draft' shows all; `specbench results --by category`; specbench run"
    ) == [
        "specbench list draft",
        "specbench results --by category",
    ]
    with pytest.raises(AssertionError, match="trian is no verb of specbench"):
        commands.commands_in("make them with specbench trian recipe=eagle")


def test_there_are_commands_to_run() -> None:
    assert any("target=OWNER/NAME" in command.line for command in DOCUMENTED)
    assert len(DOCUMENTED) > 40 and {mode(command.argv) for command in FIRST} == {*MEASURING} - {"run"}
    assert {mode(command.argv) for command in DOCUMENTED} >= {*MEASURING, "results", "list", "show", "report", "train"}
    assert len(PRINTED) > 40
    assert {command.argv[0] for command in PRINTED} >= {"train", "sweep", "list", "recommend", "explain", "results"}
    assert {"run", "mini", "beyond", "tables", "bench-gpu"} <= set(commands.make_targets())


def test_the_readme_gives_the_sizes_of_the_cards() -> None:
    readme, shipped = commands.ROOT / "README.md", commands.ROOT / "specbench" / "shipped" / "models"
    first = re.search(r"t5-mini \((\S+)M parameters\) with the draft t5-nano \((\S+)M\)", readme.read_text())
    assert first is not None
    for name, said in zip(("t5-mini", "t5-nano"), first.groups(), strict=True):
        card = (shipped / name / "README.md").read_text()
        size = re.search(r"parameters \| ([\d.]+)M", card)
        assert size is not None and f"{float(size[1]):.1f}" == said
