"""`--help`: every key with the help that stands beside it in its dataclass, and nothing written twice."""

from dataclasses import dataclass, fields
from typing import Any

import pytest

from specbench.cli import main
from specbench.cli.usage import COMMON, usage
from specbench.config.draft import DraftConfig
from specbench.config.draft_keys import DRAFT_KINDS, kinds_with
from specbench.config.keys import fresh, key, keys_of
from specbench.config.model import ModelConfig
from specbench.config.rules import RULE_OF, RULES
from specbench.config.schema import RunConfig
from specbench.config.verbs import UNUSED, BeamConfig, BenchConfig, ChooseConfig, LoadConfig, refused
from specbench.train.recipe_schema import Recipe

Capture = pytest.CaptureFixture[str]
SCHEMAS: dict[str, type[Any]] = {
    "run": RunConfig, "sweep": RunConfig, "alpha": ChooseConfig, "recommend": ChooseConfig,
    "recommend --validate": ChooseConfig, "recommend --load": LoadConfig, "bench": BenchConfig,
    "bench beam": BeamConfig, "train": Recipe,
}  # fmt: skip


@pytest.mark.parametrize("schema", dict.fromkeys(SCHEMAS.values()), ids=lambda schema: schema.__name__)
def test_every_key_has_help(schema: type[Any]) -> None:
    assert [one.name for one in keys_of(schema) if not one.about] == []


def helped(capfd: Capture, *words: str) -> str:
    assert main([*words, "--help"]) == 0
    return capfd.readouterr().out


@pytest.mark.parametrize("verb", SCHEMAS)
def test_help_names_every_key_of_the_verb(verb: str, capfd: Capture) -> None:
    """Each in `--help`, or, of a run, in that of every kind of draft, or of the rule, that has it."""
    out = helped(capfd, *verb.split())
    said = " ".join(out.split())
    of_kinds = {kind: helped(capfd, "run", f"draft.kind={kind}") for kind in DRAFT_KINDS}
    of_rules = {rule: helped(capfd, "run", f"accept={rule}") for rule in RULES}
    shared = {one.name for one in (*fields(DraftConfig), *fields(ModelConfig))}
    for one in keys_of(SCHEMAS[verb]):
        top, _, name = one.name.partition(".")
        if SCHEMAS[verb] is RunConfig and top == "draft" and name not in shared:
            assert kinds_with(name) and "draft=NAME --help" in out and f" {one.name}=" not in said
            assert [kind for kind in DRAFT_KINDS if f"\n  {one.name}=" in of_kinds[kind]] == kinds_with(name)
            continue
        if SCHEMAS[verb] is RunConfig and top == "accept" and name in RULE_OF:
            assert "accept=NAME --help" in out and f" {one.name}=" not in said
            assert [rule for rule in RULES if f"\n  {one.name}=" in of_rules[rule]] == [RULE_OF[name]]
            continue
        if (one.verbs and verb not in one.verbs) or one.name in UNUSED.get(verb, ()):
            assert f"\n  {one.name}=" not in out
        elif verb in UNUSED and top in refused(verb):
            assert f" {top}," not in said.partition("as in `specbench run --help`")[2]
        else:
            assert f" {one.name}=" in said or f" {top}," in said or f" {top} " in said or f"{top}.*" in said, one.name


@pytest.mark.parametrize("verb", [verb for verb in SCHEMAS if SCHEMAS[verb] not in (RunConfig, Recipe)] + ["certify"])
def test_a_verb_explains_what_most_commands_set(verb: str, capfd: Capture) -> None:
    """Without a second `--help`; the rest is named."""
    said = f" {' '.join(helped(capfd, *verb.split()).split())}"
    assert " target=t5-mini OWNER/NAME[@REVISION] of the hub, ./FOLDER, or" in said
    assert " device=auto cpu | cuda | cuda:N | mps | auto: cuda if there is one " in said
    assert "as in `specbench run --help`: target, draft, task" in said


def test_a_key_and_its_help_are_written_once() -> None:
    @dataclass
    class Nested:
        depth: float = key(0.5, "how deep it is")

    @dataclass
    class Config:
        width: int = key(3, "how wide it is")
        names: list[str] = fresh(lambda: ["a", "b"], "what it is called")
        other: int | None = key(None, "for another verb", verbs=("other",))
        nested: Nested = fresh(Nested, "its inside")

    said = usage("measure", "Measure it.", Config)
    assert said.startswith("usage: specbench measure [key=value ...]\n\nMeasure it.\n")
    for line in ("width=3 how wide", "names=[a,b] what it", "nested.depth=0.5 how deep"):
        assert line in " ".join(said.split())
    assert "for another verb" not in said


def test_a_draft_repeats_no_key_of_the_target(capfd: Capture) -> None:
    out = helped(capfd, "run")
    assert "target.device_map=" in out and "draft.device_map=" not in out and "draft.*" in out
    own = helped(capfd, "run", "draft=t5-nano")
    assert "draft.*" in own and "draft.device_map=" not in own and "draft.top_tokens=" in own


def test_what_most_runs_set_comes_first(capfd: Capture) -> None:
    out = helped(capfd, "run")
    first, others = out.split("\nall others")
    keys = {line.split("=")[0].strip() for line in first.splitlines() if line.startswith("  ") and line[2] != " "}
    assert keys == set(COMMON) and len(first.splitlines()) < 35
    assert not [key for key in COMMON if f"\n  {key}=" in others] and len(out.splitlines()) < 130


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["draft=lookup"], "draft.match=3"),
        (["draft=pass"], "draft.*"),  # whose kind has the options of a model
        (["--draft", "retrieval-grow"], "draft.grow=false"),  # a choice, of the kind retrieval
        (["draft=early-exit,cascade"], "draft.layers=1"),
        (["draft=./folder"], "draft.window="),
        (["gamma=3", "accept=typical"], "accept.epsilon=0.09"),
        (["accept=exact"], "accept=exact has no options of its own"),
    ],
)
def test_help_of_a_draft_and_of_a_rule(words: list[str], said: str, capfd: Capture) -> None:
    out = helped(capfd, "run", *words)
    assert said in out and "target.path" not in out and len(out.splitlines()) < 35


@pytest.mark.parametrize("word", ["draft=lokup", "draft.kind=lokup", "accept=typcal"])
def test_help_of_what_is_not_there(word: str, capfd: Capture) -> None:
    assert main(["run", word, "--help"]) == 2
    assert capfd.readouterr().err.startswith(f"specbench: {word}: ")
