"""A second set of faulty drafts, none of which set a rule: `python -m tests.support.planted_more [FOLDER]` prints all.

FOLDER: SmolLM2's weights, which are then the target and its own draft. `--sound [TARGET or FOLDER]` prints what is
found in short runs of sound drafts: 189 of both targets that ship, and 20 of SmolLM2.
"""

import copy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specbench.experiment.run_parts import Parts
from specbench.records.draft_signs import Finding
from tests.support.around import Around
from tests.support.planted import (
    FIRST_BAD,
    PAIRS,
    Changed,
    Fault,
    family_of,
    of_passes,
    outcomes,
    own_head,
    parts_of,
    powered,
    rows,
    table,
    with_network,
)

RUNS, RUNS_OF_ITS_OWN, CHUNK, TOKENS = 9, 20, 3, 32  # runs of a draft, and of SmolLM2; prompts of one, at least; tokens
FIRST_BAD_OF_A_DECODER = 12  # completions of t5-mini have 17 tokens or more
TEMPERATURES, GAMMAS = (0.0, 0.7, 1.0), (2, 4, 7)
ROWS = {"gpt-mini": "sum-mini-train.jsonl.gz", "t5-mini": "ende-mini-train.jsonl.gz"}
DRAFTS = {
    "gpt-mini": (
        "gpt-nano", "eagle", "eagle3", "medusa", "hydra", "mtp", "pass", "pard", "peagle", "dflash", "dspark",
        "blockwise", "quantised",
    ),
    "t5-mini": ("t5-nano", "eagle", "eagle3", "medusa", "hydra", "pass", "specdec", "blockwise"),
}  # fmt: skip


def no_embeddings(network: Any) -> None:
    """Input embeddings that were not loaded, beside a head that was."""
    own_head(network, lambda rows: rows)
    network.get_input_embeddings().weight.zero_()


def lost_scale(network: Any) -> None:
    """Matrices of the layers without the scale of their quantisation."""
    for name, weight in network.named_parameters():
        if weight.dim() == 2 and any(part in name for part in (".h.", ".block.", ".layers.")):
            weight.mul_(0.01)


def negative_head(network: Any) -> None:
    own_head(network, lambda rows: -rows)


def reversed_ids(network: Any) -> None:
    own_head(network, lambda rows: rows.flip(0))


def ids_one_low(network: Any) -> None:
    own_head(network, lambda rows: rows.roll(-1, 0))


def embeddings_one_off(network: Any) -> None:
    """Added tokens at the front: each token is read as the one beside it."""
    own_head(network, lambda rows: rows)
    weight = network.get_input_embeddings().weight
    weight.copy_(weight.clone().roll(1, 0))


def shuffled_columns(network: Any) -> None:
    """A head whose columns are in another order than the states."""
    order = torch.randperm(network.get_input_embeddings().weight.shape[1], generator=torch.Generator().manual_seed(8))
    own_head(network, lambda rows: rows[:, order])


def wide_noise(network: Any) -> None:
    for place, weight in enumerate(network.parameters()):
        weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(place)))


def cold_head(network: Any) -> None:
    own_head(network, lambda rows: 5 * rows)


def warm_head(network: Any) -> None:
    own_head(network, lambda rows: rows / 4)


def swapped_halves(network: Any) -> None:
    """A vocabulary that was sharded over two devices and put together in the wrong order."""
    own_head(network, lambda rows: rows.roll(len(rows) // 2, 0))


def two_later(q_LV: Tensor) -> Tensor:
    return torch.cat([q_LV[2:], q_LV[-1:], q_LV[-1:]])


def two_earlier(q_LV: Tensor) -> Tensor:
    return torch.cat([q_LV[:1], q_LV[:1], q_LV[:-2]])


def best_two(q_LV: Tensor) -> Tensor:
    """q cut to one token where it is above a tenth, as a top-p of .1 does."""
    kept_LV = torch.where(q_LV >= q_LV.amax(-1, keepdim=True), q_LV, 0.0)
    return kept_LV / kept_LV.sum(-1, keepdim=True)


class FromAPlace(Around):
    """Uniform q from a place of the text on, as of a cache that is full."""

    def __init__(self, inner: Any, options: dict[str, Any]) -> None:
        super().__init__(inner)
        self.place: int = options["place"]

    def score(self, tokens: Any, prefix_length: int) -> Tensor:
        q_LV: Tensor = self.inner.score(tokens, prefix_length)
        q_LV[max(0, self.place - prefix_length) :] = 1 / q_LV.shape[-1]
        return q_LV


class ForgetsTheLast(Around):
    """Passes that do not read the token that the target added."""

    def __init__(self, inner: Any, options: dict[str, Any]) -> None:
        super().__init__(inner)

    def propose(self, tokens: Any, gamma: int, generator: Any) -> Any:
        self.inner.rollback(0)
        return self.inner.propose([*tokens[:-1], tokens[-2:][0]], gamma, generator)

    def score(self, tokens: Any, prefix_length: int) -> Tensor:
        q_LV: Tensor = self.inner.score(tokens, prefix_length)
        return q_LV


class OneToken(Around):
    """A draft with one head: what follows its first token is its first token again."""

    def __init__(self, inner: Any, options: dict[str, Any]) -> None:
        super().__init__(inner)

    def propose(self, tokens: Any, gamma: int, generator: Any) -> Any:
        made = self.inner.propose(tokens, gamma, generator)
        made.tokens[1:] = [9] * len(made.tokens[1:])
        return made


class OnlyCopies(Around):
    """Right where a token of the text comes again, and nowhere else."""

    def __init__(self, inner: Any, options: dict[str, Any]) -> None:
        super().__init__(inner)

    def score(self, tokens: Any, prefix_length: int) -> Tensor:
        q_LV: Tensor = self.inner.score(tokens, prefix_length)
        for place in range(prefix_length, len(tokens)):
            row_V = torch.zeros(q_LV.shape[-1])
            before = [at for at in range(1, place) if tokens[at - 1] == tokens[place - 1] and place > prefix_length]
            row_V[tokens[before[-1]] if before else 11] = 1.0
            q_LV[place - prefix_length] = row_V
        return q_LV


def full_cache(draft: Any) -> Changed:
    """Its place is that of a completion, which a decoder beside an encoder begins anew."""
    beside_encoder = draft.model.network.config.is_encoder_decoder
    return Changed(draft, FromAPlace, place=FIRST_BAD_OF_A_DECODER if beside_encoder else FIRST_BAD)


def states_of_another(draft: Any) -> Any:
    """A head that was trained on another target: the states come in another order."""
    made = copy.copy(draft)
    made.columns = list(range(draft.eagle.shape.tapped_width * len(draft.eagle.shape.taps)))[::-1]
    return made


def changed(around: Any) -> Any:
    return lambda draft: Changed(draft, around)


HELD: Sequence[Fault] = (
    Fault("embeddings not loaded", with_network(no_embeddings), "weights"),
    Fault("scale of the weights lost", with_network(lost_scale), "weights"),
    Fault("head with the wrong sign", with_network(negative_head), "weights"),
    Fault("ids in reverse", with_network(reversed_ids), "relabelled"),
    Fault("ids one too low", with_network(ids_one_low), "relabelled"),
    Fault("halves of the vocabulary swapped", with_network(swapped_halves), "relabelled"),
    Fault("each token read as its neighbour", with_network(embeddings_one_off), "weights"),
    Fault("columns of the head shuffled", with_network(shuffled_columns), "weights"),
    Fault("weights of another scale", with_network(wide_noise), "weights"),
    Fault("head five times too large", with_network(cold_head), "temperature", 1.0),
    Fault("head a quarter", with_network(warm_head), "temperature", 1.0),
    Fault("q flattened", rows(powered(0.4)), "temperature", 1.0),
    Fault("q cut by a top-p", rows(best_two), "cut", 1.0),
    Fault("two places later", rows(two_later), "shifted"),
    Fault("two places earlier", rows(two_earlier), "shifted"),
    Fault("a cache that is full", full_cache, "context"),
    Fault("copies alone", changed(OnlyCopies), "copies"),
    Fault("the last token unread", changed(ForgetsTheLast), "cache", decoded=True),
    Fault("one head", changed(OneToken), "cliff", decoded=True),
    Fault("states of another target", states_of_another, "weights", draft="eagle3"),
)


def sound(target: str, number: int) -> Iterator[tuple[str, list[Finding]]]:
    """Short runs with each draft of a target, and what is found in each; none is right.

    A folder is SmolLM2's, which is its own draft. `number`: runs of each draft.
    """
    for draft in DRAFTS.get(target, (target,)):
        built = dict[float, Parts]()
        for run in range(number):
            temperature, gamma = TEMPERATURES[run % 3], GAMMAS[run // 3 % 3]
            if run < len(TEMPERATURES):
                built[temperature] = parts_of(
                    target, draft, temperature, (number + 1) * CHUNK, TOKENS, ROWS.get(target)
                )
            parts, some = built[temperature], slice(run * CHUNK, (run + 1 + run % 2) * CHUNK)
            few = replace(parts, prompts=parts.prompts[some], examples=parts.examples[some])
            name = f"{family_of(target)}, {few.config.draft.kind}, T={temperature:g}, gamma={gamma}, run {run}"
            yield name, of_passes(few, parts.draft, gamma)


def reordered_blocks(network: Any) -> None:
    """A head whose rows were put together from shards of 64 in the wrong order."""

    def change(rows: Tensor) -> Tensor:
        blocks = list(rows.split(64))
        return torch.cat(blocks[1::2] + blocks[::2])

    own_head(network, change)


def negative_norms(network: Any) -> None:
    """Norms of the layers whose weights lost their sign's bit, every second one."""
    own_head(network, lambda rows: rows)
    for name, weight in network.named_parameters():
        if weight.dim() == 1 and name.endswith("weight") and "encoder" not in name:
            weight[::2].neg_()


def shuffled_inputs(network: Any) -> None:
    """Matrices of the layers whose input columns are in another order, as of a transposed or interleaved layout."""
    for place, (name, weight) in enumerate(network.named_parameters()):
        if weight.dim() == 2 and any(part in name for part in (".h.", ".block.", ".layers.")):
            order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(place))
            weight.copy_(weight[:, order].clone())


def no_outputs(network: Any) -> None:
    """Layers whose last matrices are zero, so that they add nothing."""
    for name, weight in network.named_parameters():
        if name.endswith(("c_proj.weight", "c_proj.bias", "down_proj.weight", "o_proj.weight", "wo.weight")) or (
            name.endswith("o.weight") and "ttention" in name
        ):
            weight.zero_()


def one_position(network: Any) -> None:
    """Positions that stop counting, as of an index that is cut off."""
    network.transformer.wpe.weight[FIRST_BAD:] = network.transformer.wpe.weight[0].clone()


def ends(q_LV: Tensor) -> Tensor:
    """All on the token of the largest id, as of a mask of the vocabulary that is inverted."""
    row_V = torch.zeros_like(q_LV[0])
    row_V[-1] = 1.0
    return row_V.expand_as(q_LV).clone()


def two_likeliest(q_LV: Tensor) -> Tensor:
    """q cut to two tokens, nearly all of it on the first, as of a top-k of 2 and a temperature of a tenth."""
    kept_LV = torch.where(q_LV >= q_LV.topk(2, -1).values[:, -1:], q_LV, 0.0) ** 10
    return kept_LV / kept_LV.sum(-1, keepdim=True)


class Lags(Around):
    """Passes that read the text without its last three tokens, as of a cache that is rolled back too far."""

    def __init__(self, inner: Any, options: dict[str, Any]) -> None:
        super().__init__(inner)

    def propose(self, tokens: Any, gamma: int, generator: Any) -> Any:
        self.inner.rollback(0)
        return self.inner.propose(tokens[:-3] if len(tokens) > 8 else tokens, gamma, generator)

    def score(self, tokens: Any, prefix_length: int) -> Tensor:
        q_LV: Tensor = self.inner.score(tokens, prefix_length)
        return q_LV


class SameAgain(Around):
    """A head that does not advance: its first token is proposed at each later position, too."""

    def __init__(self, inner: Any, options: dict[str, Any]) -> None:
        super().__init__(inner)

    def propose(self, tokens: Any, gamma: int, generator: Any) -> Any:
        made = self.inner.propose(tokens, gamma, generator)
        made.tokens[1:] = made.tokens[:1] * len(made.tokens[1:])
        return made


# Written after all rules were set, those too that the results of `HELD` changed.
UNSEEN: Sequence[Fault] = (
    Fault("shards of the head in another order", with_network(reordered_blocks), "relabelled"),
    Fault("norms with lost signs", with_network(negative_norms), "weights"),
    Fault("columns of the layers shuffled", with_network(shuffled_inputs), "weights"),
    Fault("layers that add nothing", with_network(no_outputs), "repeats"),
    Fault("an inverted mask of the vocabulary", rows(ends), "constant"),
    Fault("positions that stop", with_network(one_position), "context", only="gpt-mini"),
    Fault("q at a fifth of its temperature", rows(powered(5.0)), "temperature", 1.0),
    Fault("q cut to two tokens", rows(two_likeliest), "cut", 1.0),
    Fault("a cache that is three short", changed(Lags), "cache", decoded=True),
    Fault("a head that does not advance", changed(SameAgain), "cliff", decoded=True),
)


def main(words: Sequence[str]) -> None:
    if words[:1] == ["--sound"]:
        found = list[list[Finding]]()
        for target in words[1:] or PAIRS:
            for name, lines in sound(target, RUNS if target in PAIRS else RUNS_OF_ITS_OWN):
                found.append(lines)
                print(name, *(f"{one.name}: {one.line}" for one in lines[:2]), sep="\n  ", flush=True)
        print(f"findings in {sum(map(bool, found))} of {len(found)} short runs of sound pairs")
        return
    planted, folders = (UNSEEN, words[1:]) if words[:1] == ["--unseen"] else (HELD, words)
    pairs = {folder: folder for folder in folders} or PAIRS
    for target, nano in pairs.items():
        print(table(list(outcomes(target, nano, planted))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
