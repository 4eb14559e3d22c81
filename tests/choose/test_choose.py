"""alpha of many drafts, the kept sample, lists on the command line, recommendations and their proof."""

import json
from pathlib import Path

import pytest

from specbench import theory
from specbench.choose import rank as recommending
from specbench.cli import main
from specbench.compose.grid import compose_grid, split
from specbench.config.verbs import ChooseConfig
from specbench.errors import UserError
from specbench.records import store
from specbench.records.catalog import Catalog
from tests.support.calls import small

pytestmark = pytest.mark.usefixtures("short_probes")

Folders = dict[str, Path]
Capture = pytest.CaptureFixture[str]

LISTS = {
    "none": (["draft=unigram", "gamma=3"], (["draft=unigram", "gamma=3"], [[]])),
    "brackets": (["draft=[unigram,bigram]", "gamma=3"], (["gamma=3"], [["draft=unigram"], ["draft=bigram"]])),
    "commas": (["draft=unigram,bigram"], ([], [["draft=unigram"], ["draft=bigram"]])),
    "heads of drafts": (
        ["draft=t5-nano", "draft.top_tokens=null,1000"],
        (["draft=t5-nano"], [["draft.top_tokens=null"], ["draft.top_tokens=1000"]]),
    ),
    "folders": (["draft.path=[/a,'/b c']"], ([], [["draft.path=/a"], ["draft.path='/b c'"]])),
    "both": (
        ["draft=[unigram,bigram]", "draft.path=/a"],
        ([], [["draft=unigram"], ["draft=bigram"], ["draft.path=/a"]]),
    ),
    "temperatures": (
        ["draft=[a,b]", "sampling.temperature=[0,1]"],
        ([], [[d, t] for d in ("draft=a", "draft=b") for t in ("sampling.temperature=0", "sampling.temperature=1")]),
    ),
    "rules": (["accept=[exact,block]"], ([], [["accept=exact"], ["accept=block"]])),
    "a rule's own keys": (
        ["accept=[exact,lenient]", "accept.lenience=[0.5,0.3]", "gamma=2"],
        (
            ["gamma=2"],
            [["accept=exact"], ["accept=lenient", "accept.lenience=0.5"], ["accept=lenient", "accept.lenience=0.3"]],
        ),
    ),
    "one rule": (["accept=lenient", "accept.lenience=0.3"], (["accept=lenient", "accept.lenience=0.3"], [[]])),
    "one draft of one list": (["draft=[a]", "draft.path=/a"], (["draft.path=/a"], [["draft=a"]])),
    "switches": (["--cfg", "job", "draft=[a]"], (["--cfg", "job"], [["draft=a"]])),
    "not ours": (["gammas=[1,3]", "leniences=[0.5]"], (["gammas=[1,3]", "leniences=[0.5]"], [[]])),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_are_taken_apart(name: str) -> None:
    argv, expected = LISTS[name]
    assert split(argv, {}) == expected


def test_a_draft_without_a_head_is_there_once() -> None:
    words = ["draft=t5-nano,bigram", "draft.top_tokens=null,1000"]
    found = compose_grid(words, ChooseConfig, "recommend")
    assert [one.draft.label() for one in found] == ["t5-nano", "t5-nano-top1000", "bigram"]


def test_temperatures_have_a_default_and_an_empty_list_is_refused() -> None:
    assert split([], {"sampling.temperature": ["0", "1"]})[1] == [
        ["sampling.temperature=0"],
        ["sampling.temperature=1"],
    ]
    assert split(["sampling.temperature=1"], {"sampling.temperature": ["0"]})[1] == [[]]
    with pytest.raises(UserError, match="draft=\\[\\]: the list is empty"):
        split(["draft=[]"], {})


@pytest.fixture
def argv(folders: Folders, tmp_path: Path) -> list[str]:
    return small(folders, tmp_path, f"task.train_path={folders['rows']}", f"draft.cache_dir={tmp_path / 'cache'}")


def test_alpha_of_three_drafts_at_two_temperatures(
    argv: list[str], folders: Folders, tmp_path: Path, capfd: Capture
) -> None:
    drafts = ["draft=[unigram,random]", f"draft.path={folders['t5-draft']}"]
    assert main(["alpha", *argv, *drafts]) == 0
    out = capfd.readouterr().out
    assert "t5-draft" in out and "α(l=0.5)" in out and "only 3 prompts" in out
    (file,) = (tmp_path / "alpha").glob("*.json")
    rows = {(row["draft"], row["temperature"]): row for row in json.loads(file.read_text())["rows"]}
    assert set(rows) == {(d, t) for d in ("unigram", "random", "t5-draft") for t in (0, 1)}
    assert rows["random", 0]["alpha"] == pytest.approx(1 / 43)  # tokens of the vocabulary
    for row in rows.values():
        assert 0 <= row["alpha_low"] <= row["alpha"] <= row["alpha_high"] <= 1
        values = [row["lenient"][one]["value"] for one in ("1", "0.5", "0.3", "0.1")]
        assert values[0] == pytest.approx(row["alpha"]) and values == sorted(values)
    samples = {file: file.read_text() for file in (tmp_path / "samples").glob("*.json")}
    assert len(samples) == 2

    # The sample is taken up by a later call, and the estimate is the one that decoding gives, to the last digit.
    assert main(["alpha", *argv, "draft=bigram", "sampling.temperature=1", "--verbose"]) == 0
    assert "3 completions from the cache" in capfd.readouterr().out
    assert samples == {file: file.read_text() for file in (tmp_path / "samples").glob("*.json")}
    assert main(["run", *argv, drafts[1], "sampling.temperature=1", "gamma=2"]) == 0
    (run,) = Catalog(tmp_path).rows()
    assert run["alpha"] == pytest.approx(rows["t5-draft", 1]["alpha"], abs=1e-6)
    assert run["alpha_low"] == pytest.approx(rows["t5-draft", 1]["alpha_low"], abs=1e-6)


def test_equal_prompts_are_named_and_count_once_in_alpha(
    argv: list[str], folders: Folders, tmp_path: Path, capfd: Capture
) -> None:
    lines = folders["rows"].read_text().splitlines()
    found = {}
    for times in (1, 3):
        rows = tmp_path / f"rows-{times}.jsonl"
        rows.write_text("\n".join(lines * times) + "\n")
        words = [f"task.path={rows}", f"draft.path={folders['t5-draft']}", "sampling.temperature=0"]
        results = tmp_path / f"results-{times}"
        assert main(["alpha", *argv, *words, f"results={results}"]) == 0
        (file,) = (results / "alpha").glob("*.json")
        (found[times],) = json.loads(file.read_text())["rows"]
        said = f"EQUAL PROMPTS: {3 * len(lines)} prompts, {len(lines)} of them different"
        assert (said in capfd.readouterr().out) == (times == 3)
    for name in ("alpha", "alpha_low", "alpha_high"):
        assert found[3][name] == pytest.approx(found[1][name])
    assert found[3]["prompts"] == 3 * found[1]["prompts"] and found[3]["distinct_prompts"] == len(lines)


@pytest.mark.full
def test_a_damaged_sample_is_written_again_and_a_larger_one_takes_over(
    argv: list[str], tmp_path: Path, capfd: Capture
) -> None:
    call = ["alpha", *argv, "draft=random", "sampling.temperature=0"]
    assert main([*call, "tokens=1"]) == 0
    (sample,) = (tmp_path / "samples").glob("*.json")
    assert len(json.loads(sample.read_text())["texts"]) == 1
    assert main([*call, "--verbose"]) == 0
    assert "1 completions from the cache" in capfd.readouterr().out
    whole = json.loads(sample.read_text())["texts"]
    assert len(whole) == 3
    sample.write_text(sample.read_text()[:40])
    assert main(call) == 0
    again = json.loads(sample.read_text())["texts"]
    assert {key: text["tokens"] for key, text in again.items()} == {key: text["tokens"] for key, text in whole.items()}


WRONG = {
    "tokens=0": "tokens=0: must be at least 1",
    "leniences=[0]": "leniences=[0.0]: must be above 0 and at most 1",
    "draft=[unigram,nosuch]": "draft=nosuch: no such draft; choose from",
    "draft=[unigram,unigram]": "draft: two of the drafts are called unigram",
    "tokns=3": "tokns: no such option; did you mean tokens",
    "gammas=[0]": "gammas=[0]: must be a list of numbers from 1 to 64",
}


@pytest.mark.parametrize(
    ("verb", "override", "said"),
    [
        ("recommend", "gamma=3", "gamma=3: specbench recommend does not use gamma; give gammas=1,3,5"),
        (
            "recommend --validate",
            "gamma=auto",
            "gamma=auto: specbench recommend --validate does not use gamma; give gammas=1,3,5",
        ),
        ("alpha", "gamma=3", "gamma=3: specbench alpha does not use gamma"),
        (
            "bench beam",
            "task.category_field=x",
            "task.category_field=x: specbench bench beam does not use task.category_field",
        ),
        ("run", "resamples=200", "resamples=200: specbench run does not use resamples"),
        ("sweep", "resamples=200,300", "resamples=200,300: specbench sweep does not use resamples"),
        ("alpha", "resamples=200", "resamples=200: specbench alpha does not use resamples"),
        ("recommend --load", "resamples=200", "resamples=200: specbench recommend --load does not use resamples"),
        ("recommend", "repeats=2", "repeats=2: specbench recommend does not use repeats"),
        ("recommend --validate", "verify=2", "verify=2: specbench recommend --validate does not use verify"),
    ],
)
def test_a_key_that_a_verb_ignores_is_an_error(verb: str, override: str, said: str, capfd: Capture) -> None:
    assert main([*verb.split(), "draft=random", override]) == 2
    assert capfd.readouterr().err == f"specbench: {said}\n"


@pytest.mark.full
@pytest.mark.parametrize("override", WRONG)
def test_mistakes_are_one_line(override: str, argv: list[str], capfd: Capture) -> None:
    verb = "recommend" if override.startswith("gammas") else "alpha"
    assert main([verb, *argv, *([] if override.startswith("draft") else ["draft=random"]), override]) == 2
    err = capfd.readouterr().err
    assert err.startswith(f"specbench: {WRONG[override]}") and err.count("\n") == 1


def test_recommend_ranks_explains_and_proves(argv: list[str], folders: Folders, tmp_path: Path, capfd: Capture) -> None:
    drafts = ["draft=[unigram]", f"draft.path=[{folders['t5-draft']}]"]
    assert (
        main(
            ["recommend", *argv, *drafts, "gammas=[1,3]", "rounds=2", "--verify", "1", "--picture", f"{tmp_path}/c.svg"]
        )
        == 0
    )
    out = capfd.readouterr().out
    assert "measured" in (tmp_path / "c.csv").read_text() and (tmp_path / "c.svg").read_text().startswith("<svg")
    (file,) = (tmp_path / "recommend").glob("*.json")
    record = json.loads(file.read_text())
    values = [row["estimated"]["value"] for row in record["rows"]]
    assert len(values) == 4 and values == sorted(values, reverse=True)
    best, (proof,) = record["rows"][0], record["verified"]
    assert (proof["draft"], proof["gamma"]) == (best["draft"], best["gamma"])
    (run,) = Catalog(tmp_path).rows()
    assert run["run_id"] == proof["run_id"] and run["speedup_measured"] == proof["measured"]
    assert proof["off"] == pytest.approx(best["estimated"]["value"] / proof["measured"] - 1)
    assert "→" in out and " win" in out and "measured by real runs" in out
    assert main(["recommend", *argv, "draft=random", "--picture", "c.gif"]) == 2
    assert "--picture c.gif: must end in .svg" in capfd.readouterr().err
    assert main(["recommend", *argv, "draft=random", "sampling.temperature=[0,1]"]) == 2
    assert "sampling.temperature: a recommendation is for one temperature" in capfd.readouterr().err


@pytest.mark.full
def test_a_recommendation_is_measured_once_for_all_engines(
    argv: list[str], tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--for sglang` after `--for vllm` loaded and timed all again; a disturbed or forced one still does."""
    command = ["recommend", *argv, "draft=[bigram]", "gammas=[1,3]", "rounds=2"]
    assert main([*command, "--for", "vllm"]) == 0
    (file,) = (tmp_path / "recommend").glob("*.json")
    record = json.loads(file.read_text()) | {"disturbed_by": None}  # whatever else ran
    file.write_text(json.dumps(record))
    capfd.readouterr()

    def loading(*_: object) -> None:
        raise UserError("models are loaded")

    monkeypatch.setattr(recommending, "prepare", loading)
    assert main([*command, "--for", "sglang"]) == 0
    shown = capfd.readouterr()
    assert f"{file}: measured before with the same keys; force=true measures again" in shown.err
    assert "sglang" in shown.out and "bigram" in shown.out
    for more in (["force=true"], ["rounds=3"], ["verify=1"], ["resamples=200"]):
        assert main([*command, *more]) == 2 and "models are loaded" in capfd.readouterr().err
    for change in ({"disturbed_by": "a sign"}, {"environment": record["environment"] | {"commit": "another"}}):
        file.write_text(json.dumps(record | change))
        assert main(command) == 2 and "models are loaded" in capfd.readouterr().err


@pytest.mark.full
def test_a_draft_that_agrees_less_further_ahead_is_predicted_by_position(
    argv: list[str], tmp_path: Path, capfd: Capture
) -> None:
    assert (
        main(["recommend", *argv, "draft=[bigram,lookup]", "gammas=[1,3]", "rounds=2", "sampling.temperature=1"]) == 0
    )
    out = capfd.readouterr().out
    (file,) = (tmp_path / "recommend").glob("*.json")
    rows = json.loads(file.read_text())["rows"]
    assert {(row["draft"], row["prediction"]) for row in rows if row["gamma"] == 3} <= {
        ("bigram", "Eq. 1"), ("lookup", "by position")
    }  # fmt: skip
    assert {row["draft"] for row in rows} == {"bigram", "lookup"}
    for row in rows:
        expected = theory.expected_tokens(row["alpha"]["value"], row["gamma"])
        falls = row["prediction"] == "by position"
        assert falls or row["tokens_per_pass_iid"] == pytest.approx(expected)
        assert row["predicted"] == pytest.approx(row["tokens_per_pass_iid"] / (row["gamma"] * row["cost"]["c"] + 1))
        assert f"{row['predicted']:.2f}{'*' if falls else ''} " in out
    assert "* from the acceptance at each position" in out


@pytest.mark.full
def test_gamma_may_be_left_to_a_probe_and_may_follow_the_text(
    argv: list[str], folders: Folders, tmp_path: Path, capfd: Capture
) -> None:
    keys = [*argv, f"draft.path={folders['t5-draft']}", "limit=2"]
    for gamma in ("auto", "adaptive", "3", "1"):
        assert main(["run", *keys, f"gamma={gamma}"]) == 0
    out = capfd.readouterr().out
    rows = {row["gamma_requested"]: row for row in Catalog(tmp_path).rows()}
    found = store.read(store.record_file(tmp_path, rows["auto"]["run_id"]))
    best = max(found["gamma"].probe, key=lambda one: one["estimated"].value)
    assert rows["auto"]["gamma"] == found["gamma"].gamma == best["gamma"]
    assert found["config"]["gamma"] == "auto" and f"γ={best['gamma']} (auto)" in out
    adaptive = store.read(store.record_file(tmp_path, rows["adaptive"]["run_id"]))
    assert rows["adaptive"]["gamma"] is None and rows["adaptive"]["speedup_predicted"] is None
    used = {p.drafted for one in adaptive["prompts"] for p in one["speculative"].passes}
    assert used and "γ=adaptive" in out
    assert rows["adaptive"]["lossless"] and rows["adaptive"]["identical"] == 1.0
    for row in rows.values():
        assert row["alpha"] == pytest.approx(rows[3]["alpha"])

    assert main(["compare", "T0-g3-", "T0-g1-", "--results", str(tmp_path)]) == 0
    assert "2 prompts in both" in capfd.readouterr().out
    assert main(["compare", "T0-g3-", "T0-g1-", f"results={tmp_path}", "--format", "json"]) == 0
    paired = json.loads(capfd.readouterr().out)
    assert paired["alpha"]["value"] == 0 and paired["speedup"]["low"] <= paired["speedup"]["value"]
    assert main(["results", "--results", str(tmp_path), "--group-by", "gamma", "--format", "json"]) == 0
    (group,) = json.loads(capfd.readouterr().out)
    assert {row["gamma"] for row in group["rows"]} >= {1, 3}
    assert "against_best" not in group["rows"][0] and group["rows"][1]["against_best"]["prompts"] == 2
    assert main(["results", "--results", str(tmp_path), "--group-by", "gamma"]) == 0
    assert "fastest" in capfd.readouterr().out
    assert main(["results", "--results", str(tmp_path), "--group-by", "weather"]) == 2
    assert "--group-by weather: choose from draft, gamma" in capfd.readouterr().err


@pytest.mark.full
def test_a_resumed_run_keeps_the_gamma_that_was_found(
    argv: list[str], folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.experiment import drafting_plan, runner

    keys = ["run", *argv, f"draft.path={folders['t5-draft']}", "gamma=auto"]
    whole = runner.measure_prompt

    def cut(parts, place):  # type: ignore[no-untyped-def]
        if place == 1:
            raise KeyboardInterrupt
        return whole(parts, place)

    monkeypatch.setattr(runner, "measure_prompt", cut)
    assert main(keys) == 130
    monkeypatch.setattr(runner, "measure_prompt", whole)

    def never(*_: object) -> None:
        raise AssertionError("it was probed again")

    monkeypatch.setattr(drafting_plan, "choose_gamma", never)
    assert main(keys) == 0
    (row,) = Catalog(tmp_path).rows()
    assert row["processes"] == 2 and row["gamma_requested"] == "auto"
