"""Faulty drafts of sound pairs that ship, and what is found of each: `python -m tests.support.planted` prints all.

A fault changes weights, or what a session answers, or a file of the checkpoint. The completions are the target's own,
written once for each temperature; all drafts are scored along them in one pass.
"""

import copy
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specbench.algorithm.draft import Draft, DraftSession
from specbench.analysis.acceptance.agreement import agreements
from specbench.analysis.findings import findings, findings_of
from specbench.analysis.findings.checkpoint import read_checkpoint
from specbench.analysis.findings.configs import differences
from specbench.analysis.findings.finding import Observed, Text, mean
from specbench.analysis.findings.observed import reads_states
from specbench.api import overrides
from specbench.compose.hydra_app import composed_config
from specbench.config.model import ModelConfig
from specbench.config.paths import shipped
from specbench.config.schema import RunConfig
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.experiment.measure import baseline_of, prompt_record, speculative_of
from specbench.experiment.run_parts import Parts, build_each, resolve
from specbench.methods.model.draft import ModelDraft
from specbench.records.decoded import Trace
from specbench.records.draft_signs import Finding
from specbench.sampling import Sampling, standardise
from tests.support.around import Around

PROMPTS, TOKENS = 16, 96
SMOLLM2 = "smollm2"
WINDOW = 24  # tokens
FIRST_BAD = 48  # position from which a fault of positions is planted
Kept = tuple[Parts, list[Trace]]
WRITTEN: dict[tuple[str, float], list[Trace]] = {}  # completions by target and temperature


def parts_of(
    target: str, draft: str, temperature: float, prompts: int = PROMPTS, tokens: int = TOKENS, rows: str | None = None,
    engine: str = "eager", task: str | None = None,
) -> Parts:  # fmt: skip
    """The parts of a sound pair. A target, and a draft, may be a folder; a draft's keys follow its name.

    `rows`: another file that ships, for its prompts. `task`: another task than the target's.
    """
    name, *keys = [draft] if Path(draft).is_dir() else draft.split()
    values = {
        key: value[1:-1].split(",") if value[:1] == "[" else value for key, value in (one.split("=") for one in keys)
    }
    named: dict[str, object] = {"target": target, "draft": name, **values}
    if Path(target).is_dir():
        named |= {"target": "gpt-mini", "target.path": target}
    if Path(draft).is_dir():
        named |= {"draft": "gpt-nano", "draft.path": draft}
    if task is not None:
        named["task"] = task
    if rows is not None:
        named["task.shipped"] = rows
    words = overrides({
        **named, "gamma": 4, "limit": prompts, "max_new_tokens": tokens, "engine": engine,
        "device": "cpu", "dtype": "float32", "numerics": "fast", "sampling": {"temperature": temperature},
    })  # fmt: skip
    (parts,) = build_each([resolve(composed_config(RunConfig, words, "run"))], lambda line: None)
    return parts


@cache
def pair(target: str, draft: str, temperature: float) -> Kept:
    """The parts of a sound pair, and the target's completions."""
    few = Path(target).is_dir()
    parts = parts_of(target, draft, temperature, *((PROMPTS // 2, TOKENS * 2 // 3) if few else (PROMPTS, TOKENS)))
    if (target, temperature) not in WRITTEN:  # they are the same with any draft, and by any engine
        quick = parts if few else parts_of(target, "random", temperature, engine="auto")
        WRITTEN[target, temperature] = [baseline_of(quick, quick.spec, index)() for index in range(len(parts.prompts))]
    return parts, WRITTEN[target, temperature]


def seen(kept: Kept, drafts: Sequence[Draft]) -> list[Observed]:
    """What teacher forcing shows of each draft."""
    parts, traces = kept
    inside = reads_states({"kind": parts.config.draft.kind})
    rows: list[list[Text]] = [[] for _ in drafts]
    sampling = parts.spec.sampling
    for prompt, text in zip(parts.prompts, (one.tokens for one in traces), strict=True):
        for row, one in zip(rows, agreements(parts.target, drafts, prompt, text, sampling), strict=True):
            start = len(prompt.source) + len(prompt.prefix)
            row.append(Text(text, one.signs.named, one.beta, text, start, sums=one.signs.sums))
    return [Observed(row, range(len(row)), sampling.temperature, inside=inside) for row in rows]


# Faults of weights.


def with_network(change: Callable[[Any], None]) -> Callable[[Any], Draft]:
    """A copy of a draft model whose network was changed."""

    def made(draft: ModelDraft) -> Draft:
        network = copy.deepcopy(draft.model.network)  # type: ignore[attr-defined]
        with torch.no_grad():
            change(network)
        return ModelDraft(EagerModel(network, draft.model.vocabulary_size, draft.model.eos_ids), draft.vocabulary_size)

    return made


def own_head(network: Any, change: Callable[[Tensor], Tensor]) -> None:
    """Another head than the embeddings, whose rows `change` gives."""
    head = nn.Linear(*reversed(network.lm_head.weight.shape), bias=False)
    head.weight.copy_(change(network.lm_head.weight.detach().clone()))
    network.lm_head = head


def _permuted(rows: Tensor) -> Tensor:
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(5))]


def zero(network: Any) -> None:
    for weight in network.parameters():
        weight.zero_()


def zero_head(network: Any) -> None:
    own_head(network, torch.zeros_like)


def fresh(network: Any) -> None:
    torch.manual_seed(3)
    for weight in network.parameters():
        weight.copy_(0.05 * torch.randn_like(weight))


def shuffled_head(network: Any) -> None:
    own_head(network, _permuted)


def ids_off_by_3(network: Any) -> None:
    own_head(network, lambda rows: rows.roll(3, 0))


def shuffled_embeddings(network: Any) -> None:
    own_head(network, lambda rows: rows)
    embeddings = network.get_input_embeddings().weight
    embeddings.copy_(_permuted(embeddings.clone()))


def permuted_tokenizer(network: Any) -> None:
    embeddings = network.get_input_embeddings().weight
    embeddings.copy_(_permuted(embeddings.clone()))


def zero_layers(network: Any) -> None:
    for name, weight in network.named_parameters():
        if any(part in name for part in (".h.", ".block.", ".layers.")):
            weight.zero_()


def no_last_norm(network: Any) -> None:
    own_head(network, lambda rows: rows)
    for name, weight in network.named_parameters():
        if name.endswith(("ln_f.weight", "final_layer_norm.weight", "model.norm.weight")) and "encoder" not in name:
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(2)))


def few_positions(network: Any) -> None:
    """As an engine that reads past the end of the table: what stands there is noise."""
    rows = network.transformer.wpe.weight[FIRST_BAD:]
    rows.copy_(10 * rows.std() * torch.randn(rows.shape, generator=torch.Generator().manual_seed(4)))


def other_positions(network: Any) -> None:
    """As a RoPE base or scaling that the draft was not trained with: positions run at another speed."""
    rows = network.transformer.wpe.weight.detach().clone()
    network.transformer.wpe.weight[FIRST_BAD:] = rows[FIRST_BAD:].flip(0)


def other_base(network: Any) -> None:
    """RoPE with a hundredth of the base that the draft was trained with."""
    rotary = network.model.rotary_emb
    places = torch.arange(len(rotary.inv_freq), dtype=torch.float64) / len(rotary.inv_freq)
    rotary.inv_freq.copy_((rotary.inv_freq.double() * 100.0**places).float())


# Faults of what a session answers.


class Changed(Draft):
    """A draft whose sessions are wrapped."""

    def __init__(self, inner: Draft, around: Callable[[DraftSession, Any], Any], **options: Any) -> None:
        self.inner, self.around, self.options = inner, around, options
        self.models, self.operations = inner.models, inner.operations

    def start(self, prompt: Any, sampling: Any) -> Any:
        return self.around(self.inner.start(prompt, sampling), self.options | {"sampling": sampling})

    def start_on(self, session: Any, prompt: Any, sampling: Any) -> Any:
        return self.around(self.inner.start_on(session, prompt, sampling), self.options | {"sampling": sampling})


class Rows(Around):
    """Other rows of q."""

    def __init__(self, inner: Any, options: dict[str, Any]) -> None:
        super().__init__(inner)
        self.change: Callable[[Tensor], Tensor] = options["change"]

    def score(self, tokens: Any, prefix_length: int) -> Tensor:
        return self.change(self.inner.score(tokens, prefix_length))


class NoRollback(Around):
    """A cache that keeps what was rejected: every later step reads it."""

    def __init__(self, inner: Any, options: dict[str, Any]) -> None:
        super().__init__(inner)
        self.junk: list[int] = []

    def propose(self, tokens: Any, gamma: int, generator: Any) -> Any:
        self.inner.rollback(0)
        made = self.inner.propose([*tokens[:-1], *self.junk, tokens[-1]], gamma, generator)
        self.junk = [*self.junk, *made.tokens][-40:]
        return made

    def rollback(self, length: int) -> None:
        pass

    def score(self, tokens: Any, prefix_length: int) -> Tensor:
        return self.inner.score(tokens, prefix_length)


class Window(Around):
    """Attention to the last `WINDOW` tokens alone, of a model that was trained without a window."""

    def __init__(self, inner: Any, options: dict[str, Any]) -> None:
        super().__init__(inner)
        self.draft: ModelDraft = options["draft"]
        self.sampling: Sampling = options["sampling"]

    def score(self, tokens: Any, prefix_length: int) -> Tensor:
        q_LV = self.inner.score(tokens, prefix_length)
        for place in range(max(prefix_length, WINDOW + 1), len(tokens)):
            session = self.draft.model.start(Prompt((), tuple(tokens[place - WINDOW : place])))
            logits_1V = session.extend(tokens[place - WINDOW + session.length : place])[-1:]
            q_LV[place - prefix_length] = standardise(logits_1V, self.sampling, self.draft.vocabulary_size)[0]
        return q_LV


def short_window(draft: ModelDraft) -> Draft:
    return Changed(draft, Window, draft=draft)


class CutOff(Around):
    """Nothing sensible after two tokens of its own."""

    def __init__(self, inner: Any, options: dict[str, Any]) -> None:
        super().__init__(inner)

    def propose(self, tokens: Any, gamma: int, generator: Any) -> Any:
        made = self.inner.propose(tokens, gamma, generator)
        made.tokens[2:] = [7] * len(made.tokens[2:])
        return made


def rows(change: Callable[[Tensor], Tensor]) -> Callable[[Any], Draft]:
    return lambda draft: Changed(draft, Rows, change=change)


def later(q_LV: Tensor) -> Tensor:
    return torch.cat([q_LV[1:], q_LV[-1:]])


def earlier(q_LV: Tensor) -> Tensor:
    return torch.cat([q_LV[:1], q_LV[:-1]])


def powered(power: float) -> Callable[[Tensor], Tensor]:
    def change(q_LV: Tensor) -> Tensor:
        raised_LV = q_LV.pow(power)
        return raised_LV / raised_LV.sum(-1, keepdim=True)

    return change


def greedy(q_LV: Tensor) -> Tensor:
    return nn.functional.one_hot(q_LV.argmax(-1), q_LV.shape[-1]).to(q_LV.dtype)


# Faults of heads.


def other_layers(draft: Any) -> Draft:
    """Layer ids that are off: all states come from the first depth."""
    made = copy.copy(draft)
    width = draft.eagle.shape.tapped_width
    count = len(draft.eagle.shape.taps)
    made.columns = [column for place in [0] * count for column in range(place * width, (place + 1) * width)]
    return made


def head_not_loaded(draft: Any) -> Draft:
    made = copy.copy(draft)
    made.eagle = copy.deepcopy(draft.eagle)
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in made.eagle.parameters():
            weight.copy_(0.05 * torch.randn_like(weight))
    return made


# Faults of files: copies of a folder in which one thing is written otherwise.


def with_file(name: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def made(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return made


def _swap(content: dict[str, Any]) -> None:
    vocab = content["model"]["vocab"]
    if isinstance(vocab, list):
        vocab[10], vocab[11] = vocab[11], vocab[10]
    else:
        a, b = list(vocab)[10:12]
        vocab[a], vocab[b] = vocab[b], vocab[a]


FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "another chat template": (
        with_file("tokenizer_config.json", lambda one: one.update(chat_template="{{ messages }}")), "chat template",
    ),
    "a double BOS": (with_file("tokenizer_config.json", lambda one: one.update(add_bos_token=True)), "add_bos_token"),
    "another end": (with_file("generation_config.json", lambda one: one.update(eos_token_id=5)), "end of a text (EOS)"),
    "added tokens": (
        with_file("tokenizer.json", lambda one: one["added_tokens"].append({"id": 9000, "content": "<tool>"})),
        "added tokens",
    ),
    "moved tokens": (with_file("tokenizer.json", _swap), "tokens"),
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A planted fault: how its draft is made, and the name of the finding that is right."""

    name: str
    made: Callable[[Any], Draft]
    right: str
    temperature: float = 0.0
    draft: str | None = None  # another draft than the nano model
    only: str | None = None  # the target that it can be planted on
    decoded: bool = False  # shows in passes alone


FAULTS: Sequence[Fault] = (
    Fault("zero weights", with_network(zero), "constant"),
    Fault("zero head", with_network(zero_head), "constant"),
    Fault("weights not loaded", with_network(fresh), "weights"),
    Fault("layers zero", with_network(zero_layers), "repeats"),
    Fault("shuffled rows of the head", with_network(shuffled_head), "relabelled"),
    Fault("ids off by 3", with_network(ids_off_by_3), "relabelled"),
    Fault("shuffled embeddings", with_network(shuffled_embeddings), "weights"),
    Fault("another last norm", with_network(no_last_norm), "weights"),
    Fault("permuted tokenizer", with_network(permuted_tokenizer), "weights"),
    Fault("labels one later", rows(later), "shifted"),
    Fault("labels one earlier", rows(earlier), "shifted"),
    Fault("q three times as hot", rows(powered(1 / 3)), "temperature", 1.0),
    Fault("q a third as hot", rows(powered(3)), "temperature", 1.0),
    Fault("q greedy, p sampled", rows(greedy), "cut", 1.0),
    Fault("fewer positions", with_network(few_positions), "context", only="gpt-mini"),
    Fault("other positions", with_network(other_positions), "context", only="gpt-mini"),
    Fault("RoPE base of another model", with_network(other_base), "context", only=SMOLLM2),
    Fault("a window that is too short", short_window, "context", only=SMOLLM2),
    Fault("layer ids off", other_layers, "weights", draft="eagle3"),
    Fault("head not loaded", head_not_loaded, "weights", draft="eagle"),
    Fault("no rollback", lambda draft: Changed(draft, NoRollback), "cache", decoded=True),
    Fault("cut off after two tokens", lambda draft: Changed(draft, CutOff), "cliff", decoded=True),
)


def family_of(target: str) -> str:
    """The name of a target, which is that of SmolLM2 for a folder."""
    return SMOLLM2 if Path(target).is_dir() else target


@dataclass
class Outcome:
    target: str
    fault: str
    right: str
    found: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    reached: str = ""  # alpha, and a bigram's, of faults that show in teacher forcing

    @property
    def place(self) -> int | None:
        return self.found.index(self.right) + 1 if self.right in self.found else None


def outcomes(target: str, nano: str, planted: Sequence[Fault] = FAULTS) -> Iterator[Outcome]:
    """What is found of each fault on a target, and of the sound pairs (whose `right` is empty)."""
    family = family_of(target)
    faults = [
        one for one in planted if one.only == family or (one.only is None and not (one.draft and family == SMOLLM2))
    ]
    for draft, temperature in sorted({(one.draft or nano, one.temperature) for one in faults}):
        kept = pair(target, draft, temperature)
        here = [one for one in faults if (one.draft or nano, one.temperature) == (draft, temperature)]
        scored = [one for one in here if not one.decoded]
        drafts = [kept[0].draft, *(one.made(kept[0].draft) for one in scored)]
        all_seen = seen(kept, drafts)
        label = f"sound {Path(draft).name if Path(draft).is_dir() else draft} T={temperature:g}"
        yield outcome(target, label, "", findings(all_seen[0]), all_seen[0])
        for one, observed in zip(scored, all_seen[1:], strict=True):
            yield outcome(target, one.name, one.right, findings(observed), observed)
        for one in here:
            if one.decoded:
                yield outcome(target, one.name, one.right, of_passes(kept[0], one.made(kept[0].draft), alone=kept[1]))


def outcome(target: str, fault: str, right: str, found: list[Finding], observed: Observed | None = None) -> Outcome:
    reached = "" if observed is None else f"{mean(observed.betas):.2f} {mean(observed.cheap.bigram):.2f}"
    return Outcome(family_of(target), fault, right, [one.name for one in found], [one.line for one in found], reached)


def of_passes(parts: Parts, draft: Draft, gamma: int = 4, alone: Sequence[Trace] = ()) -> list[Finding]:
    """The findings of a run with this draft. `alone`: the target's own completions, if they are there already."""
    from specbench.algorithm.gamma import Constant
    from specbench.analysis.acceptance.by_position import acceptance_by_position

    parts = replace(parts, draft=draft, spec=replace(parts.spec, gamma=Constant(gamma)))
    prompts = []
    for index in range(len(parts.prompts)):
        ours = speculative_of(parts, parts.spec, index)()
        own = alone[index] if alone else baseline_of(parts, parts.spec, index)()
        prompts.append(prompt_record(parts, index, own, ours, None))
    passes = [one for prompt in prompts for one in prompt["speculative"].passes]
    summary = {"temperature": parts.spec.sampling.temperature, "acceptance_by_position": acceptance_by_position(passes)}
    record: Any = {
        "summary": summary,
        "config": {"draft": {"kind": parts.config.draft.kind}},
        "prompts": prompts,
        "pieces": {},
    }
    return findings_of(record)


def of_files(target: str, draft: str, folder: Path) -> Iterator[Outcome]:
    """What differs for each fault of a file."""
    ours = read_checkpoint(ModelConfig(shipped=target), "target")
    for number, (name, (change, right)) in enumerate(FILES.items()):
        place = folder / f"{target}-{number}"
        shutil.copytree(shipped("models", draft), place)
        change(place)
        theirs = read_checkpoint(ModelConfig(path=str(place)), "draft")
        found = [one for one in differences(ours, theirs) if one.matters != "no"]
        yield Outcome(target, name, right, [one.what for one in found], [one.why for one in found])


PAIRS = {"gpt-mini": "gpt-nano", "t5-mini": "t5-nano"}


def table(found: Sequence[Outcome]) -> str:
    """The score as it is reported."""
    faults, sound = [one for one in found if one.right], [one for one in found if not one.right]
    first, second = (sum(one.place is not None and one.place <= most for one in faults) for most in (1, 2))
    lines = [
        f"{one.target:9} {one.fault:28} {one.right:20} {one.reached:9} {', '.join(one.found) or '–'}" for one in found
    ]
    lines.append(f"first: {first} of {len(faults)}; among the first two: {second}")
    return "\n".join([*lines, f"sound pairs with a finding: {sum(bool(one.found) for one in sound)} of {len(sound)}"])


if __name__ == "__main__":
    import tempfile

    folders = sys.argv[1:]  # of SmolLM2
    pairs = {folder: folder for folder in folders} or PAIRS
    found = [one for target, nano in pairs.items() for one in outcomes(target, nano)]
    if folders:
        print(table(found))
        sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        found += [one for target, nano in PAIRS.items() for one in of_files(target, nano, Path(folder))]
    print(table(found))
    for one in found:
        for line in one.lines[:2]:
            print(f"  {one.target} {one.fault}: {line}")
