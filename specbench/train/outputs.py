"""The target's own outputs for a list of sources, in batches: what a distilled draft learns to continue.

Independent of the draft, and of how outputs are decoded one prompt at a time elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

Ids = list[int]


def write_outputs(
    target: PreTrainedModel,
    sources: list[Ids],
    *,
    sampled: bool,
    batch_size: int,
    max_new_tokens: int,
    seed: int,
    per_source: float | None = None,
    progress: bool = True,
    purpose: str = "",
) -> list[Ids]:
    """One output per source, without the start token and closed by end-of-sequence if the target ended it.

    Greedy, or sampled at T=1 from the whole distribution (no top-k, no top-p). Sources of like length share a batch.
    `per_source` also limits outputs to so many tokens per source token: one output that never ends holds up a batch.
    `purpose` is shown after the name of the progress bar.
    """
    torch.manual_seed(seed)
    outputs: list[Ids] = [[] for _ in sources]
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    bar = tqdm(total=len(order), desc=f"{'sampled' if sampled else 'greedy'} outputs{purpose}", disable=not progress)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        room = max_new_tokens
        if per_source is not None:
            room = min(room, 4 + int(per_source * max(len(sources[index]) for index in chosen)))
        written = _one_batch(target, [sources[index] for index in chosen], sampled, room)
        for index, output in zip(chosen, written, strict=True):
            outputs[index] = output
        bar.update(len(chosen))
    bar.close()
    return outputs


def special_ids(target: PreTrainedModel) -> tuple[int, frozenset[int]]:
    """The id that rows are filled up with, and the ids that end an output.

    A decoder-only model may have several that end it, and none for filling up: then an end is taken.
    """
    given, pad = target.config.eos_token_id, target.config.pad_token_id
    ends = frozenset(given if isinstance(given, (list, tuple)) else () if given is None else (given,))
    return (pad if pad is not None else min(ends, default=0)), ends


def _one_batch(target: PreTrainedModel, sources: list[Ids], sampled: bool, max_new_tokens: int) -> Iterator[Ids]:
    pad, ends = special_ids(target)
    width = max(len(source) for source in sources)
    # What comes before the outputs: a start token, or the prompt itself (then all of one length).
    before = 1 if target.config.is_encoder_decoder else width
    ids = torch.tensor([source + [pad] * (width - len(source)) for source in sources], device=target.device)
    read = torch.tensor([[1] * len(source) + [0] * (width - len(source)) for source in sources], device=target.device)
    with torch.inference_mode():
        written = target.generate(
            input_ids=ids,
            attention_mask=read,
            pad_token_id=pad,
            do_sample=sampled,
            num_beams=1,
            temperature=1.0 if sampled else None,
            top_k=0 if sampled else None,
            top_p=1.0 if sampled else None,
            max_new_tokens=max_new_tokens,
        )
    for row in written[:, before:].tolist():
        closed = next((place for place, token in enumerate(row) if token in ends), None)
        yield row[: closed + 1] if closed is not None else [token for token in row if token != pad]


def kept_outputs(path: Path, sources: list[Ids], make: Callable[[], list[Ids]]) -> list[Ids]:
    """The outputs in `path` if they are of exactly these sources (a resumed run), else those of `make()`."""
    if path.is_file():
        kept = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if [row["source"] for row in kept] == sources:
            return [row["output"] for row in kept]
    outputs = make()
    lines = [json.dumps({"source": s, "output": o}) for s, o in zip(sources, outputs, strict=True)]
    partial = path.with_suffix(".partial")
    partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial.replace(path)
    return outputs
