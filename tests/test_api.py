"""The functions of Python do what the verbs of the command line do."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from specbench import api
from specbench.alone import one_at_a_time
from specbench.cli import main
from specbench.errors import UserError

SMALL: dict[str, Any] = {
    "limit": 1,
    "max_new_tokens": 12,
    "dtype": "float32",
    "device": "cpu",
    "threads": 1,
    "engine": "eager",
}
WORDS = [f"{key}={value}" for key, value in SMALL.items()]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_keys_are_spelt_as_on_the_command_line() -> None:
    keys = {"draft": ["a", "b"], "sampling": {"temperature": 1, "top_p": None}, "force": True, "task": {"path": "x y"}}
    assert api.overrides(keys) == [
        "draft=[a,b]", "sampling.temperature=1", "sampling.top_p=null", "force=true", "task.path='x y'",
    ]  # fmt: skip


def test_a_run_is_the_run_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    run = api.run(draft="bigram", gamma=2, warmup=0, quiet=True, **SMALL)
    assert capsys.readouterr().err == "" and not run.reused and not GlobalHydra.instance().is_initialized()
    assert run.alpha == run.summary["alpha"] and run.c is not None and run.predicted is not None
    assert run.to_frame()["run_id"].tolist() == [run.record["run_id"]]
    assert main(["run", "draft=bigram", "gamma=2", "warmup=0", *WORDS]) == 0
    shown = capsys.readouterr().out
    assert "already there" in shown  # the very same config
    again = api.run(draft="bigram", gamma=2, warmup=0, quiet=True, **SMALL)
    assert again.reused and repr(again) == shown.rstrip() and "<pre>" in again._repr_html_()


@pytest.mark.full
def test_alpha_and_a_recommendation() -> None:
    found = api.alpha(draft=["bigram", "unigram"], tokens=4, quiet=True, **SMALL)
    frame = found.to_frame()
    assert set(zip(frame["draft"], frame["temperature"], strict=True)) == {
        (draft, temperature) for draft in ("bigram", "unigram") for temperature in (0.0, 1.0)
    }
    assert found.file.is_file() and "α of drafts" in repr(found)
    ranking = api.recommend(draft=["bigram"], gammas=[1, 2], rounds=2, tokens=4, warmup=0, quiet=True, **SMALL)
    assert len(ranking.to_frame()) == 2 and ranking.best["draft"] == "bigram" and "→" in repr(ranking)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"gama": 3}, "did you mean"),
        ({"resamples": 200}, "specbench run does not use resamples"),
        ({"draft": "bigramm"}, "bigram"),
        ({"gamma": 0}, "gamma"),
        ({"draft": 7}, "name"),
    ],
)
def test_what_cannot_be_is_one_line(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        api.run(**keys)
    assert "\n" not in str(raised.value)


def test_importing_the_package_is_quick() -> None:
    code = "import sys, specbench; print(specbench.alpha.__name__, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["alpha", "False"]


TWELVE_RUNS = """
import threading, specbench
found = []
def go(number):
    keys = dict(draft="bigram", gamma=1 + number % 3, seed=number, limit=1, max_new_tokens=8, warmup=0, threads=1,
                device="cpu", results="runs", quiet=True)
    try:
        found.append(specbench.run(**keys).summary["identical"])
    except Exception as error:
        found.append(repr(error))
for first in range(0, 12, 3):
    threads = [threading.Thread(target=go, args=(first + place,)) for place in range(3)]
    for one in threads: one.start()
    for one in threads: one.join()
print(found)
"""


@pytest.mark.full
def test_runs_in_three_threads_wait_for_each_other() -> None:
    done = subprocess.run([sys.executable, "-c", TWELVE_RUNS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([1.0] * 12)


def test_calls_from_two_threads_do_not_overlap() -> None:
    inside, most = 0, 0
    arrived = threading.Barrier(2)

    @one_at_a_time
    def call(inner: bool = False) -> None:
        nonlocal inside, most
        inside, most = inside + 1, max(most, inside + 1)
        time.sleep(0.05)
        inside -= 1
        if not inner:
            call(inner=True)  # a call within a call does not wait for itself

    def start() -> None:
        arrived.wait()
        call()

    threads = [threading.Thread(target=start) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(timeout=10)
    assert most == 1 and not any(one.is_alive() for one in threads)


def test_the_threads_of_a_run_end_with_it(tmp_path: Path) -> None:
    """Torch, and the kernels with it, went on with one thread in the caller's own code."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        run = api.run(
            target="t5-mini", draft="bigram", limit=1, max_new_tokens=4, warmup=0, threads=1, device="cpu",
            results=tmp_path, quiet=True,
        )  # fmt: skip
        assert run.record["environment"]["threads"] == 1 and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


FORKED = """
import os, sys, torch
from specbench.alone import one_at_a_time
from specbench.errors import UserError
torch.set_num_threads(int(sys.argv[1]))
@one_at_a_time
def compute():
    weights = torch.ones(512, 512)
    return float((weights @ weights).exp().sum())
compute()
if os.fork() == 0:
    try:
        compute()
        print("computed", flush=True)
    except UserError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("threads", "said"), [(1, "computed"), (2, "fork: the parent of this process has computed")])
def test_a_forked_child_computes_or_says_why_not(threads: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(threads)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith(said) and done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"draft": 5}, "draft=5: is picked by its name, which is text; 'specbench list draft' shows them"),
        ({"target": True}, "target=True: is picked by its name, which is text"),
        ({"draft": ["bigram", 5]}, "draft=5: is picked by its name"),
        ({"draft": b"bigram"}, "draft: a bytes is no value; give text, a number"),
        ({"gamma": object()}, "gamma: a object is no value"),
        ({"task": ["The man is", "A dog runs"]}, "task: a list is no task; give its name, or a file of prompts"),
        ({"sampling": {"temperature": {1, 2}}}, "sampling.temperature: a set is no value"),
    ],
)
def test_a_value_of_another_type_is_named(keys: dict[str, Any], said: str) -> None:
    """Bytes were read as a list of numbers, and an object as its address."""
    with pytest.raises(UserError) as raised:
        api.alpha(**keys)
    assert str(raised.value).startswith(said)


def test_an_object_in_place_of_a_name_is_told_how_own_drafts_are_named() -> None:
    with pytest.raises(UserError, match=r"draft: a type is no value; .*drafts of your own .*docs/extending.md"):
        api.run(draft=cast(Any, object))
