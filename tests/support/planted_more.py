"""A second set of faulty drafts, none of which set a rule: `python -m tests.support.planted_more [FOLDER]` prints all.

FOLDER: SmolLM2's weights, which are then the target and its own draft. `--sound` prints what is found of sound pairs in
200 short runs.
"""

import copy
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specbench.analysis.findings import findings
from tests.support.around import Around
from tests.support.planted import (
    FIRST_BAD,
    PAIRS,
    Changed,
    Fault,
    _own_head,
    outcomes,
    pair,
    powered,
    rows,
    seen,
    table,
    with_network,
)

RUNS, PROMPTS, TOKENS = 50, 3, 40  # of each pair at each temperature


def no_embeddings(network: Any) -> None:
    """Input embeddings that were not loaded, beside a head that was."""
    _own_head(network, lambda rows: rows)
    network.get_input_embeddings().weight.zero_()


def lost_scale(network: Any) -> None:
    """Matrices of the layers without the scale of their quantisation."""
    for name, weight in network.named_parameters():
        if weight.dim() == 2 and any(part in name for part in (".h.", ".block.", ".layers.")):
            weight.mul_(0.01)


def negative_head(network: Any) -> None:
    _own_head(network, lambda rows: -rows)


def reversed_ids(network: Any) -> None:
    _own_head(network, lambda rows: rows.flip(0))


def ids_one_low(network: Any) -> None:
    _own_head(network, lambda rows: rows.roll(-1, 0))


def embeddings_one_off(network: Any) -> None:
    """Added tokens at the front: each token is read as the one beside it."""
    _own_head(network, lambda rows: rows)
    weight = network.get_input_embeddings().weight
    weight.copy_(weight.clone().roll(1, 0))


def shuffled_columns(network: Any) -> None:
    """A head whose columns are in another order than the states."""
    order = torch.randperm(network.get_input_embeddings().weight.shape[1], generator=torch.Generator().manual_seed(8))
    _own_head(network, lambda rows: rows[:, order])


def wide_noise(network: Any) -> None:
    for place, weight in enumerate(network.parameters()):
        weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(place)))


def cold_head(network: Any) -> None:
    _own_head(network, lambda rows: 5 * rows)


def warm_head(network: Any) -> None:
    _own_head(network, lambda rows: rows / 4)


def swapped_halves(network: Any) -> None:
    """A vocabulary that was sharded over two devices and put together in the wrong order."""
    _own_head(network, lambda rows: rows.roll(len(rows) // 2, 0))


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

    def score(self, tokens: Any, prefix_length: int) -> Tensor:
        q_LV: Tensor = self.inner.score(tokens, prefix_length)
        q_LV[max(0, FIRST_BAD - prefix_length) :] = 1 / q_LV.shape[-1]
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
    Fault("a cache that is full", changed(FromAPlace), "context"),
    Fault("copies alone", changed(OnlyCopies), "copies"),
    Fault("the last token unread", changed(ForgetsTheLast), "cache", decoded=True),
    Fault("one head", changed(OneToken), "cliff", decoded=True),
    Fault("states of another target", states_of_another, "weights", draft="eagle3"),
)


def sound() -> tuple[int, int, list[str]]:
    """Short runs of sound pairs, how many of them have a finding, and these."""
    runs, lines = 0, list[str]()
    for (target, nano), file in zip(PAIRS.items(), ("sum-mini-train", "ende-mini-train"), strict=True):
        for temperature in (0.0, 1.0):
            parts, texts = pair(target, nano, temperature, RUNS * PROMPTS, TOKENS, f"{file}.jsonl.gz")
            for start in range(0, RUNS * PROMPTS, PROMPTS):
                some = slice(start, start + PROMPTS)
                few = (replace(parts, prompts=parts.prompts[some]), texts[some])
                (observed,) = seen(few, [parts.draft], False)
                runs += 1
                lines += [f"{target} T={temperature:g} from {start}: {one.line}" for one in findings(observed)[:1]]
    return runs, len(lines), lines


def main(words: Sequence[str]) -> None:
    if words == ["--sound"]:
        runs, wrong, lines = sound()
        print(*lines, f"findings in {wrong} of {runs} short runs of sound pairs", sep="\n")
        return
    pairs = {folder: folder for folder in words} or PAIRS
    for target, nano in pairs.items():
        print(table(list(outcomes(target, nano, HELD))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
