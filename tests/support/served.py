"""Completions of two servers, one with a draft and one without, with planted faults, as files for `certify_servers`."""

import copy
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import AcceptanceRule, Verdict, Verification
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.decoding import DecodingSpec, autoregressive, speculative
from specbench.algorithm.gamma import Constant
from specbench.analysis.proof.kinds import DraftTokens
from specbench.analysis.proof.kinds import Verdict as KindVerdict
from specbench.config.model import ModelConfig
from specbench.config.paths import shipped
from specbench.config.schema import SamplingConfig
from specbench.config.verbs import CertifyConfig
from specbench.engine.eager.model import EagerModel
from specbench.engine.selection import with_engine
from specbench.engine.session import Model, Prompt
from specbench.engine.weights.load import load_model
from specbench.interop.certify import certify_servers
from specbench.methods.model.config import ModelDraftConfig
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import draw
from specbench.tasks.row_files import read_rows
from specbench.text.processed import ProcessedModel, ProcessedSession, drawing, processed
from specbench.text.tokenizer import load_tokenizer
from specbench.text.vocabulary import Vocabulary

GAMMA, TOKENS, PROMPT_WORDS = 4, 64, 12


@cache
def loaded(name: str) -> tuple[Vocabulary, EagerModel]:
    """By the fastest engine: all that is served is exact."""
    config = ModelConfig(name=name, shipped=name)
    vocabulary = load_tokenizer(config, "target")
    return vocabulary, load_model(config, "target", vocabulary, torch.float32, torch.device("cpu"), "auto")


def rounded(model: EagerModel, dtype: torch.dtype) -> EagerModel:
    """The target with weights that were converted with a scale, as quantised formats have."""
    network = copy.deepcopy(model.network)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_((1.1 * weight).to(dtype).to(weight.dtype) / 1.1)
    return with_engine("auto", network, model.vocabulary_size, model.eos_ids)


class OnceABlock(ProcessedModel):
    """A target that counts for penalties only the tokens before a block of drafted ones."""

    def start(self, prompt: Prompt) -> ProcessedSession:
        return _Block(self.processors, self.model.start(prompt), prompt)


class _Block(ProcessedSession):
    def extend(self, tokens: Any, parents: Any = None) -> Tensor:
        logits_LV = self.session.extend(tokens, parents)
        first = [*self._tokens, *list(tokens)[:1]]
        self._tokens += list(tokens)
        return self.processors.processed(logits_LV, [first] * len(logits_LV), self._prompt)


def one_in_fifty(p_GV: Tensor, q_GV: Tensor, drafted: list[int], generator: torch.Generator) -> Verdict:
    """Algorithm 1, with one drafted token in fifty accepted as another."""
    verdict = accept_exact(p_GV, q_GV, drafted, generator)
    changed = [
        int(torch.randint(q_GV.shape[-1], (), generator=generator)) if float(torch.rand((), generator=generator)) < 0.02
        else token for token in drafted[: verdict.accepted]
    ]  # fmt: skip
    if changed == drafted[: verdict.accepted]:
        return verdict
    first = next(place for place, token in enumerate(changed) if token != drafted[place])
    return Verdict.chain(first, changed[first])


def sample_of_q(p_GV: Tensor, q_GV: Tensor, drafted: list[int], generator: torch.Generator) -> Verdict:
    """Algorithm 1, with q's own token in place of the residual's after a rejection."""
    verdict = accept_exact(p_GV, q_GV, drafted, generator)
    if verdict.accepted < len(drafted):
        return Verdict.chain(verdict.accepted, draw(q_GV[verdict.accepted], generator))
    return verdict


@dataclass(frozen=True)
class Served:
    """What two servers run, and what they claim to.

    Attributes:
        claimed: the sampling that is certified.
        drawn: that of both servers.
        weights: changes the target of both.
        rule, target: of the server with a draft.
    """

    claimed: SamplingConfig
    drawn: SamplingConfig | None = None
    weights: Callable[[EagerModel], EagerModel] = lambda model: model
    rule: AcceptanceRule = accept_exact
    target: Callable[[Model], Model] = lambda model: model


def prompts(count: int) -> list[Prompt]:
    vocabulary, _ = loaded("gpt-mini")
    files = [read_rows(shipped("data", name)) for name in ("sum-mini.jsonl.gz", "sum-mini-train.jsonl.gz")]
    rows = itertools.islice(itertools.chain.from_iterable(files), count)
    starts = [" ".join(row.text("article", "").split()[:PROMPT_WORDS]) for row in rows]
    return [vocabulary.prompt(text, "", 128) for text in starts]


def completions(served: Served, count: int, plain_seed: int = 10_000) -> tuple[list[Any], list[Any], DraftTokens]:
    """Rows with and without a draft, and the tokens drafted and accepted."""
    vocabulary, model = loaded("gpt-mini")
    drawn = served.drawn or served.claimed
    target = processed(served.weights(model), drawn, vocabulary)
    drafting = ModelDraft(processed(loaded("gpt-nano")[1], drawn, vocabulary), vocabulary.size)
    sampling = drawing(drawn)
    alone = DecodingSpec(sampling, TOKENS, Verification(accept_exact, sampling))
    spec = DecodingSpec(sampling, TOKENS, Verification(served.rule, sampling), Constant(GAMMA))
    with_draft, without, drafted, accepted = [], [], 0, 0
    for number, prompt in enumerate(prompts(count)):
        made = speculative(
            served.target(target), drafting, prompt, spec, torch.Generator().manual_seed(number)
        )  # fmt: skip
        plain = autoregressive(target, prompt, alone, torch.Generator().manual_seed(plain_seed + number))
        with_draft.append({"prompt_token_ids": list(prompt.prefix), "tokens": made.tokens})
        without.append({"prompt_token_ids": list(prompt.prefix), "tokens": plain.tokens})
        drafted += sum(one.drafted for one in made.passes)
        accepted += sum(one.accepted for one in made.passes)
    return with_draft, without, DraftTokens(drafted, accepted)


def named(served: Served, count: int, folder: Path, with_plain: bool = True, limit: int | None = None) -> KindVerdict:
    """The verdict on both servers' completions."""
    with_draft, without, counts = completions(served, count)
    files = [written(folder / f"{name}.jsonl", rows) for name, rows in (("d", with_draft), ("p", without))]
    config = CertifyConfig(
        target=ModelConfig(name="gpt-mini", shipped="gpt-mini"), sampling=served.claimed, dtype="float32",
        draft=ModelDraftConfig(name="gpt-nano", shipped="gpt-nano"), device="cpu", limit=limit,
    )  # fmt: skip
    return certify_servers(config, files[0], files[1] if with_plain else None, counts, lambda line: None)


def written(file: Path, rows: Sequence[Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


WARM, COLD = SamplingConfig(temperature=1.0), SamplingConfig()
PENALTY = {"repetition_penalty": 1.3}
STRONG = {"repetition_penalty": 1.3, "presence_penalty": 1.5}


def _once_a_block(target: Model) -> Model:
    assert isinstance(target, ProcessedModel)
    return OnceABlock(target.model, target.processors)


# What two servers run, the kind of it, and what its evidence says.
PLANTED: dict[str, tuple[Served, str | None, str]] = {
    "none at T=0": (Served(COLD), None, ""),
    "none at T=1": (Served(WARM), None, ""),
    "rounded weights": (Served(COLD, weights=lambda one: rounded(one, torch.bfloat16)), "other rounding", "below it"),
    "a penalty that is not claimed, T=0": (
        Served(COLD, SamplingConfig(**PENALTY)), "another distribution", "repetition_penalty=1.3",
    ),
    "T = .9": (Served(WARM, SamplingConfig(temperature=0.9)), "another distribution", "temperature=0.9"),
    "top-p": (Served(WARM, SamplingConfig(temperature=1.0, top_p=0.9)), "another distribution", "top_p=0.9"),
    "a penalty that is not claimed": (
        Served(WARM, SamplingConfig(temperature=1.0, **PENALTY)), "another distribution", "repetition_penalty=1.3",
    ),
    "a penalty once a block, T=0": (
        Served(SamplingConfig(**PENALTY), target=_once_a_block), "a fault of speculation", "once a block",
    ),
    "a penalty once a block": (
        Served(SamplingConfig(temperature=1.0, **STRONG), target=_once_a_block), "a fault of speculation",
        "once a block",
    ),
    "one drafted token in fifty, T=0": (Served(COLD, rule=one_in_fifty), "a fault of speculation", ""),
    "one drafted token in fifty": (Served(WARM, rule=one_in_fifty), "a fault of speculation", "could be any token"),
    "q's sample after a rejection": (Served(WARM, rule=sample_of_q), "a fault of speculation", ""),
}  # fmt: skip
