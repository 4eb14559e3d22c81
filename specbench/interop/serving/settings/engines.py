"""The settings of each engine for a candidate: flags, JSON or Python, and the version that the names belong to.

To add an engine: a function from `Recommended` to `Settings`, and a `ServingEngine` in `ENGINES`.
"""

import json
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import PurePath
from typing import Any

import yaml

from specbench.config.drafts import DRAFT_KINDS
from specbench.interop.serving.settings.wanted import NotExpressible, Recommended, Settings, Weights

INDENT = "  "
LOOKUP_DIFFERS = (
    "n-gram matching differs in detail from draft=lookup (which run of which place is copied), so the acceptance may "
    "differ from the recommendation's"
)
ENCODER_DECODER = (
    "the target is an encoder-decoder, and {engine} documents these settings for decoder-only models; its list of "
    "models says what it serves"
)


EAGLE = {"eagle": "EAGLE", "eagle3": "EAGLE3"}  # kinds of drafts that engines read in their authors' layout
# Keys of a draft that locate its weights or name it; keys of its kind that engines also have; and values that mean the
# same as the default.
PLACES = ("kind", "name", "note", "path", "hub", "revision", "shipped", "cache_dir")
READ = {"lookup": ("match",)}
AS_DEFAULT = {"vocabulary": ("same",)}
LAYOUT = "the draft's folder must have the layout of its authors; engines do not read what specbench train writes"


@dataclass(frozen=True)
class ServingEngine:
    """An engine, and how a recommendation is expressed in its settings.

    Attributes:
        checked: the version that the names were checked against.
        page: its documentation.
        make: the settings for a draft with weights (`Recommended.draft`) or for prompt lookup.
        rules: the acceptance rules that it has, as tables name them.
        kinds: of drafts that are known to be read; `schedules`: those whose gamma may depend on the batch size.
        decoder_only: what documents these settings for only decoder-only models; '' if they hold for encoder-decoders.
    """

    name: str
    title: str
    checked: str
    page: str
    make: Callable[[Recommended], Settings]
    rules: Collection[str] = ("exact",)
    kinds: Collection[str] = ("model", "lookup")
    schedules: Collection[str] = ()
    decoder_only: str = ""

    def settings(self, wanted: Recommended) -> Settings:
        """The settings for a candidate. Raises NotExpressible if this engine has none."""
        if wanted.rule not in self.rules:
            raise NotExpressible(f"{self.title} has no accept={wanted.rule}")
        if wanted.kind in EAGLE and wanted.kind not in self.kinds:
            raise NotExpressible(f"no settings of {self.title} are known here for {wanted.kind}")
        if wanted.kind not in self.kinds:
            raise NotExpressible(f"{self.title} has no draft like {wanted.kind}")
        if wanted.kind in EAGLE and wanted.draft is None:
            raise NotExpressible(f"{self.title} does not read the weights of {wanted.kind} that ship with specbench")
        if (option := unread(wanted)) is not None:
            raise NotExpressible(f"{self.title} has no {option}")
        made = self.make(wanted)
        notes = list(made.notes)
        if wanted.kind in EAGLE:
            notes.append(LAYOUT)
        if wanted.schedule and wanted.kind not in self.schedules:
            all_sizes = f"this is γ={wanted.gamma} at every size"
            notes.insert(0, f"{self.title} has no schedule by batch size for such a draft: {all_sizes}")
        if wanted.encoder_decoder and self.decoder_only:
            notes.append(ENCODER_DECODER.format(engine=self.decoder_only))
        if wanted.processing is not None:
            notes.append(f"set in each request, in this engine's own terms: {wanted.processing}")
        return replace(made, notes=notes)


def unread(wanted: Recommended) -> str | None:
    """The first option of the draft, as key=value, that is not at its default and that no engine has."""
    for one in fields(DRAFT_KINDS[wanted.kind]):
        default = one.default if one.default_factory is MISSING else one.default_factory()
        value = wanted.options.get(one.name, default)
        if one.name in (*PLACES, *READ.get(wanted.kind, ())) or value in (default, *AS_DEFAULT.get(one.name, ())):
            continue
        return f"draft.{one.name}={value}"
    return None


def shell(*parts: Sequence[str]) -> str:
    """A shell command: the first of `parts` on the first line, each other on one of its own."""
    return f" \\\n{INDENT}".join(shlex.join(part) for part in parts)


def flags(values: Mapping[str, Any]) -> list[list[str]]:
    """`--name value` of each entry."""
    return [[name, str(value)] for name, value in values.items()]


# Hugging Face `transformers`: assisted generation, and prompt lookup.
def transformers(wanted: Recommended) -> Settings:
    """Keywords of `generate`, and for a draft model entries of the draft's own generation config."""
    call = sampling_keywords(wanted.temperature, wanted.top_k, wanted.top_p)
    auto = "AutoModelForSeq2SeqLM" if wanted.encoder_decoder else "AutoModelForCausalLM"
    lines = [f"from transformers import {auto}", _load("model", auto, wanted.target)]
    if (draft := wanted.draft) is None:
        call |= {"prompt_lookup_num_tokens": wanted.gamma, "max_matching_ngram_size": wanted.options.get("match", 3)}
        notes = [LOOKUP_DIFFERS]
        if wanted.encoder_decoder:
            notes.append("prompt lookup searches only the decoder's tokens, and draft=lookup also the source")
        lines.append(f"model.generate(**inputs, {_keywords(call)})")
        return Settings("\n".join(lines), {"generate": call}, notes=notes)
    own = {
        "num_assistant_tokens": wanted.gamma,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    lines.append(_load("assistant", auto, draft))
    lines.append(f"assistant.generation_config.update({_keywords(own)})")
    lines.append(f"model.generate(**inputs, assistant_model=assistant, {_keywords(call)})")
    notes = [
        "the three are read from the draft's generation config; the defaults draft up to 20 tokens and stop below a "
        "confidence of 0.4",
        "one prompt at a time: assisted generation does not support batches",
    ]
    if wanted.encoder_decoder:
        notes.append(
            "with an encoder-decoder give decoder_attention_mask too (ones as long as decoder_input_ids): without it "
            "the draft reads its text twice from the second pass on, and agrees less (5.23)"
        )
    return Settings("\n".join(lines), {"generate": call, "assistant.generation_config": own}, notes=notes)


def sampling_keywords(temperature: float, top_k: int | None, top_p: float | None) -> dict[str, object]:
    """A sampling setting as `generate` takes it, whose own top-k is 50 if none is given."""
    if temperature == 0:
        return {"do_sample": False}
    top_p = 1.0 if top_p is None else top_p
    return {"do_sample": True, "temperature": temperature, "top_k": top_k or 0, "top_p": top_p}


def _load(variable: str, auto: str, weights: Weights) -> str:
    revision = f', revision="{weights.revision}"' if weights.revision else ""
    return f'{variable} = {auto}.from_pretrained("{weights.place}"{revision})'


def _keywords(values: dict[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


# vLLM: `--speculative-config`, a JSON object (`vllm/config/speculative.py`).
VLLM_RULES = {"exact": "standard", "onehot": "standard", "block": "block"}
MOST_SEQUENCES = 1024  # if a schedule's last span has no end: past vLLM's default of concurrent sequences


def vllm(wanted: Recommended) -> Settings:
    """`vllm serve` with its speculative config."""
    config: dict[str, object] = {}
    notes = []
    if (draft := wanted.draft) is None:
        config |= {"method": "ngram", "prompt_lookup_max": wanted.options.get("match", 3), "prompt_lookup_min": 1}
        notes.append(LOOKUP_DIFFERS)
    else:
        config |= {"method": "draft_model" if wanted.kind == "model" else wanted.kind, "model": draft.place}
        if draft.revision:
            config["revision"] = draft.revision
        if wanted.temperature > 0 and wanted.rule == "onehot":
            config["draft_sample_method"] = "greedy"
        elif wanted.temperature > 0:
            config["draft_sample_method"] = "probabilistic"
            notes.append("draft_sample_method: the default drafts the argmax, whose α at T>0 is accept=onehot's")
    config["num_speculative_tokens"] = wanted.longest
    if VLLM_RULES[wanted.rule] != "standard":
        config["rejection_sample_method"] = VLLM_RULES[wanted.rule]
    if wanted.schedule:
        config["num_speculative_tokens_per_batch_size"] = [
            [span.first, span.last or MOST_SEQUENCES, span.gamma] for span in wanted.schedule
        ]
        eagle = "" if wanted.kind in EAGLE else ", and documented for EAGLE drafts and DFlash"
        notes.append(f"the schedule is off under data parallelism{eagle}")
    command = [["vllm", "serve", wanted.target.place]]
    if wanted.target.revision:
        command.append(["--revision", wanted.target.revision])
    command.append(["--speculative-config", json.dumps(config)])
    return Settings(shell(*command), {"--speculative-config": config}, notes=notes)


# SGLang: flags of `sglang.launch_server`.
ADAPTIVE = "adaptive.json"


def sglang(wanted: Recommended) -> Settings:
    """STANDALONE for a draft model, NGRAM for prompt lookup; a chain, not a tree (topk or breadth 1).

    With EAGLE drafts --speculative-adaptive-config holds steps by the smallest batch size that they are for
    (sgl-project/sglang#24055, srt/speculative/adaptive_spec_params.py): one candidate each is a schedule, 0 drafts
    nothing.
    """
    gamma = wanted.longest if wanted.kind in EAGLE else wanted.gamma
    verified = gamma + 1  # the newest token is read with the drafted tokens
    values: dict[str, object]
    notes = []
    if (draft := wanted.draft) is None:
        values = {
            "--speculative-algorithm": "NGRAM",
            "--speculative-num-draft-tokens": verified,
            "--speculative-ngram-max-bfs-breadth": 1,
        }
        notes += [
            LOOKUP_DIFFERS,
            "NGRAM runs on CUDA and on CPU; it matches as long a suffix as its trie holds "
            "(--speculative-ngram-max-trie-depth), and its cache holds earlier requests too",
        ]
    else:
        algorithm = EAGLE.get(wanted.kind, "STANDALONE")
        values = {"--speculative-algorithm": algorithm, "--speculative-draft-model-path": draft.place}
        if draft.revision:
            values["--speculative-draft-model-revision"] = draft.revision
        values |= {
            "--speculative-num-steps": gamma,
            "--speculative-eagle-topk": 1,
            "--speculative-num-draft-tokens": verified,
        }
        if wanted.temperature > 0 and wanted.rule == "exact" and wanted.kind == "model":
            notes.append(
                "T>0: STANDALONE drafts the argmax and accepts it with its p (rejection sampling with q is only for "
                "EAGLE drafts); lossless, but its α is accept=onehot's"
            )
    target = {"--model-path": wanted.target.place}
    if wanted.target.revision:
        target["--revision"] = wanted.target.revision
    more, file = list[list[str]](), None
    if wanted.schedule and wanted.kind in EAGLE:
        more = [["--speculative-adaptive"]]
        slots = ",\n".join(f'{INDENT}"{one.first}": {{"candidate_steps": [{one.gamma}]}}' for one in wanted.schedule)
        file = (ADAPTIVE, f"{{\n{slots}\n}}")
        values["--speculative-adaptive-config"] = ADAPTIVE
        notes.append("the schedule is off under attention data parallelism; its batch sizes are its CUDA graphs'")
        if not all(span.gamma for span in wanted.schedule):
            notes.append("0 steps draft nothing; releases whose steps must be at least 1 refuse them")
    launch = shell(["python3", "-m", "sglang.launch_server"], *flags(target), *more, *flags(values))
    return Settings(launch, values, file, notes=notes)


# llama.cpp: flags of `llama-server`. Models are GGUF files.
def llama_cpp(wanted: Recommended) -> Settings:
    """draft-simple for a draft model, ngram-simple for prompt lookup."""
    values: dict[str, object]
    notes = ["FILE.gguf: made from the weights by convert_hf_to_gguf.py; quantised weights have another α"]
    if (draft := wanted.draft) is None:
        values = {
            "--spec-type": "ngram-simple",
            "--spec-ngram-simple-size-n": wanted.options.get("match", 3),
            "--spec-ngram-simple-size-m": wanted.gamma,
            "--spec-ngram-simple-min-hits": 1,
        }
        notes += [LOOKUP_DIFFERS, "ngram-simple looks for runs of that length only, not for shorter runs after it"]
    else:
        values = {
            "--model-draft": _gguf(draft),
            "--spec-type": "draft-simple",
            "--spec-draft-n-max": wanted.gamma,
            "--spec-draft-n-min": 0,
            "--spec-draft-p-min": 0,
        }
        if wanted.temperature > 0 and wanted.rule == "exact":
            values["--spec-draft-sampling"] = "probabilistic"
            notes.append("--spec-draft-sampling: the default drafts the argmax, whose α at T>0 is accept=onehot's")
            notes.append("the draft draws only from its 10 best tokens: α at T>0 is not the one estimated here")
        notes.append("builds from before --spec-draft-n-max call it --draft-max, and p-min --draft-p-min")
    command = shell(["llama-server"], ["--model", _gguf(wanted.target)], *flags(values))
    return Settings(command, values, notes=notes)


def _gguf(weights: Weights) -> str:
    """The converted file, or a name for one that is to be made."""
    return weights.place if weights.place.endswith(".gguf") else f"{PurePath(weights.place).name}.gguf"


# llama-cpp-python: flags of `python -m llama_cpp.server`.
def llama_cpp_python(wanted: Recommended) -> Settings:
    """Prompt lookup, whose length of a match has no option; draft=lookup's own default passes."""
    if (match := wanted.options.get("match", 3)) not in (2, 3):
        raise NotExpressible(f"llama-cpp-python has no draft.match={match}; it matches 2 tokens, then 1")
    values = {"--draft_model": "prompt-lookup-decoding", "--draft_model_num_pred_tokens": wanted.gamma}
    notes = [
        "FILE.gguf: made from the weights by convert_hf_to_gguf.py; quantised weights have another α", LOOKUP_DIFFERS,
        "its matches are of 2 tokens, then of 1; no option changes that",
    ]  # fmt: skip
    command = shell(["python3", "-m", "llama_cpp.server"], ["--model", _gguf(wanted.target)], *flags(values))
    return Settings(command, values, notes=notes)


# OpenVINO GenAI: its Python pipeline. Models are folders that `optimum-cli export openvino` writes.
def openvino(wanted: Recommended) -> Settings:
    """`LLMPipeline` with a draft model, or with prompt lookup; and keywords of `generate`."""
    call = sampling_keywords(wanted.temperature, wanted.top_k, wanted.top_p)
    if wanted.top_k is None:
        call.pop("top_k", None)  # its default is all tokens
    call["num_assistant_tokens"] = wanted.gamma
    pipeline: dict[str, object] = {}
    given = ""
    notes = ["PATH-ov: made by optimum-cli export openvino --weight-format fp32; its default, and int8, round more"]
    if (draft := wanted.draft) is None:
        call["max_ngram_size"] = wanted.options.get("match", 3)
        pipeline["prompt_lookup"] = True
        given = ", prompt_lookup=True"
        notes.append(LOOKUP_DIFFERS)
    else:
        pipeline["draft_model"] = draft.place
        given = f', draft_model=openvino_genai.draft_model("{draft.place}-ov", "CPU")'
        if wanted.temperature > 0:
            notes.append("T>0 with a draft model: completions of 2026.4.1 are not the target's (docs/serving.md)")
    lines = [
        "import openvino_genai",
        f'pipeline = openvino_genai.LLMPipeline("{wanted.target.place}-ov", "CPU"{given})',
        f"pipeline.generate(prompt, {_keywords(call)})",
    ]
    return Settings("\n".join(lines), {"pipeline": pipeline, "generate": call}, notes=notes)


# TensorRT-LLM: `speculative_config` in the YAML file of `trtllm-serve --config`.
FILE = "speculative.yaml"


def tensorrt_llm(wanted: Recommended) -> Settings:
    """Draft_Target for a draft model, NGram for prompt lookup; the PyTorch backend."""
    config: dict[str, object]
    notes = []
    if (draft := wanted.draft) is None:
        config = {
            "decoding_type": "NGram",
            "max_draft_len": wanted.longest,
            "max_matching_ngram_size": wanted.options.get("match", 3),
            "is_keep_all": True,
            "is_use_oldest": False,
            "is_public_pool": False,
        }
        notes.append(LOOKUP_DIFFERS)
    else:
        config = {
            "decoding_type": "Draft_Target", "max_draft_len": wanted.longest, "speculative_model": draft.place,
        }  # fmt: skip
        notes.append("the page calls this type DraftTarget; the class takes Draft_Target")
        if draft.revision:
            notes.append(f"the config has no key for a revision: give a folder that holds {draft.revision[:9]}")
        if wanted.temperature > 0:
            config["use_rejection_sampling"] = True
            notes.append("use_rejection_sampling (a prototype; needs FlashInfer): the default compares drawn tokens")
    if wanted.schedule:
        config["draft_len_schedule"] = _schedule(wanted)
    values: dict[str, object] = {"speculative_config": config}
    command = shell(["trtllm-serve", wanted.target.place], ["--config", FILE])
    return Settings(command, values, (FILE, yaml.safe_dump(values, sort_keys=False)), notes)


def _schedule(wanted: Recommended) -> dict[int, int]:
    """The last batch size of each span, with its gamma; past the last span nothing is drafted, so it needs an end."""
    if wanted.schedule[0].gamma != wanted.longest:
        raise NotExpressible("TensorRT-LLM's longest drafts are at the smallest batches; this schedule's are not")
    open_ended = wanted.schedule[-1].last is None and wanted.schedule[-1].gamma > 0
    if open_ended:
        raise NotExpressible(
            "TensorRT-LLM drafts nothing past the last batch size of a schedule: give the last span an end"
        )
    return {span.last: span.gamma for span in wanted.schedule if span.last is not None}


ENGINES = {engine.name: engine for engine in (
    ServingEngine(
        "transformers", "transformers", "5.23.0", "https://huggingface.co/docs/transformers/generation_strategies",
        transformers,
    ),
    ServingEngine(
        "vllm", "vLLM", "main at 002e77c1f (vllm/config/speculative.py)",
        "https://docs.vllm.ai/en/latest/features/speculative_decoding/", vllm, VLLM_RULES,
        kinds=("model", "lookup", *EAGLE), schedules=("model", "lookup", *EAGLE),
        decoder_only="vLLM",
    ),
    ServingEngine(
        "sglang", "SGLang", "main of 2026 (srt/arg_groups/speculative_hook.py, srt/server_args.py)",
        "https://docs.sglang.io/advanced_features/speculative_decoding.html", sglang, ("exact", "onehot"),
        kinds=("model", "lookup", *EAGLE), schedules=tuple(EAGLE),
        decoder_only="SGLang",
    ),
    ServingEngine(
        "llama.cpp", "llama.cpp", "master at 00dc8057a (tools/server/README.md)",
        "https://github.com/ggml-org/llama.cpp/blob/master/docs/speculative.md", llama_cpp, ("exact", "onehot"),
        decoder_only="llama-server",
    ),
    ServingEngine(
        "openvino", "OpenVINO GenAI", "2026.4.1", "https://openvinotoolkit.github.io/openvino.genai/docs/guides/",
        openvino, ("exact", "onehot"), decoder_only="OpenVINO GenAI",
    ),
    ServingEngine(
        "llama-cpp-python", "llama-cpp-python", "0.3.36 (llama_cpp/server/settings.py)",
        "https://llama-cpp-python.readthedocs.io/en/latest/", llama_cpp_python, ("exact", "onehot"), kinds=("lookup",),
        decoder_only="llama-cpp-python",
    ),
    ServingEngine(
        "tensorrt-llm", "TensorRT-LLM", "main at 000439672 (tensorrt_llm/llmapi/llm_args.py)",
        "https://nvidia.github.io/TensorRT-LLM/features/speculative-decoding.html", tensorrt_llm,
        schedules=("model", "lookup"),
        decoder_only="TensorRT-LLM",
    ),
)}  # fmt: skip
