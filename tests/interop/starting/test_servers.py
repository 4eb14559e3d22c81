"""The two servers of a target: found, started, side by side or in turn, and each mistake in one line."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.config.paths import shipped
from specbench.errors import MachineError, UserError
from specbench.interop.serving.settings.wanted import Recommended, Weights
from specbench.interop.starting import two_servers as starting
from specbench.interop.starting.process import Process
from specbench.interop.starting.startable import STARTABLE, Call, Startable, Work, as_flags, settings_of
from specbench.interop.starting.two_servers import Asked, Servers, started
from tests.support.version_server import SERVER

TARGET, DRAFT = (Weights(str(shipped("models", name))) for name in ("gpt-mini", "gpt-nano"))


def call(program: str, work: Work, say: object) -> Call:
    drafting = ["--drafting"] if work.drafting is not None else []
    return Call([program, "-c", SERVER, str(work.port), *drafting])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Asked]:
    engine = Startable(
        "toy", "Toy", "SPECBENCH_TOY", "make it", lambda: sys.executable, call, ("/version", "version"), 1
    )
    monkeypatch.setitem(STARTABLE, "toy", engine)
    return Asked("toy", TARGET, candidate("model"), results=tmp_path)


def candidate(kind: str, temperature: float = 0.0) -> Recommended:
    return Recommended(TARGET, kind, DRAFT if kind == "model" else None, {"match": 2}, 3, "exact", temperature)


def test_both_are_started_once_and_stopped(asked: Asked) -> None:
    said: list[str] = []
    with started(asked, said.append) as both:
        assert both.side_by_side()
        plain, drafting = both.plain(), both.drafting()
        assert plain.url != drafting.url and both.plain() is plain
        assert plain.engine == "Toy 1.2" and drafting.flags.endswith("--drafting")
        assert plain.log.parent == asked.results / "engines" and plain.log != drafting.log
    assert len(said) == 2 and str(plain.log) in said[0]
    for one in (plain, drafting):
        with pytest.raises(MachineError):
            one.process.require_running()


def test_one_is_stopped_where_memory_holds_one(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "available_memory", lambda: starting.SPARE + 2.0**20)
    with started(asked, lambda line: None) as both:
        drafting = both.drafting()
        assert not both.side_by_side()
        both.plain()
        with pytest.raises(MachineError):
            drafting.process.require_running()


def test_an_engine_that_is_not_known_or_not_installed_is_told(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="start=triton: must be of vllm, llama.cpp, openvino"):
        Servers(replace(asked, engine="triton"), print)
    monkeypatch.setitem(STARTABLE, "toy", replace(STARTABLE["toy"], find=lambda: None))
    with pytest.raises(
        UserError, match=r"start=toy: Toy is not found; install it \(make it\), or name .* SPECBENCH_TOY"
    ):
        Servers(asked, print)
    monkeypatch.setenv("SPECBENCH_TOY", "/no/such/program")
    with pytest.raises(UserError, match="SPECBENCH_TOY=/no/such/program: is no program"):
        Servers(asked, print)


def test_a_command_is_told_without_the_folders_of_this_machine() -> None:
    command = ["/opt/a/llama-server", "--model", "/home/me/b/c.gguf", "--port", "4711", '{"port": 4711, "x": "/y/z"}']
    told = starting.as_told(command, 4711)
    assert told == 'llama-server --model c.gguf --port PORT \'{"port": PORT, "x": "z"}\''


def test_the_gpu_of_an_engine_is_locked_while_it_runs(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib

    import torch

    held: list[str] = []

    @contextlib.contextmanager
    def locked(device: str, say: object) -> Iterator[torch.device]:
        held.append(device)
        yield torch.device("cuda", 1)
        held.remove(device)

    monkeypatch.setattr(starting, "locked_device", locked)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    given: list[dict[str, str]] = []
    run = starting.Process

    def process(name: str, command: list[str], log: Path, more: dict[str, str]) -> starting.Process:
        given.append(more)
        return run(name, command, log, more)

    monkeypatch.setattr(starting, "Process", process)
    with started(replace(asked, device="cuda"), lambda line: None) as both:
        both.plain(), both.drafting()
        assert held == ["cuda"] and [one["CUDA_VISIBLE_DEVICES"] for one in given] == ["7", "7"]
        assert both.device == "cuda:1"
        both.stop()
        assert held == [], "the verdict needs it"
    monkeypatch.setitem(STARTABLE, "toy", replace(STARTABLE["toy"], on_gpus=False))
    with started(replace(asked, device="cuda"), lambda line: None) as both:
        both.plain()
        assert held == [] and given[-1] == {} and both.device == "cpu"


def test_an_engine_on_the_cpu_sees_no_gpu(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took one all the same, and the record said that it ran on the CPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    given: list[dict[str, str]] = []
    run = starting.Process

    def process(name: str, command: list[str], log: Path, more: dict[str, str]) -> starting.Process:
        given.append(more)
        return run(name, command, log, more)

    monkeypatch.setattr(starting, "Process", process)
    with started(asked, lambda line: None) as both:
        both.plain()
        assert given == [{"CUDA_VISIBLE_DEVICES": ""}] and both.device == "cpu"


def test_memory_is_that_of_the_weights_in_the_dtype_that_is_served(tmp_path: Path, asked: Asked) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(2**20))
    (tmp_path / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    weights = Weights(str(tmp_path))
    assert starting._bytes(weights, "bfloat16") == 2**20 and starting._bytes(weights, "float32") == 2**21


def test_weights_that_are_nowhere_are_told(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    from specbench.interop.starting.converted_weights import gguf_of

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="no/such: is no folder, and not to be had from the hub"):
        gguf_of(Weights("no/such"), "float32", print)
    with pytest.raises(UserError, match="gpt-mini: cannot be converted to GGUF: model_type=gpt2"):
        gguf_of(TARGET, "float32", print)


@pytest.mark.parametrize("kind", ["model", "lookup"])
@pytest.mark.parametrize("engine", STARTABLE)
def test_each_has_the_settings_that_are_printed_for_it(engine: str, kind: str) -> None:
    if kind not in STARTABLE[engine].drafts:
        with pytest.raises(UserError, match=f"start={engine}: .* has no option for draft={kind}"):
            settings_of(engine, candidate(kind, 1.0))
        return
    settings = settings_of(engine, candidate(kind, 1.0))
    assert settings and settings_of(engine, None) == {}
    words = as_flags(settings)
    assert len(words) == 2 * len(settings) and all(isinstance(word, str) for word in words)
    with pytest.raises(UserError, match=f"start={engine}: .* has no accept=lenient"):
        settings_of(engine, replace(candidate(kind), rule="lenient"))


@pytest.mark.parametrize("engine", [name for name, one in STARTABLE.items() if "model" in one.drafts])
def test_an_option_of_the_draft_that_no_engine_has_is_told(engine: str) -> None:
    own = {"match": 2, "vocabulary": "same", "path": "x", "cache_dir": "y", "confidence": None}
    assert settings_of(engine, replace(candidate("model"), options=own))
    for option in ({"confidence": 0.4}, {"window": 64}, {"top_tokens": 100}, {"online": True}, {"weights": "random"}):
        (name, value), *_ = option.items()
        with pytest.raises(UserError, match=f"start={engine}: .* has no draft.{name}={value}"):
            settings_of(engine, replace(candidate("model"), options=option))


@pytest.mark.parametrize("match", [1, 2, 3, 5])
def test_a_match_that_llama_cpp_python_does_not_search_is_told(match: int) -> None:
    drafting = replace(candidate("lookup"), options={"match": match})
    if match in (2, 3):
        assert settings_of("llama-cpp-python", drafting)
        return
    with pytest.raises(UserError, match=f"llama-cpp-python has no draft.match={match}; it matches 2 tokens, then 1"):
        settings_of("llama-cpp-python", drafting)


def test_of_the_engines_only_vllm_is_started_with_eagle_drafts() -> None:
    eagle = replace(candidate("model"), kind="eagle", options={})
    assert settings_of("vllm", eagle)["--speculative-config"]["method"] == "eagle"
    for engine in sorted({*STARTABLE} - {"vllm"}):
        with pytest.raises(UserError, match=f"start={engine}: .*eagle"):
            settings_of(engine, eagle)


def test_two_starts_at_once_make_one_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from specbench.interop.starting import hub_cache

    monkeypatch.setattr(hub_cache, "own_cache", lambda: tmp_path / "cache")
    (weights := tmp_path / "weights").mkdir()
    (weights / "config.json").write_text("{}")
    symlink_to = Path.symlink_to

    def after_the_other(link: Path, file: Path) -> None:
        symlink_to(link, file)
        symlink_to(link, file)

    monkeypatch.setattr(Path, "symlink_to", after_the_other)
    cache = hub_cache.hub_cache(weights, "target", {})
    assert [one.read_text() for one in cache.rglob("config.json")] == ["{}"]


def test_vllm_is_bound_to_processors_that_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from specbench.interop.starting import startable

    monkeypatch.setattr(startable, "processors", lambda threads: [3, 5][:threads])
    work = Work(TARGET, None, "float32", 64, 2, 1)
    assert startable.vllm("vllm", work, print).environment["VLLM_CPU_OMP_THREADS_BIND"] == "3,5"


@pytest.mark.parametrize("drafting", [None, candidate("lookup")])
def test_transformers_serves_a_cache_with_the_settings_beside_the_weights(
    drafting: Recommended | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import scan_cache_dir, snapshot_download

    from specbench.interop.starting import hub_cache, startable

    monkeypatch.setattr(hub_cache, "own_cache", lambda: tmp_path / "cache")
    weights = tmp_path / "weights"
    weights.mkdir()
    own = '{"eos_token_id": 7, "top_k": 50}'
    for name, content in {"config.json": "{}", "generation_config.json": own, "model.safetensors": "W"}.items():
        (weights / name).write_text(content)
    (weights / "old.safetensors").write_text("W")
    for _ in range(2):  # the second start finds the cache of the first
        call = startable.transformers("python", Work(Weights(str(weights)), drafting, "float32", 64, 2, 1), print)
        (weights / "old.safetensors").unlink(missing_ok=True)
    (listed,) = scan_cache_dir(cache := call.environment["HF_HUB_CACHE"]).repos
    assert listed.repo_id == startable.MODEL == call.command[4]
    there = Path(snapshot_download(startable.MODEL, cache_dir=cache, local_files_only=True))
    assert (there / "model.safetensors").read_text() == "W"
    assert not (there / "old.safetensors").is_symlink(), "its file is deleted"
    generation = json.loads((there / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [7] and generation["do_sample"] and generation["top_k"] == 0
    assert generation.get("prompt_lookup_num_tokens") == (None if drafting is None else 3)
    assert json.dumps(generation) in call.file, "the record tells it"
    assert (weights / "generation_config.json").read_text() == own


def test_llama_cpp_python_has_the_settings_and_one_cache_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    from specbench.interop.starting import startable

    monkeypatch.setattr(startable, "gguf_of", lambda weights, dtype, say: f"/x/{dtype}.gguf")
    for dtype, number in (("float32", "0"), ("float16", "1"), ("bfloat16", "30")):  # of GGML's types
        command = startable.llama_cpp_python(
            "python", Work(TARGET, candidate("lookup"), dtype, 64, 2, 1), print
        ).command
        told = dict(zip(command[3::2], command[4::2], strict=True))
        assert told["--type_k"] == told["--type_v"] == number and told["--model"] == f"/x/{dtype}.gguf"
        assert told["--draft_model_num_pred_tokens"] == "3"


def test_the_version_of_a_package_is_that_of_its_own_python(asked: Asked, tmp_path: Path) -> None:
    toy = STARTABLE["toy"]
    assert re.fullmatch(r"Toy \d[\w.]*", replace(toy, version="pytest").version_of("http://127.0.0.1:1"))
    assert replace(toy, version="no-such-package").version_of("http://127.0.0.1:1") == "Toy"
    broken = tmp_path / "python"
    broken.write_text("no program")
    assert replace(toy, version="pytest", find=lambda: str(broken)).version_of("http://127.0.0.1:1") == "Toy"


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({"generation_config.json": '{"eos_token_id": [2, 7]}', "config.json": '{"eos_token_id": 2}'}, [2, 7]),
        ({"generation_config.json": "{}", "config.json": '{"eos_token_id": 2}'}, [2]),
        ({"generation_config.json": "no JSON", "config.json": '{"eos_token_id": [3]}'}, [3]),
        ({"config.json": '{"eos_token_id": null}'}, []),
    ],
)
def test_the_ends_of_a_text_are_those_of_the_weights(files: dict[str, str], ends: list[int], tmp_path: Path) -> None:
    from specbench.interop.starting.startable import ends_of

    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert ends_of(tmp_path) == ends


def test_a_conversion_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from specbench.interop.starting import converted_weights

    monkeypatch.setattr(converted_weights, "own_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(converted_weights, "CONVERTED_S", 0.2)
    tool = tmp_path / "optimum-cli"
    monkeypatch.setenv("SPECBENCH_OPTIMUM", str(tool))
    tool.write_text("#!/bin/sh\nsleep 60\n")
    tool.chmod(0o755)
    with pytest.raises(MachineError, match=r"start=openvino: .*optimum-cli has not converted .*gpt-mini in 0.2 s"):
        converted_weights.ir_of(TARGET, "fp32", sys.executable, print)
    assert not list((tmp_path / "cache" / "engines").iterdir())


def test_a_conversion_that_breaks_off_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from specbench.interop.starting import converted_weights

    monkeypatch.setattr(converted_weights, "own_cache", lambda: tmp_path / "cache")
    tool = tmp_path / "optimum-cli"
    monkeypatch.setenv("SPECBENCH_OPTIMUM", str(tool))
    half = '#!/bin/sh\nfor last; do :; done\ntouch "$last/openvino_tokenizer.xml"\n'
    tool.write_text(half + "echo no room >&2\nexit 1\n")
    tool.chmod(0o755)
    with pytest.raises(UserError, match="cannot convert .*gpt-mini: no room"):
        converted_weights.ir_of(TARGET, "fp32", sys.executable, print)
    assert not list((tmp_path / "cache" / "engines").iterdir())
    tool.write_text(half)
    made = Path(converted_weights.ir_of(TARGET, "fp32", sys.executable, print))
    assert [one.name for one in made.parent.iterdir()] == [made.name] and (made / "openvino_tokenizer.xml").exists()


def test_one_answers_while_the_other_is_held(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, str]] = []
    for verb in ("hold", "go_on"):
        monkeypatch.setattr(Process, verb, lambda self, verb=verb: said.append((verb, self.name)))
    with started(asked, lambda line: None) as both:
        both.drafting()
        with both.alone("drafting"):
            assert said == [], "it is the only one"
        both.plain()
        for which, other in (("drafting", "without a draft"), ("plain", "with its draft")):
            said.clear()
            with both.alone(which):
                assert said == [("hold", f"toy {other}")]
            assert said[1:] == [("go_on", f"toy {other}")]
