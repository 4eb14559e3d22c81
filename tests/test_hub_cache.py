"""Models in the hub's cache, without the hub: cached by commit alone, and damaged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.errors import MachineError
from specbench.hub import commit_of, only_cached
from tests.support.hub import SESSION, Outcome

FIRST, SECOND = "a" * 40, "b" * 40
FAST = ["device=cpu", "dtype=float32", "engine=eager", "max_new_tokens=4", "limit=1", "warmup=0"]


def cached(cache: Path, name: str, folder: Path, commits: list[str], ref: str | None = None, **files: bytes) -> None:
    """`folder` in the cache as the repository o/`name` at `commits`; `files`: other contents, empty for none."""
    for commit in commits:
        snapshot = cache / f"models--o--{name}" / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for file in folder.iterdir():
            content = files.get(file.stem, file.read_bytes())
            if content:
                (snapshot / file.name).write_bytes(content)
    if ref is not None:
        (cache / f"models--o--{name}" / "refs").mkdir()
        (cache / f"models--o--{name}" / "refs" / "main").write_text(ref)


# Of each repository: the commits in the cache, what `main` is, and files that are damaged or (empty) not there.
REPOSITORIES: dict[str, tuple[list[str], str | None, dict[str, bytes]]] = {
    "pinned": ([FIRST], None, {}),
    "two": ([FIRST, SECOND], None, {}),
    "main": ([FIRST, SECOND], SECOND, {}),
    "no-config": ([FIRST], FIRST, {"config": b'{"model_type": '}),
    "no-weights": ([FIRST], FIRST, {"model": b"cut"}),
    "no-tokenizer": ([FIRST], FIRST, {"tokenizer": b"{"}),
    "absent-weights": ([FIRST], FIRST, {"model": b""}),
    "absent-config": ([FIRST], FIRST, {"config": b""}),
}
BY_COMMIT = "target: which commit is {of} of o/{name} is not known in the cache, and the model hub cannot be reached; "
CANNOT = "target: o/{name}: cannot be loaded: "
ABSENT = "target: o/{name} is not in the local cache and the model hub cannot be reached"
SAID = {  # the target, and what the last line begins with; None where it runs
    "o/pinned": None,
    f"o/pinned@{FIRST}": None,
    "o/main": None,
    "o/two": BY_COMMIT.format(of="the newest", name="two") + f"give target.revision={FIRST}, or another cached commit",
    "o/pinned@dev": BY_COMMIT.format(of="dev", name="pinned") + f"give target.revision={FIRST}",
    "o/nothing": ABSENT.format(name="nothing"),
    "o/no-config": CANNOT.format(name="no-config") + "It looks like the config file at ",
    "o/no-weights": CANNOT.format(name="no-weights"),
    "o/no-tokenizer": CANNOT.format(name="no-tokenizer"),
    "o/absent-weights": CANNOT.format(name="absent-weights") + "its weights are not in the local cache, and",
    "o/absent-config": ABSENT.format(name="absent-config"),
}


@pytest.fixture(scope="module")
def outcomes(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """What a run of each target of SAID comes to, all in one process."""
    root = tmp_path_factory.mktemp("cache")
    for name, (commits, ref, files) in REPOSITORIES.items():
        cached(root / "hub", name, folders["llama"], commits, ref, **files)
    rows = root / "rows.jsonl"
    rows.write_text('{"prompt": "the dog sees"}\n')
    own = [f"task={rows}", "draft=random", f"results={root}/results", *FAST]
    argv = [["run", f"target={word}", *own] for word in SAID]
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        input=json.dumps(argv),
        env={**os.environ, "HF_HOME": str(root), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(SAID, (Outcome(*one) for one in json.loads(done.stdout.splitlines()[-1])), strict=True))


@pytest.mark.full
@pytest.mark.parametrize("word", SAID)
def test_what_is_in_the_cache_is_used_and_what_is_damaged_is_called_so(word: str, outcomes: dict[str, Outcome]) -> None:
    said, (code, _, err) = SAID[word], outcomes[word]
    if said is None:
        commit = SECOND if word == "o/main" else FIRST
        assert code == 0 and ("@" in word or f"to pin it: target={word}@{commit}" in err), err
    else:
        assert code in (1, 2) and err.splitlines()[-1].startswith(f"specbench: {said}"), err


def test_a_cache_that_was_filled_by_commit(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for name in ("pinned", "two", "main"):
        commits, ref, files = REPOSITORIES[name]
        cached(tmp_path, name, folders["llama"], commits, ref, **files)
    (tmp_path / "models--o--pinned" / "snapshots" / SECOND).mkdir()  # a download that did not begin
    assert [only_cached(f"o/{name}") for name in ("pinned", "two", "main", "nothing")] == [FIRST, None, None, None]
    assert commit_of("o/pinned", None, "target") == FIRST and commit_of("o/main", None, "target") == SECOND
    for repository, revision in (("o/two", None), ("o/pinned", "dev")):
        with pytest.raises(MachineError, match=f"is not known in the cache.*give draft.revision={FIRST}"):
            commit_of(repository, revision, "draft")
