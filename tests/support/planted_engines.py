"""A fourth set of faulty drafts, after faults of engines and loaders: `python -m tests.support.planted_engines`.

It was run once before any rule was changed for it. With a FOLDER of SmolLM2's weights the target is SmolLM2 and the
draft that is made faulty its 4-bit copy, its first layers, its layers without some, or a window of it; a second FOLDER
is a distilled model that drafts for it. `--sound FOLDER [FOLDER]` prints what is found in short runs of such drafts on
four tasks.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specbench.engine.window import Window as WindowOfACache
from specbench.experiment.measure import baseline_of
from specbench.methods.target_layers.draft import LayerSkipDraft
from specbench.methods.window.draft import WindowDraft
from specbench.records.decoded import Trace
from specbench.records.draft_signs import Finding
from tests.support.around import Around
from tests.support.planted import (
    PAIRS,
    SMOLLM2,
    Fault,
    of_passes,
    outcomes,
    own_head,
    parts_of,
    powered,
    rows,
    table,
    with_network,
)
from tests.support.planted_more import changed

QUANTISED = "quantised draft.bits=4"
EXIT, SKIP, WINDOW = "early-exit draft.layers=10", "layer-skip draft.skip=[mlp9,mlp14]", "window draft.window=16"
LAYERS = (".h.", ".block.", ".layers.")


def _layers(network: Any) -> Sequence[Any]:
    """The decoder's layers."""
    if hasattr(network, "transformer"):
        return list(network.transformer.h)
    return list(network.decoder.block if hasattr(network, "decoder") else network.model.layers)


def _attention(layer: Any) -> tuple[list[Tensor], Tensor, int]:
    """Weights of queries, keys and values [outputs, inputs], of the output [outputs, inputs], and a head's width."""
    if hasattr(layer, "attn"):
        attn = layer.attn
        return list(attn.c_attn.weight.T.chunk(3)), attn.c_proj.weight.T, attn.head_dim
    if hasattr(layer, "self_attn"):
        attn = layer.self_attn
        return [attn.q_proj.weight, attn.k_proj.weight, attn.v_proj.weight], attn.o_proj.weight, attn.head_dim
    attn = layer.layer[0].SelfAttention
    return [attn.q.weight, attn.k.weight, attn.v.weight], attn.o.weight, attn.key_value_proj_dim


def wrong_scale(network: Any) -> None:
    """Scores of the attention without their division by the root of a head's width, or, in T5, with one."""
    for layer in _layers(network):
        (query, _, _), _, width = _attention(layer)
        query.mul_(math.sqrt(width) if not hasattr(network, "decoder") else 1 / math.sqrt(width))


def norms_left_out(network: Any) -> None:
    """Norms whose weights are not loaded: ones."""
    own_head(network, lambda rows: rows)
    for name, weight in network.named_parameters():
        if weight.dim() == 1 and name.endswith("weight") and "encoder" not in name:
            weight.fill_(1.0)


def keys_are_values(network: Any) -> None:
    """Keys and values of the first layer in each other's place."""
    (_, key, value), _, _ = _attention(_layers(network)[0])
    kept = key.clone()
    key.copy_(value)
    value.copy_(kept)


def half_the_heads(network: Any) -> None:
    """One of two shards of each attention's output, without the sum over both."""
    for layer in _layers(network):
        _, out, _ = _attention(layer)
        out[:, out.shape[1] // 2 :] = 0


def random_head(network: Any) -> None:
    """A head that should be tied to the embeddings, and is not."""
    own_head(network, lambda rows: 0.02 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(6)))


def zeros_after_a_layer(network: Any) -> None:
    """States that overflow in the first layer and are written as zeros."""

    def zeros(_: nn.Module, __: Any, result: Any) -> Any:
        if isinstance(result, tuple):
            return (torch.zeros_like(result[0]), *result[1:])
        return torch.zeros_like(result)

    _layers(network)[0].register_forward_hook(zeros)


def transposed(network: Any) -> None:
    """Square matrices of the attention that were written for `x @ w` and are read for `w @ x`."""
    for layer in _layers(network):
        for weight in (*_attention(layer)[0], _attention(layer)[1]):
            if weight.shape[0] == weight.shape[1]:
                weight.copy_(weight.T.clone())


def wrong_epsilon(network: Any) -> None:
    """Norms whose epsilon is 10: without its exponent."""
    for module in network.modules():
        for name in ("eps", "variance_epsilon"):
            if hasattr(module, name):
                setattr(module, name, 10.0)


def scaled_embeddings(network: Any) -> None:
    """Embeddings times the root of their width, as another family of models has them."""
    own_head(network, lambda rows: rows)
    weight = network.get_input_embeddings().weight
    weight.mul_(math.sqrt(weight.shape[1]))


def next_positions(network: Any) -> None:
    """Learned positions that begin at 1."""
    weight = network.transformer.wpe.weight
    weight.copy_(weight.clone().roll(-1, 0))


def interleaved(network: Any) -> None:
    """Queries and keys in pairs of neighbours, read as pairs of halves."""
    for layer in _layers(network):
        (query, key, _), _, width = _attention(layer)
        for weight in (query, key):
            heads = weight.clone().view(-1, 2, width // 2, weight.shape[1])
            weight.copy_(heads.transpose(1, 2).reshape(weight.shape))


def by_name(network: Any) -> None:
    """Layers in the order of their names: 0, 1, 10, 11, …"""
    layers = _layers(network)
    order = sorted(range(len(layers)), key=str)
    kept = [{name: one.clone() for name, one in layer.state_dict().items()} for layer in layers]
    for layer, number in zip(layers, order, strict=True):
        layer.load_state_dict(kept[number])


def scales_one_off(network: Any) -> None:
    """Each output with the scale of the one before it."""
    for name, weight in network.named_parameters():
        if weight.dim() == 2 and any(part in name for part in LAYERS):
            scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-9)
            weight.copy_(weight / scale * scale.roll(1, 0))


def embeddings_of_another(network: Any) -> None:
    """Rows of a tokenizer with two tokens more at the front."""
    own_head(network, lambda rows: rows)
    weight = network.get_input_embeddings().weight
    weight.copy_(weight.clone().roll(2, 0))


class KeepsARejected(Around):
    """A cache that is rolled back by one token too few: the first rejected token remains before each new one."""

    def __init__(self, inner: Any, options: dict[str, Any]) -> None:
        super().__init__(inner)
        self.known: list[int] = []
        self.made: list[int] = []

    def propose(self, tokens: Any, gamma: int, generator: Any) -> Any:
        fresh = list(tokens[len(self.text) :]) if self.known else list(tokens)
        wrong = next((own for own, right in zip(self.made, fresh, strict=False) if own != right), None)
        self.known = [*self.known, *([] if wrong is None else [wrong]), *fresh]
        self.text = list(tokens)
        self.inner.rollback(0)
        made = self.inner.propose(self.known, gamma, generator)
        self.made = list(made.tokens)
        return made

    def rollback(self, length: int) -> None:
        pass

    def score(self, tokens: Any, prefix_length: int) -> Tensor:
        q_LV: Tensor = self.inner.score(tokens, prefix_length)
        return q_LV


class Forgets(Around):
    """A cache that is dropped after each pass: the next pass reads only the tokens since."""

    def __init__(self, inner: Any, options: dict[str, Any]) -> None:
        super().__init__(inner)
        self.length = 0

    def propose(self, tokens: Any, gamma: int, generator: Any) -> Any:
        since, self.length = list(tokens[self.length :]) or list(tokens[-1:]), len(tokens)
        self.inner.rollback(0)
        return self.inner.propose(since, gamma, generator)

    def rollback(self, length: int) -> None:
        pass

    def score(self, tokens: Any, prefix_length: int) -> Tensor:
        q_LV: Tensor = self.inner.score(tokens, prefix_length)
        return q_LV


def last_layers(draft: Any) -> Any:
    """An exit whose ten layers are the last, not the first; the first layer's attention counts the tokens."""
    return LayerSkipDraft(draft.target, ["mlp0", *(f"layer{number}" for number in range(1, 20))])


def kept_are_skipped(draft: Any) -> Any:
    """The sublayers that should be skipped are kept, and the others skipped."""
    kept = ("attn0", "mlp9", "mlp14")
    names = [f"{kind}{number}" for number in range(len(_layers(draft.target.network))) for kind in ("attn", "mlp")]
    return LayerSkipDraft(draft.target, [name for name in names if name not in kept])


def no_sinks(draft: Any) -> Any:
    """A window of 16 tokens without the first tokens, to which attention drains."""
    return WindowDraft(draft.target, draft.target.windowed(WindowOfACache(16, 0), "draft"))


TEN: Sequence[Fault] = (
    Fault("scores not scaled", with_network(wrong_scale), "weights"),
    Fault("norms left out", with_network(norms_left_out), "weights"),
    Fault("keys are values in a layer", with_network(keys_are_values), "weights"),
    Fault("half the heads", with_network(half_the_heads), "weights"),
    Fault("head untied and random", with_network(random_head), "weights"),
    Fault("zeros after a layer", with_network(zeros_after_a_layer), "constant"),
    Fault("matrices transposed", with_network(transposed), "weights"),
    Fault("epsilon of 10", with_network(wrong_epsilon), "weights"),
    Fault("embeddings scaled", with_network(scaled_embeddings), "weights"),
    Fault("q without the temperature", rows(powered(0.5)), "temperature", 0.5),
    Fault("a rejected token in the cache", changed(KeepsARejected), "cache", decoded=True),
    Fault("a cache lost after each pass", changed(Forgets), "cache", decoded=True),
)
FAMILIES: Sequence[Fault] = (
    Fault("positions begin at 1", with_network(next_positions), "weights", only="gpt-mini"),
    Fault("RoPE in pairs of neighbours", with_network(interleaved), "weights", only=SMOLLM2),
    Fault("layers ordered by name", with_network(by_name), "weights", only=SMOLLM2),
    Fault("scales one output off", with_network(scales_one_off), "weights", only=SMOLLM2),
    Fault("an exit of the last layers", last_layers, "weights", draft=EXIT, only=SMOLLM2),
    Fault("kept layers are skipped", kept_are_skipped, "weights", draft=SKIP, only=SMOLLM2),
    Fault("a window without sinks", no_sinks, "context", draft=WINDOW, only=SMOLLM2),
)
OF_A_DISTILLED: Sequence[Fault] = (
    Fault("distilled, embeddings two off", with_network(embeddings_of_another), "weights", only=SMOLLM2),
    Fault("distilled, norms left out", with_network(norms_left_out), "weights", only=SMOLLM2),
    Fault("distilled, head random", with_network(random_head), "weights", only=SMOLLM2),
)


TASKS, RUN, PROMPTS, TOKENS = ("chat", "code", "summaries", "translation"), 3, 12, 32
SOUND = (QUANTISED, "quantised", SKIP, "window draft.window=64", "early-exit draft.layers=28")


def sound(target: str, drafts: Sequence[str]) -> Iterator[tuple[str, list[Finding]]]:
    """Short runs of `RUN` prompts by each draft, task and temperature, and what is found in each; none is right."""
    for task, temperature in product(TASKS, (0.0, 1.0)):
        alone = list[Trace]()
        for draft in drafts:
            parts = parts_of(target, draft, temperature, PROMPTS, TOKENS, engine="auto", task=task)
            alone = alone or [baseline_of(parts, parts.spec, index)() for index in range(len(parts.prompts))]
            for start in range(0, len(parts.prompts), RUN):
                some = slice(start, start + RUN)
                few = replace(parts, prompts=parts.prompts[some], examples=parts.examples[some])
                name = f"{Path(draft).name}, {task}, T={temperature:g}, prompts from {start}"
                yield name, of_passes(few, parts.draft, alone=alone[some])


def main(words: Sequence[str]) -> None:
    if words[:1] == ["--sound"]:
        found = list[list[Finding]]()
        for name, lines in sound(words[1], [*SOUND, *words[2:]]):
            found.append(lines)
            print(name, *(f"{one.name}: {one.line}" for one in lines[:2]), sep="\n  ", flush=True)
        print(f"findings in {sum(map(bool, found))} of {len(found)} short runs of sound pairs")
        return
    pairs = {words[0]: QUANTISED} if words else PAIRS
    distilled = [replace(one, draft=folder) for folder in words[1:] for one in OF_A_DISTILLED]
    for target, nano in pairs.items():
        print(table(list(outcomes(target, nano, [*TEN, *FAMILIES, *distilled]))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
