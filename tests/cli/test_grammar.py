"""One grammar for every verb: `key=value` and `--key value` mean the same; Hydra's switches keep their spelling."""

from pathlib import Path

import pytest
import yaml

from specbench.cli import main
from specbench.cli.overrides import read
from specbench.compose.words import value_of
from specbench.config.paths import conf_dir
from specbench.config.schema import RunConfig
from specbench.config.verbs import BenchConfig, ChooseConfig
from specbench.errors import UserError

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    "words",
    [["results=F"], ["--results", "F"], ["--results=F"]],
)
def test_keys_with_and_without_dashes(words: list[str]) -> None:
    assert read(words, RunConfig).overrides == ["results=F"]


def test_every_kind_of_word() -> None:
    argv = ["gamma=3", "--max-new-tokens", "4", "--cfg", "job", "--force", "--sampling.temperature=1", "--target",
            "t5-mini", "config_dir=mine", "--format", "json", "hydra/launcher=joblib", "+task.extra=1"]  # fmt: skip
    command = read(argv, RunConfig)
    assert command.switches == ["--cfg", "job", "--config-dir", "mine"]
    assert command.overrides == [
        "gamma=3", "max_new_tokens=4", "force=true", "sampling.temperature=1", "target=t5-mini",
        "hydra/launcher=joblib", "+task.extra=1",
    ]  # fmt: skip
    assert command.form == "json" and command.argv == [*command.switches, *command.overrides]


def test_the_template_has_two_spellings() -> None:
    for words in (["prompt.template=chat"], ["--prompt.template", "chat"], ["--prompt.template=chat"]):
        assert read(words, RunConfig).overrides == ["task.chat_template=true"]
    assert read(["prompt.template=none"], RunConfig).overrides == ["task.chat_template=false"]


def test_a_verbs_own_options() -> None:
    assert read(["--dry-run"], RunConfig, alone=("dry-run",)).options == {"dry-run": ""}
    assert read(["picture=a.svg", "--verify", "3"], ChooseConfig, valued=("picture",)).options == {"picture": "a.svg"}
    assert read(["--gammas", "[1,2]"], BenchConfig).overrides == ["gammas=[1,2]"]


@pytest.mark.parametrize("word", ["gammas=1,3", "gammas=[1,3]", "--gammas=1,3"])
def test_a_list_has_commas_and_needs_no_brackets(word: str) -> None:
    assert read([word], ChooseConfig).overrides == ["gammas=[1,3]"]


def test_a_list_of_one_and_keys_of_a_run() -> None:
    """A list of shapes is a list of lists, so that its brackets remain; `gamma=1,2` is a sweep's."""
    words = ["gammas=3", "batches=null", "tree.widths=[2,1]", "gamma=1,2"]
    assert read(words, ChooseConfig).overrides == ["gammas=[3]", "batches=null", "tree.widths=[2,1]", "gamma=1,2"]


@pytest.mark.parametrize("argv", [["--nonsense", "1"], ["--gamma"], ["--package", "x"], ["--info", "nothing"]])
def test_what_cannot_be_read_is_one_line(argv: list[str]) -> None:
    with pytest.raises(UserError):
        read(argv, RunConfig)


def test_the_last_override_of_a_key_counts() -> None:
    assert value_of(["results=a", "gamma=3", "results='b c'"], "results", "results") == "b c"
    assert value_of(["gamma=3"], "results", "results") == "results"


@pytest.mark.full
@pytest.mark.parametrize("verb", ["run", "alpha", "recommend", "recommend --validate", "bench", "bench beam", "sweep"])
@pytest.mark.parametrize("words", [["results=elsewhere"], ["--results", "elsewhere"], ["--results=elsewhere"]])
def test_results_in_every_verb_that_measures(verb: str, words: list[str], capfd: Capture) -> None:
    assert main([*verb.split(), *words, "--cfg", "job"]) == 0
    assert "results: elsewhere" in capfd.readouterr().out


@pytest.fixture
def own_choices(tmp_path: Path) -> Path:
    """A folder of choices beside ours."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine.yaml").write_text("name: mine\nshipped: t5-mini\nnote: a target of my own\n")
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "preset.yaml").write_text("# @package _global_\ngamma: 11\n")
    return tmp_path


@pytest.mark.full
@pytest.mark.parametrize("verb", ["run", "alpha", "bench"])
def test_own_choices_without_a_fork(verb: str, own_choices: Path, capfd: Capture) -> None:
    for words in (["--config-dir", str(own_choices)], [f"--config-dir={own_choices}"], [f"config_dir={own_choices}"]):
        assert main([verb, *words, "target=mine", "--cfg", "job"]) == 0
        assert "a target of my own" in capfd.readouterr().out
    assert main(["run", "target=mine", "--cfg", "job"]) == 2
    assert main(["run", "--config-dir", str(own_choices), "experiment=preset", "--cfg", "job"]) == 0
    assert "gamma: 11" in capfd.readouterr().out


@pytest.mark.full
def test_the_config_of_a_sweep_is_that_of_its_first_job(capfd: Capture) -> None:
    assert main(["sweep", "experiment=table2", "--cfg", "job"]) == 0
    out, err = capfd.readouterr()
    assert "gamma: 3" in out and "name: t5-xxl" in out
    assert err == "this is the first job of the sweep; --dry-run lists them all\n"
    assert not list(conf_dir().glob("**/multirun.yaml"))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["sweep", "draft=[unigram,bigram]"], "a sweep takes its values without brackets, draft=unigram,bigram"),
        (["bench", "target=t5-mini,gpt-mini"], "specbench bench takes one target; give the command once for each"),
        (["alpha", "target=[t5-mini,gpt-mini]"], "specbench alpha takes one target; give the command once for each"),
    ],
)
def test_a_list_where_one_value_is_read(argv: list[str], said: str, capfd: Capture) -> None:
    assert main(argv) == 2
    assert said in capfd.readouterr().err


RECORD_VERBS: dict[str, list[str]] = {
    "results": [], "tables": ["table1"], "figures": ["figure2"], "list": ["accept"], "report": [],
    "show": ["last"], "compare": ["last", "last"], "compare --baseline": ["baseline.json"],
    "compare --history": [],
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("verb", RECORD_VERBS)
def test_results_and_config_dir_in_every_verb_that_reads_records(
    verb: str, own_choices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing").mkdir()
    outcomes = []
    # Each spelling of either once; that one does not depend on the other is the grammar's, which is tested above.
    results = (["results=nothing"], ["--results", "nothing"], ["--results=nothing"])
    folders = (["--config-dir", str(own_choices)], [f"config-dir={own_choices}"], [])
    for words, own in zip(results, folders, strict=True):
        outcomes.append((main([*verb.split(), *RECORD_VERBS[verb], *words, *own]), *capfd.readouterr()))
    assert len(set(outcomes)) == 1
    code, out, err = outcomes[0]
    assert "nothing" in out + err or verb in ("list", "tables", "figures"), (code, out, err)
    assert main([*verb.split(), *RECORD_VERBS[verb], "--no-such-option"]) == 2
    assert capfd.readouterr().err.count("\n") == 1


def test_a_report_makes_no_results_folder(tmp_path: Path, capfd: Capture) -> None:
    assert main(["report", "--results", str(tmp_path / "none")]) == 2
    assert capfd.readouterr().err.startswith(f"specbench: --results {tmp_path}/none: there is no such folder")
    assert not (tmp_path / "none").exists()


@pytest.mark.full
def test_an_error_names_the_option_that_mends_it(tmp_path: Path, capfd: Capture) -> None:
    (tmp_path / "file").write_text("")
    for argv, option in (
        (["report", f"--output={tmp_path}/file/page.html", f"results={tmp_path}"], "--output FILE"),
        (["show", "last", f"--picture={tmp_path}/file/text.svg"], "--picture FILE"),
        (["recommend", f"--picture={tmp_path}/file/text.svg"], "--picture FILE"),
        (["figures", "figure2", f"--output={tmp_path}/file", "--format", "svg"], "--output FOLDER"),
    ):
        assert main(argv) == 1
        err = capfd.readouterr().err.splitlines()[-1]
        assert "cannot be written" in err and err.endswith(f"set {option} to another place"), err


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that is the working folder, with a model folder and files of rows of awkward names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "titler").mkdir()
    for name in ("my rows (1).jsonl", "a,b.jsonl", "it's.jsonl", "x[1]{2}.jsonl", "chat.jsonl"):
        (tmp_path / name).touch()
    return tmp_path


def composed_path(words: list[str], key: str, capfd: Capture) -> str:
    assert main(["run", *words, "--cfg", "job"]) == 0, capfd.readouterr().err
    return str(yaml.safe_load(capfd.readouterr().out)[key]["path"])


@pytest.mark.parametrize("word", ["./titler/", "titler/", "./titler//", "~/titler", "~/titler/", "./titler"])
@pytest.mark.parametrize("key", ["target", "draft"])
def test_a_folder_as_a_shell_completes_it(word: str, key: str, places: Path, capfd: Capture) -> None:
    assert Path(composed_path([f"{key}={word}"], key, capfd)).resolve() == places / "titler"
    assert Path(composed_path([f"{key}.path={word}"], key, capfd)).resolve() == places / "titler"


@pytest.mark.full
@pytest.mark.parametrize("name", ["my rows (1).jsonl", "a,b.jsonl", "it's.jsonl", "x[1]{2}.jsonl"])
def test_files_of_any_name(name: str, places: Path, capfd: Capture) -> None:
    for word in (f"task=./{name}", f"task=~/{name}", f"task={places}/{name}", f"task.path={name}"):
        assert Path(composed_path([word], "task", capfd)).resolve() == places / name


def test_spaces_round_the_equals_sign_and_lists_of_folders(places: Path) -> None:
    assert read(["gamma = 3"], RunConfig).overrides == ["gamma=3"]
    assert read(["draft=./titler/,bigram"], RunConfig).overrides == ["draft=./titler,bigram"]
    assert read(["draft=[titler/,bigram]"], ChooseConfig).overrides == ["draft=[./titler,bigram]"]
    assert read(["target=gpt-mini", "results=a b"], RunConfig).overrides == ["target=gpt-mini", "results='a b'"]


@pytest.mark.parametrize(
    ("word", "said"),
    {
        "=3": "=3: there is no option before '='; write key=value",
        "gamma:3": "gamma:3: cannot be read; write key=value",
        "": "'': cannot be read; write key=value",
        "gamma=64.5": "gamma=64.5: must be a whole number",
        "limit=abc": "limit=abc: must be a whole number",
        "sampling.temperature=x": "sampling.temperature=x: must be a number",
        "force=maybe": "force=maybe: must be true or false",
        "target=titler": "target=titler: no such target; for the file or folder of this name write target=./titler",
        "task=chat.jsonl": "task=chat.jsonl: no such task; for the file or folder of this name write task=./chat.jsonl",
    }.items(),
)
def test_a_slip_is_one_line_that_says_what_to_type(word: str, said: str, places: Path, capfd: Capture) -> None:
    assert main(["run", word]) == 2
    err = capfd.readouterr().err
    assert err.startswith(f"specbench: {said}") and err.count("\n") == 1, err
