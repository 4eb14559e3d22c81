"""Load the models of a run, and hold its device; in a sweep both are passed from job to job.

Loading a target of 11 billion parameters takes minutes, and the jobs of a sweep mostly share their target.
"""

import gc
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from filelock import FileLock, Timeout

from specbench.config.draft import DraftConfig
from specbench.config.model import ModelConfig, name_of, place_of
from specbench.config.paths import shipped
from specbench.config.schema import RunConfig, TaskConfig
from specbench.engine.eager.model import EagerModel
from specbench.engine.operations.usable_fused import in_words
from specbench.engine.weights.adapters import base_of
from specbench.engine.weights.load import load_model
from specbench.engine.weights.pretrained import named
from specbench.errors import UserError
from specbench.files import digest as digest_of
from specbench.files import private_folder, user_cache
from specbench.hub import COMMIT, Kind, commit_of
from specbench.loading.tensor_parallel import own_device
from specbench.text.vocabulary import Vocabulary

SECONDS_BETWEEN_LOOKS = 0.5


@contextmanager
def locked_device(
    name: str,
    say: Callable[[str], None],
    count: Callable[[], int] = torch.cuda.device_count,
) -> Iterator[torch.device]:
    """The device called `name` ('cuda' is any free GPU), locked until the end of the block.

    It is torch's current device: streams and captures that name no device use it.
    """
    device = torch.device(name)
    if device.type != "cuda":
        yield device
        return
    wanted = range(count()) if device.index is None else [device.index]
    told = False
    while True:
        for index in wanted:
            lock = FileLock(_lock_file(index))
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            try:
                torch.cuda.set_device(index)
                yield torch.device("cuda", index)
            finally:
                lock.release()
            return
        if not told:
            say("waiting for a GPU: another run is on each of them")
            told = True
        time.sleep(SECONDS_BETWEEN_LOOKS)


def physical_gpu(index: int) -> str:
    """The system's name for the GPU that this process sees under `index`."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return visible[index].strip() if index < len(visible) and visible[index].strip() else str(index)


def _lock_file(index: int) -> Path:
    """One file per physical GPU: processes may see different GPUs under the same index."""
    # Anyone may have made the folder in the shared place first; then the locks of this user are in their cache.
    shared = Path(tempfile.gettempdir()) / f"specbench-gpus-{os.getuid()}"
    folder = private_folder(shared, user_cache() / f"gpus-{platform.node()}")
    return folder / f"{physical_gpu(index)}.lock"


# Files of a model's folder that only describe the model: a corrected model card does not make another run.
ABOUT = ("README.md", "recipe.yaml", "training-log.json", "training.json", "seconds.txt", "held-out.jsonl")


FileFacts = list[tuple[str, int, int | str]]  # name, size, and time of modification or digest


def files_of(model: ModelConfig) -> FileFacts:
    """The facts of each file of a local model, and of the base of an adapter, except model cards and training logs.

    Empty for a model of the hub, whose commit names it.
    """
    if model.path is not None:
        facts = files_in(Path(model.path, model.gguf or ""))
    elif model.shipped is not None and model.hub is None:
        facts = files_in(shipped("models", model.shipped), ships=True)
    else:
        facts = []
    base = base_of(model, "target")
    facts += [] if base is model else files_of(base)
    return [fact for fact in facts if fact[0] not in ABOUT]


def files_in(path: Path, ships: bool = False) -> FileFacts:
    """The facts of a file, or of each file in a folder. Files that ship have a digest instead of a time."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [
        (file.name, file.stat().st_size, digest_of(file) if ships else file.stat().st_mtime_ns)
        for file in files
        if file.is_file()
    ]


Say = Callable[[str], None]
LABELS = ("name", "note")  # of a model's config; they say nothing of its weights


@dataclass(frozen=True)
class TargetOutputs:
    """The outputs of a target's sessions beside logits, and their inputs beside tokens, for its drafts.

    Attributes:
        states: the input of its head, with its states after so many layers (`taps`).
        of_prompt: also the states of the prompt.
        lookahead_embeddings: they read the look-ahead embeddings in these folders.
    """

    states: bool = False
    taps: tuple[int, ...] = ()
    of_prompt: bool = False
    lookahead_embeddings: tuple[Path, ...] = ()


LOGITS_ALONE = TargetOutputs()


@dataclass(frozen=True)
class ModelRequest:
    """A model to be loaded for a run.

    Attributes:
        key: the config's name for it, for messages.
        outputs: what its sessions return and read for drafts.
        changes: its weights will be changed, so that no other run shares it.
        kept_tokens: it predicts only these tokens.
        level_bits: the weights of its linear maps are rounded to so many bits; 0: they are not.
    """

    model: ModelConfig
    key: str
    vocabulary: Vocabulary
    run: RunConfig
    device: torch.device
    outputs: TargetOutputs = LOGITS_ALONE
    changes: bool = False
    kept_tokens: tuple[int, ...] | None = None
    level_bits: int = 0

    @property
    def numerics(self) -> str:
        """The draft's numerics: always fast, since its tokens are verified; batches are not proved."""
        return self.run.numerics if self.key == "target" and self.run.batch == 1 else "fast"

    def weights(self) -> tuple[Any, ...]:
        """The identity of a model in memory: the source of its weights, and its engine."""
        source = [getattr(self.model, field.name) for field in fields(ModelConfig) if field.name not in LABELS]
        endless = self.run.simulate.alpha is not None or self.run.sampling.ignore_eos  # the ends are taken away
        run = (self.run.dtype, self.device, self.run.engine, self.numerics, self.outputs, endless, self.kept_tokens,
               self.level_bits)  # fmt: skip
        return (source, files_of(self.model), *run)


class ModelLoader:
    """Loads the models of each run anew."""

    def device(self, config: RunConfig, say: Say) -> AbstractContextManager[torch.device]:
        """The device of a resolved config, held by only this run. A target that is spread takes all of them."""
        if config.target.device_map or config.target.tp_plan:
            return nullcontext(own_device(config))
        return locked_device(config.device, say)

    def once(self, note: Say) -> Say:
        """`note` for lines that are the same for many runs, such as the dtype of a model: here each run has them."""
        return note

    def close(self) -> None:
        """Free all models, and the device: nothing is held between runs."""

    def load(self, request: ModelRequest, say: Say) -> EagerModel:
        """The model, ready to start sessions."""
        say(f"loading {request.key} {name_of(request.model)}")
        model = load_model(
            request.model,
            request.key,
            request.vocabulary,
            getattr(torch, request.run.dtype),
            request.device,
            request.run.engine,
            request.outputs.states,
            request.numerics,
            request.outputs.taps,
            request.outputs.of_prompt,
            request.outputs.lookahead_embeddings,
            request.kept_tokens,
            request.level_bits,
        )
        if request.run.sampling.ignore_eos:
            model.eos_ids = frozenset()
        if model.report.unused_tensors:
            say(f"{request.key}: tensors of its files that nothing reads: {named(model.report.unused_tensors)}")
        if model.report.weights is not None:
            say(f"{request.key}: {name_of(request.model)}: {model.report.weights}")
        if model.report.fell_back is not None and model.engine != "eager":
            say(f"{request.key}: engine={model.engine}, which is slower than native: {model.report.fell_back}")
        elif model.report.fell_back is not None:
            say(
                f"warning: {request.key}: its step cannot be captured, so engine=auto runs it eagerly, which is "
                f"slower: c, v and the speedup are an eager model's ({model.report.fell_back})"
            )
        if model.report.gpu_kernels is not None:
            say(f"{request.key}: kernels of a step: {in_words(model.device, model.report.gpu_kernels)}")
        if model.report.not_invariant is not None and request.numerics == "invariant":
            say(f"{request.key}: numerics={request.numerics} is fast instead: {model.report.not_invariant}")
        return model


@dataclass
class _Loaded:
    weights: tuple[Any, ...]
    model: EagerModel
    in_use: bool = True  # by the present run


class SharedModels(ModelLoader):
    """A loader whose models remain in memory for the next run, with their device.

    Before a model is loaded those that the present run does not use are freed, so that memory never holds more than
    one run needs. A run that fails leaves no model to the next. `close` frees everything.
    """

    def __init__(self) -> None:
        self._loaded: list[_Loaded] = []
        self._lease: tuple[object, ExitStack, torch.device] | None = None
        self._told: set[str] = set()

    def once(self, note: Say) -> Say:
        """`note`, which gets a line only from the first of the runs that have it."""

        def first(line: str) -> None:
            if line not in self._told:
                self._told.add(line)
                note(line)

        return first

    @contextmanager
    def device(self, config: RunConfig, say: Say) -> Iterator[torch.device]:
        wanted = (config.device, config.target.device_map, config.target.tp_plan)
        if self._lease is None or self._lease[0] != wanted:
            self.close()
            held = ExitStack()
            self._lease = (wanted, held, held.enter_context(super().device(config, say)))
        self._release()
        try:
            yield self._lease[2]
        except UserError:  # of the run's config: the models are as they were
            raise
        except BaseException:
            self._loaded.clear()
            raise

    def load(self, request: ModelRequest, say: Say) -> EagerModel:
        if request.changes:
            self._free_unused()
            return super().load(request, say)
        weights = request.weights()
        if (model := self._unused(weights)) is not None:
            say(f"{request.key} {name_of(request.model)} is in memory")
            return model
        self._free_unused()
        model = super().load(request, say)
        self._loaded.append(_Loaded(weights, model))
        return model

    def _unused(self, weights: tuple[Any, ...]) -> EagerModel | None:
        """A model of these weights that the present run does not use yet; from now on it does."""
        for loaded in self._loaded:
            if not loaded.in_use and loaded.weights == weights:
                loaded.in_use = True
                return loaded.model
        return None

    def close(self) -> None:
        """Free all models, and the device."""
        self._release()
        self._free_unused()
        if self._lease is not None:
            self._lease[1].close()
            self._lease = None

    def _release(self) -> None:
        """Release the models after a run."""
        for loaded in self._loaded:
            loaded.in_use = False

    def _free_unused(self) -> None:
        if all(loaded.in_use for loaded in self._loaded):
            return
        self._loaded = [loaded for loaded in self._loaded if loaded.in_use]
        gc.collect()  # a network's own code may hold cycles; ours has none
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


M = TypeVar("M", bound=ModelConfig)


def pinned(config: RunConfig, note: Say | None = None) -> RunConfig:
    """The config with a commit for each missing revision, branch or tag; `note` receives the words that pin it.

    Raises:
        UserError: the hub has no such repository or revision.
        MachineError: it cannot be asked.
    """
    note = note or (lambda _: None)
    return replace(
        config,
        target=_model(config.target, "target", note),
        draft=_draft(config.draft, "draft", note),
        task=_task(config.task, note),
    )


def _draft(draft: DraftConfig, key: str, note: Say) -> DraftConfig:
    parts: dict[str, Any] = {
        name: _draft(part, f"{key}.{name}", note) for name, part in draft.parts().items() if part is not None
    }
    if parts:
        return replace(draft, **parts)
    return _model(draft, key, note) if isinstance(draft, ModelConfig) else draft


def _model(model: M, key: str, note: Say) -> M:
    base = base_of(model, key)
    if base is not model:  # named, and at a commit
        base = _model(base, f"{key}.base", note)
        at = "" if base.revision is None else f"@{base.revision}"
        file = "" if base.gguf is None else f":{base.gguf}"
        model = replace(model, base=place_of(base) if base.path else f"{base.hub}{at}{file}")
    if model.path is not None or model.hub is None or model.architecture:
        return model
    in_a_word = model.name is None and ("." not in key or key.endswith(".base"))  # a base is always a word
    file = "" if model.gguf is None else f":{model.gguf}"
    return replace(model, revision=_commit(model.hub, model.revision, key, "model", in_a_word, note, file))


def _task(task: TaskConfig, note: Say) -> TaskConfig:
    if task.path is not None or task.hub is None:
        return task
    return replace(task, revision=_commit(task.hub, task.revision, "task", "dataset", False, note))


def _commit(
    hub: str, revision: str | None, key: str, kind: Kind, in_a_word: bool, note: Say, file: str = ""
) -> str:  # fmt: skip
    if revision is not None and COMMIT.fullmatch(revision):
        return revision
    commit = commit_of(hub, revision, key, kind)
    word = f"{key}={hub}@{commit}{file}" if in_a_word else f"{key}.revision={commit}"
    note(f"{hub} is at commit {commit[:12]}; to pin it: {word}")
    return commit
