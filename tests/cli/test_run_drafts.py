"""`specbench run` and `alpha` with every kind of draft that is not a model alone, and their errors."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from specbench.choose.alpha import alpha_folder
from specbench.cli import main
from specbench.report.remarks import remarks
from tests.support.calls import interrupted, newest, refusal, small
from tests.support.captured import fastest_on_a_cpu

Folders = dict[str, Path]
Result = tuple[int, str, dict[str, Any] | None]
Run = Callable[..., Result]
KINDS = ["unigram", "bigram", "ngram", "random", "lookup", "suffix", "quantised", "retrieval", "cascade", "lookahead"]
NAMES = {"quantised": "quantised-8-simulated-cost", "ngram": "3-gram", "cascade": "cascade-bigram-t5-draft"}
needs_suffixes = pytest.mark.skipif(find_spec("pydivsufsort") is None, reason="needs pydivsufsort")


def marked(kinds: list[str]) -> list[Any]:
    return [pytest.param(kind, marks=needs_suffixes) if kind == "retrieval" else kind for kind in kinds]


@pytest.fixture
def run(folders: Folders, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `draft` with small settings; returns (exit code, stderr, the newest record or None)."""

    def call(
        draft: str, *overrides: str, verb: str = "run", kind: str = "t5", without: tuple[str, ...] = ()
    ) -> tuple[int, str, dict[str, Any] | None]:
        is_vertical = "cascade" in draft and "draft.via.path" not in without
        via = [f"draft.via.path={folders[f'{kind}-draft']}"] if is_vertical else []
        own = (f"task.train_path={folders['rows']}", f"draft.cache_dir={tmp_path / 'cache'}")
        code = main([verb, *small(folders, tmp_path, f"draft={draft}", *via, *own, *overrides, kind=kind)])
        return code, capfd.readouterr().err, newest(tmp_path)

    return call


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("kind", marked(KINDS))
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_run_with_each(run: Run, kind: str, temperature: int) -> None:
    code, err, record = run(kind, "gamma=3", f"sampling.temperature={temperature}")
    assert code == 0 and record is not None, err
    summary = record["summary"]
    assert summary["draft"] == NAMES.get(kind, kind) and summary["c"] > 0
    assert summary["identical"] == (1.0 if temperature == 0 else None)
    assert (summary["c_hat"] > 0) == (kind in ("cascade", "lookahead", "quantised"))
    if kind == "random":
        assert summary["alpha"] == pytest.approx(1 / 39, abs=0.03)


@pytest.mark.full
@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("gpt-mini", "medusa"),
        ("gpt-mini", "hydra"),
        ("gpt-mini", "eagle"),
        ("gpt-mini", "eagle3"),
        ("gpt-mini", "mtp"),
        ("gpt-mini", "peagle"),
        ("gpt-mini", "dflash"),
        ("gpt-mini", "dspark"),
        ("gpt-mini", "pard"),
        ("t5-mini", "specdec"),
    ],
)
def test_heads_that_ship_run_on_the_fastest_engine(
    target: str, draft: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main([
        "run", f"target={target}", f"draft={draft}", f"engine={fastest_on_a_cpu()}", "dtype=float32", "device=cpu",
        "limit=1", "max_new_tokens=12", "gamma=3", f"results={tmp_path}",
    ])  # fmt: skip
    record = newest(tmp_path)
    assert code == 0 and record is not None, capfd.readouterr().err
    assert record["summary"]["identical"] == 1.0 and record["summary"]["draft"] == draft


# Drafts for gpt-mini whose weights ship, or that need none.
FOR_GPT = {
    "mtp": (), "peagle": (), "dflash": (), "dspark": (), "pard": (), "suffix": (), "quantised": ("draft.bits=4",),
    "router": ("draft@draft.first=suffix", "draft@draft.second=dflash", "draft.least_match=1"),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("draft", FOR_GPT)
def test_a_sampled_run_proves_its_texts(draft: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = main([
        "run", "target=gpt-mini", f"draft={draft}", *FOR_GPT[draft], "sampling.temperature=1", "dtype=float32",
        "device=cpu", "engine=eager", "limit=5", "max_new_tokens=24", "gamma=3",
        f"results={tmp_path}",
    ])  # fmt: skip
    record = newest(tmp_path)
    assert code == 0 and record is not None, capfd.readouterr().err
    summary = record["summary"]
    assert summary["lossless"] and summary["proof_tokens"] > 40 and summary["proof_outside"] == 0
    assert abs(summary["proof_z"]) < 4 and summary["proof_p"] > 6e-5


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("second", ["medusa", "hydra", "eagle", "eagle3"])
def test_a_router_of_a_copy_and_heads_follows_the_target(
    second: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Passes with copied tokens leave states of the target that the heads need later."""
    code = main([
        "run", "target=gpt-mini", "draft=router", "draft@draft.first=suffix", f"draft@draft.second={second}",
        "draft.least_match=1", "dtype=float32", "device=cpu", "limit=1", "max_new_tokens=24", "gamma=3",
        f"results={tmp_path}",
    ])  # fmt: skip
    record = newest(tmp_path)
    assert code == 0 and record is not None, capfd.readouterr().err
    assert record["summary"]["identical"] == 1.0 and record["summary"]["draft"] == f"router-suffix-{second}"


def test_alpha_bounds_every_router_of_the_parts(run: Run, folders: Folders, tmp_path: Path) -> None:
    second = f"draft.second.path={folders['t5-draft']}"
    code, err, _ = run("router", second, "tokens=60", "sampling.temperature=[0,1]", verb="alpha")
    assert code == 0, err
    (file,) = alpha_folder(tmp_path).glob("*.json")
    document = json.loads(file.read_text())
    alphas = {(row["temperature"], row["draft"]): row["alpha"] for row in document["rows"]}
    for one in document["settings"]:
        (bound,) = one["of_routers"]
        router = next(name for at, name in alphas if at == one["temperature"] and name.startswith("router"))
        alone = [alphas[one["temperature"], name] for name in bound["drafts"]]
        assert max(*alone, alphas[one["temperature"], router]) <= bound["alpha"] + 1e-9 <= sum(alone) + 2e-9
        assert bound["tokens_per_pass"] >= max(bound["alone"]) - 1e-9


def test_eagle_without_weights_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["run", "target=t5-mini", "draft=eagle3", "draft.shipped=nosuch", "dtype=float32", f"results={tmp_path}"]
    assert "no eagle3 weights ship for target=t5-mini; train some" in refusal(command, capfd)


@pytest.mark.full
def test_a_cascade_is_counted_and_shown(run: Run) -> None:
    """alpha is that of the middle model alone, and every level is in the record."""
    _, _, record = run("cascade", "draft.inner.kind=lookup", "draft.inner_gamma=1", "gamma=2", kind="gpt2")
    assert record is not None
    summary = record["summary"]
    assert summary["draft"] == "cascade-lookup-gpt2-draft"
    assert record["config"]["draft"]["inner"]["kind"] == "lookup"
    via = record["config"]["draft"]["via"]
    _, _, alone = run("bigram", "draft.kind=model", f"draft.path={via['path']}", "gamma=2", kind="gpt2")
    assert alone is not None and alone["summary"]["alpha"] == summary["alpha"]
    assert summary["c_hat"] >= alone["summary"]["c_hat"] > 0


@pytest.mark.full
def test_a_cascades_operations_are_those_of_the_recorded_passes(run: Run) -> None:
    """They do not depend on what else the process decoded: warm-up here, and probes and earlier prompts elsewhere."""
    keys = ("draft.inner.kind=lookup", "gamma=4", "limit=3")
    _, _, cold = run("cascade", "warmup=0", *keys, kind="gpt2")
    _, _, warm = run("cascade", "warmup=1", *keys, kind="gpt2")
    assert cold is not None and warm is not None and cold["run_id"] != warm["run_id"]
    assert cold["summary"]["c_hat"] == warm["summary"]["c_hat"]


@pytest.mark.full
def test_the_inner_draft_may_work_inside_the_middle_model(run: Run) -> None:
    code, err, record = run("cascade", "draft.inner.kind=early-exit", "draft.inner.layers=1", "gamma=3")
    assert code == 0 and record is not None, err
    assert record["summary"]["identical"] == 1.0
    code, err, _ = run("cascade", "draft.inner.kind=early-exit", "draft.inner.layers=2")
    assert code == 2 and "draft.inner.layers=2: t5-draft has 1 decoder layers" in err


@pytest.mark.full
def test_layer_skipping_is_searched_for_by_alpha_and_run_with_what_it_found(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, err, record = run("layer-skip", "draft.skip=[mlp0,cross1]", "gamma=2")
    assert code == 0 and record is not None, err
    assert record["summary"]["identical"] == 1.0 and record["summary"]["draft"] == "layer-skip-mlp0-cross1"
    assert 0 < record["summary"]["c_hat"] < 1
    code, err, _ = run("layer-skip", "draft.skip=[auto]", "tokens=30", "searches=7", "search_tokens=20", verb="alpha")
    assert code == 0 and "the best of 7 sets of a greedy search along" in err, err
    words = ("draft.skip=[auto]", "tokens=30", "searches=7", "search_tokens=20")
    monkeypatch.setattr("specbench.choose.skips.search", None)
    code, err, _ = run("layer-skip", *words, verb="alpha")
    assert code == 0 and "the best of 7 sets of a greedy search along" in err, "the same search is not made again"
    (file,) = alpha_folder(tmp_path).glob("*.json")
    found = {row["draft"] for row in json.loads(file.read_text())["rows"]}
    assert all(name.startswith("layer-skip-") and "auto" not in name for name in found)
    code, err, _ = run("layer-skip", "draft.skip=[auto]")
    assert code == 2 and "draft.skip=[auto]: `specbench recommend draft=layer-skip 'draft.skip=[auto]'` searches" in err
    code, err, _ = run("layer-skip", "draft.skip=[mlp9]")
    assert code == 2 and "draft.skip=[mlp9]: mlp9: the target has 2 decoder layers, 0 to 1" in err


@pytest.mark.full
@pytest.mark.parametrize("temperature", [0, 1])
def test_drafts_in_turn_are_written_as_a_cascade(run: Run, folders: Folders, temperature: int) -> None:
    keys = ("draft.horizontal=[lookup,bigram]", "draft.lengths=[2]", "gamma=4", f"sampling.temperature={temperature}")
    code, err, record = run("cascade", *keys, without=("draft.via.path",))
    assert code == 0 and record is not None, err
    summary = record["summary"]
    assert summary["draft"] == "horizontal-lookup-2-bigram" and record["config"]["draft"]["lengths"] == [2]
    assert summary["lossless"] and summary["prediction"] == "by position"


@pytest.mark.full
def test_an_own_corpus_takes_the_place_of_the_training_text(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.report.console.SLOW_S", 0)
    own = tmp_path / "own.jsonl"
    own.write_text('{"en": "a", "de": "die katze rennt"}\n' * 3)
    _, err, first = run("bigram")
    _, again, other = run("bigram", f"draft.corpus={own}")
    assert "reading the training text" in err and "reading the training text" in again
    assert first is not None and other is not None and first["run_id"] != other["run_id"]


@pytest.mark.full
@needs_suffixes
def test_alpha_takes_them_all_at_once(run: Run, folders: Folders, tmp_path: Path) -> None:
    code, err, _ = run("[bigram,ngram,lookup,retrieval]", "draft.order=4", "tokens=60", verb="alpha")
    assert code == 0, err
    (file,) = alpha_folder(tmp_path).glob("*.json")
    rows = json.loads(file.read_text())["rows"]
    assert {row["draft"] for row in rows} == {"bigram", "4-gram", "lookup", "retrieval"}
    assert all(0 <= row["alpha"] <= 1 for row in rows)


@pytest.mark.full
@pytest.mark.parametrize(
    ("draft", "temperature"),
    [
        pytest.param("retrieval-grow", 0, marks=needs_suffixes),
        pytest.param("retrieval-grow", 1, marks=needs_suffixes),
        ("suffix", 1),
        ("router", 0),
    ],
)
def test_a_store_that_grows_is_recorded_and_is_the_same_after_an_interruption(
    run: Run, folders: Folders, monkeypatch: pytest.MonkeyPatch, draft: str, temperature: int
) -> None:
    keys = ["gamma=3", "limit=3", f"sampling.temperature={temperature}"]
    if draft == "router":
        keys += ["draft@draft.first=suffix", f"draft.second.path={folders['t5-draft']}"]
    _, err, whole = run(draft, *keys)
    assert whole is not None, err
    written = [len(prompt["speculative"].tokens) for prompt in whole["prompts"]]
    assert [prompt["grown"] for prompt in whole["prompts"]] == [sum(written[:place]) for place in range(3)]
    assert whole["summary"]["draft"].startswith(draft) and whole["summary"]["grown"] == sum(written[:-1])
    assert whole["summary"]["identical"] == (1.0 if temperature == 0 else None) and whole["summary"]["lossless"]
    assert any("depend on the order of the prompts" in line for line in remarks(whole["summary"]))

    with interrupted(monkeypatch, after=2):
        run(draft, *keys, "force=true")
    _, err, resumed = run(draft, *keys, "force=true")
    assert resumed is not None and len(resumed["processes"]) == 2, err
    assert [prompt["grown"] for prompt in resumed["prompts"]] == [prompt["grown"] for prompt in whole["prompts"]]
    assert [prompt["beta"] for prompt in resumed["prompts"]] == [prompt["beta"] for prompt in whole["prompts"]]


@pytest.mark.full
@needs_suffixes
def test_alpha_of_a_store_that_grows_is_scored_before_each_text_is_taken_in(run: Run, tmp_path: Path) -> None:
    """The same text again is known by then, and the first text is scored as by a store that does not grow."""
    code, err, _ = run("[retrieval,retrieval-grow]", "tokens=60", "sampling.temperature=[0,1]", verb="alpha")
    assert code == 0, err
    (file,) = alpha_folder(tmp_path).glob("*.json")
    for setting in json.loads(file.read_text())["settings"]:
        first, grown = (setting["drafts"][name] for name in ("retrieval", "retrieval-grow"))
        assert first[0]["beta"] == grown[0]["beta"] and first != grown


WRONG = {
    "draft=lookahead draft.window=0": "draft.window=0: must be from 1 to 32",
    "draft=lookahead draft.ngram=1": "draft.ngram=1: must be from 2 to 8",
    "draft=lookahead draft.guesses=0": "draft.guesses=0: must be from 1 to 32",
    "draft=lookahead gamma=auto": "gamma=auto: what it finds depends on the passes before",
    "draft=lookahead accept=block": "accept.rule=block: must be exact | typical with draft=lookahead",
    "draft=lookahead tree=widths": "tree=widths: draft=lookahead: its n-grams are a tree already",
    "draft=cascade draft@draft.inner=lookahead": "draft.inner=lookahead: its proposals are trees of their own; give",
    "draft=pass tree=widths": "tree=widths: draft=pass: pass makes no trees; use tree=none, or",
    "draft=pass draft.path=/no/such": "draft.path=/no/such: must be a folder",
    "draft=pass draft.shipped=t5-none dtype=float32": "draft.path is not set: no pass weights ship for",
    "draft=cascade draft@draft.inner=pass": "draft.inner=pass: the target reads its look-ahead positions in the pass",
    "draft=horizontal draft.lengths=[1,2]": "draft.lengths=[1, 2]: must be 1 numbers from 1 to",
    "draft=horizontal draft.second=null": "draft.second is not set: a horizontal cascade is made of two",
    "draft=horizontal draft@draft.second=merged": "draft.second=merged-t5-nano-bigram: several drafts make a tree",
    "draft=bigram draft.horizontal=[t5-nano,bigram]": "draft.horizontal=[t5-nano,bigram]: requires draft=cascade and",
    "draft=layer-skip": "draft.skip=[]: nothing is skipped; give sublayers, as",
    "draft=layer-skip draft.skip=[head1]": "draft.skip=[head1]: must be a list of attnN, crossN, mlpN,",
    "draft=layer-skip draft.skip=[mlp1] batch=2": "draft=layer-skip-mlp1: cannot be batched",
    "draft=retrieval draft.grow=perhaps": "draft.grow=perhaps",
    "draft=quantised draft.bits=3": "draft.bits=3: must be 4 | 8",
    "draft=suffix draft.depth=1": "draft.depth=1: must be from 2 to 64",
    "draft=suffix draft.factor=0": "draft.factor=0.0: must be from 0.1 to 64",
    "draft=router draft.least_match=0": "draft.least_match=0: must be from 1 to 64",
    "draft=router draft@draft.first=bigram": "draft.first=bigram: by=match requires a draft that copies",
    "draft=router draft.by=luck": "draft.by=luck: must be match | acceptance",
    "draft=router tree=widths": "tree=widths: draft=router-lookup-t5-nano: router-lookup-t5-nano makes no trees; use",
    "draft=router draft@draft.second=pass": "draft.second=pass: the target reads its look-ahead positions in the pass",
    "draft=ngram draft.order=0": "draft.order=0: must be from 1 to 8",
    "draft=retrieval draft.corpus=/no/such": "draft.corpus=/no/such: must be a file or folder",
    "draft=cascade draft.inner_gamma=0": "draft.inner_gamma=0: must be from 1 to",
    "draft=cascade draft.inner=null": "draft.inner is not set: a cascade is made of two drafts; give",
    "draft=cascade draft.via.kind=bigram": "draft.via.kind=bigram: must be model",
    "draft=cascade draft.inner.kind=nothing": "draft.inner.kind=nothing: must be model | unigram",
    "draft=cascade draft.inner.kind=ngram draft.inner.order=9": "draft.inner.order=9: must be from 1 to 8",
    "draft=cascade draft.inner.order=2": "draft.inner.order=2: draft.inner.kind=bigram has no such option",
    "draft=cascade draft.via.path=/no/such": "draft.via.path=/no/such: must be a folder",
    "draft=cascade draft@draft.inner=bigramm": "draft=bigramm: no such draft; did you mean bigram",
}


@pytest.mark.parametrize("overrides", WRONG)
def test_what_is_out_of_range_is_named_at_its_level(
    overrides: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert f"specbench: {WRONG[overrides]}" in refusal(["run", *overrides.split(), f"results={tmp_path}"], capfd)


@pytest.mark.full
def test_the_middle_model_of_a_cascade_must_share_the_vocabulary(run: Run, folders: Folders, tmp_path: Path) -> None:
    from tests.support.networks import WORDS, save

    code, err, _ = run("cascade", f"draft.via.path={folders['gpt2-draft']}")
    assert code == 2 and "draft.via=gpt2-draft: is decoder-only and target=t5 is encoder-decoder" in err
    other = save(tmp_path / "other", "t5", 3, words=[*WORDS[1:], "the"])
    code, err, _ = run("cascade", f"draft.via.path={other}")
    assert code == 2 and "draft.via=other: its vocabulary is not target=t5" in err
    code, err, record = run("cascade", "draft.inner.kind=model", f"draft.inner.path={other}")  # which verifies nothing
    assert code == 0 and record is not None and record["summary"]["identical"] == 1, err


def test_retrieval_without_its_library_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.methods.retrieval.draft.find_spec", lambda name: None)
    code, err, _ = run("retrieval")
    assert code == 2 and "draft.kind=retrieval: pydivsufsort" in err
    assert "pip install pydivsufsort" in err
