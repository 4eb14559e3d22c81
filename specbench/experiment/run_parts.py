"""Build the parts of a run from its config: prompts, target, draft. User errors are raised before weights load."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch

from specbench.algorithm.acceptance.base import Verification
from specbench.algorithm.acceptance.rules.exact import AcceptByChance
from specbench.algorithm.decoding import DecodingSpec
from specbench.algorithm.draft import Draft, require_base
from specbench.config.draft import TextDraftConfig
from specbench.config.keys import as_share
from specbench.config.model import is_gguf, name_of
from specbench.config.rules import AcceptKeys, rule_of
from specbench.config.schema import RunConfig
from specbench.engine.capture.torch_private import computes_bf16
from specbench.engine.eager.model import EagerModel
from specbench.engine.operations.usable_fused import in_words
from specbench.engine.session import Model, Prompt
from specbench.environment import require_cpus
from specbench.errors import UserError
from specbench.experiment.dtype import faster_dtype
from specbench.experiment.from_model import with_settings_of_model
from specbench.experiment.prompts import encode_tasks
from specbench.experiment.sharing import SharedBeginnings
from specbench.experiment.threads import use_default_threads
from specbench.loading import VocabularyChoice, require_range, require_room
from specbench.loading.model_loader import ModelLoader, ModelRequest, Say, pinned
from specbench.methods.build import DraftBuilder, DraftRequest, builder_for, needed_of_target
from specbench.sampling import Sampling
from specbench.tasks import Example
from specbench.text.processed import drawing, processed
from specbench.text.processors import processors
from specbench.text.stops import stops_of
from specbench.text.tokenizer import load_tokenizer
from specbench.text.vocabulary import Vocabulary

AnyRunConfig = TypeVar("AnyRunConfig", bound=RunConfig)


@dataclass(frozen=True)
class Parts:
    """The parts of a run; `prompts[i]` is `examples[i]` in tokens."""

    config: RunConfig  # resolved, on this run's device
    examples: list[Example]
    prompts: list[Prompt]
    probe_prompts: list[Prompt]  # of the same task, not measured; gamma is probed on them
    vocabulary: Vocabulary
    target: Model
    draft: Draft
    device: torch.device
    models: tuple[EagerModel, ...]  # the target, and the draft's models
    invariant: bool  # what the target reads at a position is the same to the bit, however many it reads at once
    not_invariant: str | None  # why not, where numerics are not to be fast
    spec: DecodingSpec  # without a gamma, until `experiment.drafting_plan` chooses one
    draft_vocabulary: VocabularyChoice | None = None  # how a model drafts for the target's vocabulary
    shared: SharedBeginnings | None = None  # what sessions copy; None: each reads all of its prompt

    def sharing(self) -> "Parts":
        """These parts, with nothing copied yet; themselves with reuse=false."""
        if not self.config.reuse:
            return self
        return replace(self, shared=SharedBeginnings(self.target, self.draft.models, self.prompts, self.examples))

    @property
    def engine(self) -> str:
        """The target's engine, and after a '+' the draft's if it is another."""
        return "+".join(dict.fromkeys(model.engine for model in self.models))

    @property
    def fell_back(self) -> str | None:
        """Why a model of engine=auto runs by a slower engine than the fastest of its device."""
        return next((model.report.fell_back for model in self.models if model.report.fell_back), None)

    @property
    def rollout_fell_back(self) -> str | None:
        """Why a draft's steps are not one graph although they should be, up to now."""
        return next((model.report.rollout_fell_back for model in self.models if model.report.rollout_fell_back), None)

    @property
    def gpu_kernels(self) -> str | None:
        """The fused kernels that its models' steps call, and those left to torch, in words; None off a GPU."""
        used = [model.report.gpu_kernels for model in self.models if model.report.gpu_kernels is not None]
        return in_words(self.device, frozenset().union(*used)) if used else None

    @property
    def warmup_s(self) -> float:
        """Seconds of engine set-up so far; some captures are made between prompts."""
        return sum(model.report.warmup_s for model in self.models)


def resolve(config: AnyRunConfig, note: Say | None = None) -> AnyRunConfig:
    """The config with every 'auto' and dependent default resolved for this machine, and every hub model at a commit.

    `note` receives the keys that pin each model.
    """
    require_cpus(config.threads)
    use_default_threads(config.threads)
    config = with_settings_of_model(cast(AnyRunConfig, pinned(config, note)), note or (lambda _: None))
    device = _device(config.device, note or (lambda _: None))
    task = config.task
    if task.source_field is None and task.prompt_words is None:
        # From the empty prompt, argmax writes one and the same text every time.
        task = replace(task, prompt_words=4 if config.sampling.temperature == 0 else 0)
    dtype = _dtype(config, device, note or (lambda _: None))
    accept = AcceptKeys() if rule_of(config.accept).is_exact else config.accept  # so that both are one run
    until = config.until and f"{100 * (as_share(config.until) or 0):g}%"  # 2% and 0.02 are one run
    context = None if (length := config.context_tokens) is None else _as_length(length)
    return replace(config, device=str(device), dtype=dtype, task=task, accept=accept, until=until, context=context)


def _as_length(tokens: int) -> str:
    """4096 and 4k are one run."""
    return str(tokens) if tokens % 1024 else f"{tokens // 1024}k"


NO_MPS = (
    "device=auto takes the CPU: for Apple's GPU there are no captured steps, so a step waits for the launch of each "
    "operation; device=mps uses it"
)


def _device(name: str, note: Say) -> torch.device:
    if name == "auto":
        if torch.backends.mps.is_available():
            note(NO_MPS)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device={name}: this machine has {torch.cuda.device_count()} CUDA devices; use device=cpu")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"device={name}: there is no such device on this machine; use device=cpu")
    return device


def _dtype(config: RunConfig, device: torch.device, note: Say) -> str:
    if config.dtype != "auto":
        return config.dtype
    if device.type == "cpu" and is_gguf(config.target):
        note("dtype=auto: float32, in which the kernels add up products with a GGUF file's levels")
        return "float32"
    if device.type == "cpu" and (found := faster_dtype(config)) is not None:
        note(found.line)
        return found.dtype
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bfloat16" if device.type == "cpu" and computes_bf16() else "float32"


def _fitting(configs: Sequence[RunConfig], loader: ModelLoader) -> tuple[Vocabulary, dict[str, DraftBuilder[Any]]]:
    """The target's vocabulary and the builder of each draft, made before weights are loaded.

    Raises what says that the configs do not fit their models.
    """
    first = configs[0]
    vocabulary = load_tokenizer(first.target, "target")
    require_range(first, vocabulary, name_of(first.target))
    for config in configs:  # the errors of their processors come before weights are loaded
        processors(config.sampling, vocabulary, frozenset({vocabulary.start}))
        stops_of(config.sampling.stop, vocabulary)
    device = torch.device(first.device)
    return vocabulary, {
        _key(one): builder_for(DraftRequest(one, one.draft, "draft", vocabulary, device, loader)) for one in configs
    }


def require_fitting(config: RunConfig) -> None:
    """Raise what `build_each` raises of a resolved config before it reads prompts and loads weights."""
    _fitting([config], ModelLoader())


def build_each(
    configs: Sequence[RunConfig],
    say: Say,
    note: Say | None = None,
    heading: str = "",
    loader: ModelLoader | None = None,
    later_turns: bool = False,
) -> list[Parts]:
    """The parts of each of several resolved configs that differ only in draft, rule, task and sampling.

    The target and every draft are loaded once and remain in memory together; every pair is checked before any weight is
    loaded. The first config's `threads` are set in torch.

    Args:
        configs: the resolved configs.
        say: receives each long step.
        note: receives the task and facts about its prompts; None: `say`.
        heading: begins the first of these lines.
        loader: loads the models.
        later_turns: whether later turns of conversations are also prompts, to be completed by the answers before them.

    Raises:
        UserError, MachineError: as `engine.weights.load` and `tasks`.
    """
    first, loader = configs[0], loader or ModelLoader()
    use_default_threads(first.threads)
    device = torch.device(first.device)
    vocabulary, builders = _fitting(configs, loader)
    for one in builders.values():
        if one.vocabulary is not None and one.vocabulary.how != "same":
            (note or say)(one.vocabulary.line(name_of(first.target), one.draft.label()))
    encoded = encode_tasks(configs, vocabulary, note or say, heading, later_turns)
    for making in builders.values():
        making.fit(say)
    needed = needed_of_target(builders.values())
    target = loader.load(ModelRequest(first.target, "target", vocabulary, first, device, needed), say)
    for config, task in zip(configs, encoded, strict=True):
        require_room(config, target.longest, [*task.prompts, *task.probe_prompts])
    drafts = {key: making.load(target, say) for key, making in builders.items()}
    for draft in drafts.values():
        require_base(draft, Draft, "draft")
    if first.simulate.alpha is not None:  # texts mean nothing, so where they would end does not either
        for model in (target, *(model for making in builders.values() for model in making.models)):
            model.eos_ids = frozenset()
    found = []
    for config, task in zip(configs, encoded, strict=True):
        making = builders[_key(config)]
        if config.tree.shape != "none":
            for model in (target, *making.models):
                model.require_trees()
        making.require_room([*task.prompts, *task.probe_prompts])
        not_invariant = target.report.not_invariant
        if config.batch > 1 and config.numerics == "invariant":
            not_invariant = f"rows of a batch are not checked for invariance (batch={config.batch})"
        draft, models = drafts[_key(config)], (target, *making.models)
        spec = replace(build_spec(config), stops=stops_of(config.sampling.stop, vocabulary))
        found.append(Parts(
            config, task.examples, task.prompts, task.probe_prompts, vocabulary,
            processed(target, config.sampling, vocabulary), draft, device, models, target.invariant, not_invariant,
            spec, making.vocabulary,
        ))  # fmt: skip
    return found


def _key(config: RunConfig) -> str:
    """The identity of a draft: its own config, its training text if it is fitted on text, how logits are processed."""
    fitted = any(isinstance(one, TextDraftConfig) for one in config.draft.levels())
    processing = config.sampling.processing() if config.sampling.processes else None
    return repr((config.draft, config.task if fitted else None, processing))


def build_spec(config: RunConfig) -> DecodingSpec:
    """The `DecodingSpec` of a checked config; `experiment.drafting_plan` chooses its gamma when models are loaded."""
    sampling = drawing(config.sampling)
    return DecodingSpec(sampling, config.max_new_tokens, build_verification(config, sampling))


def build_verification(config: RunConfig, sampling: Sampling) -> Verification:
    """The rule of a checked config, or acceptance at random."""
    if config.simulate.alpha is not None:
        return Verification(AcceptByChance(config.simulate.alpha), sampling)
    return rule_of(config.accept).verification(sampling)
