"""Prompts that a gamma is probed on are not those that it is measured on."""

from pathlib import Path

import pytest

from specbench.config.schema import RunConfig
from specbench.errors import UserError
from specbench.experiment import drafting_plan
from specbench.experiment.probed_rows import rows_to_read, split_examples
from specbench.tasks import Example
from tests.support.calls import called


def config(gamma: int | str, limit: int | None) -> RunConfig:
    made = RunConfig(gamma=gamma, limit=limit)
    made.task.name = "rows"
    return made


@pytest.mark.parametrize(
    ("limit", "rows", "measured", "probed"),
    [
        (60, 300, 60, 64),  # there are more rows than are measured
        (None, 300, 263, 37),  # all would be measured: one in eight is not
        (298, 300, 263, 37),
        (2, 3, 2, 1),
        (None, 2, 1, 1),
        (None, 2000, 1936, 64),
    ],
)
def test_none_is_measured_and_probed_on(limit: int | None, rows: int, measured: int, probed: int) -> None:
    for gamma in ("auto", "adaptive"):
        asked = config(gamma, limit)
        examples = [Example(index, "", "") for index in range(rows)][: rows_to_read(asked)]
        first, others = split_examples(asked, examples)
        assert (len(first), len(others)) == (measured, probed)
        assert [one.index for one in first] == list(range(measured))
        assert not {one.index for one in first} & {one.index for one in others}


def test_a_number_takes_no_prompt_away() -> None:
    for gamma in (3, "heuristic"):
        asked = config(gamma, 2)
        assert rows_to_read(asked) == 2
        examples = [Example(index, "", "") for index in range(2)]
        assert split_examples(asked, examples) == (examples, [])


def test_one_row_cannot_serve_for_both() -> None:
    with pytest.raises(UserError, match="gamma=auto: it is probed on prompts that are not measured, and task=rows has"):
        split_examples(config("auto", None), [Example(0, "", "")])


@pytest.mark.full
def test_a_run_probes_on_prompts_that_it_does_not_measure(
    folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting_plan, "CANDIDATES", (1, 2))
    monkeypatch.setattr(drafting_plan, "ROUNDS", (2, 2))
    scored, agreements = [], drafting_plan.agreements

    def spied(target, drafts, prompt, *rest):  # type: ignore[no-untyped-def]
        scored.append(prompt.source)
        return agreements(target, drafts, prompt, *rest)

    monkeypatch.setattr(drafting_plan, "agreements", spied)
    argv = [
        "run", f"target.path={folders['t5']}", f"draft.path={folders['t5-draft']}", "task=ende",
        f"task.path={folders['rows']}", f"results={tmp_path}", "dtype=float32", "device=cpu", "engine=eager",
        "max_new_tokens=8", "gamma=auto", "warmup=1",
    ]  # fmt: skip
    code, out, err, record = called(argv, tmp_path, capfd)
    assert code == 0 and "gamma=auto is probed on 1 more, which are not measured" in out + err
    assert [prompt["index"] for prompt in record["prompts"]] == [0, 1]  # of three rows
    assert len(scored) == 1 and record["summary"]["prompts"] == 2
