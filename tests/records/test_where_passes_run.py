"""Tables say where the passes of a record ran, from its config: it is where they ran."""

from pathlib import Path

import pytest

from specbench.algorithm import decoding
from specbench.algorithm.decoding import Passes, WholeInCalls
from specbench.kernels import is_available
from specbench.records.passes_run import IN_C, IN_PYTHON, passes_run
from tests.support.calls import called, small_run

pytestmark = [
    pytest.mark.skipif(not is_available(), reason="no C compiler"),
    pytest.mark.usefixtures("captured_once"),
]

SAMPLED = "sampling.temperature=1"
QUANTISED = "draft.kind=quantised"
CASES = {"accept=onehot": IN_C, QUANTISED: IN_C, "draft.confidence=0.1": IN_PYTHON}
MORE = {
    "accept=exact": IN_C, f"{SAMPLED} sampling.top_k=5": IN_C, f"{SAMPLED} accept=onehot": IN_C,
    f"{SAMPLED} sampling.min_p=0.1": IN_PYTHON,
    "accept=block": IN_C, "accept=match": IN_C, f"{SAMPLED} accept=block": IN_C,
    f"{SAMPLED} accept=match": IN_C, f"{SAMPLED} accept=lenient": IN_C, "accept=lenient": IN_C,
    "accept=typical": IN_C, "gamma=adaptive": IN_PYTHON,
    "sampling.repetition_penalty=1.2": IN_PYTHON, "batch=2": IN_PYTHON, "engine=static": IN_PYTHON,
}  # fmt: skip

# Records that do not say where their passes ran are older than these rules in C.
SINCE_THEN_IN_C = {
    "accept=lenient", *(f"{SAMPLED} accept={rule}" for rule in ("onehot", "block", "match", "lenient")),
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "where"),
    [*CASES.items(), *(pytest.param(*one, marks=pytest.mark.full) for one in MORE.items())],
)
def test_a_record_says_where_its_passes_ran(
    words: str, where: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    found: list[Passes] = []
    original = decoding.passes_of

    def passes_of(*given: object) -> Passes:
        found.append(original(*given))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(decoding, "passes_of", passes_of)
    argv = small_run(folders, tmp_path, "engine=native", "limit=2", "warmup=0", *words.split())
    argv = [word for word in argv if not (words == QUANTISED and word.startswith("draft.path"))]
    code, _, err, record = called(argv, tmp_path, capfd)
    assert code == 0, err
    assert isinstance(found[-1], WholeInCalls) == (where == IN_C)  # before come the proof at T = 0 and probes
    summary = record["summary"]
    assert summary["passes_run"] == found[-1].where and (summary["passes_run"] == IN_C) == (where == IN_C)
    older = {key: value for key, value in summary.items() if key != "passes_run"}
    assert passes_run(summary, record["config"]) == found[-1].where
    formerly = IN_PYTHON if words in SINCE_THEN_IN_C else where
    assert passes_run(older, record["config"]) == formerly
