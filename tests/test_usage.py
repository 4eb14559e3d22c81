"""`--help`: every key with the help that stands beside it in its dataclass, and nothing written twice."""

from dataclasses import dataclass
from typing import Any

import pytest

from specbench.cli import main
from specbench.cli.usage import usage
from specbench.config.keys import fresh, key, keys_of
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


@pytest.mark.parametrize("verb", SCHEMAS)
def test_help_names_every_key_of_the_verb(verb: str, capfd: Capture) -> None:
    assert main([*verb.split(), "--help"]) == 0
    out = capfd.readouterr().out
    said = " ".join(out.split())
    for one in keys_of(SCHEMAS[verb]):
        top = one.name.partition(".")[0]
        if (one.verbs and verb not in one.verbs) or one.name in UNUSED.get(verb, ()):
            assert f"\n  {one.name}=" not in out
        elif verb in UNUSED and top in refused(verb):
            assert f" {top}," not in said.partition("as in `specbench run --help`")[2]
        else:
            assert f" {one.name}=" in said or f" {top}," in said or f" {top} " in said or f"{top}.*" in said, one.name


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
    assert main(["run", "--help"]) == 0
    out = capfd.readouterr().out
    assert "target.device_map=" in out and "draft.device_map=" not in out and "draft.layers=1" in out
