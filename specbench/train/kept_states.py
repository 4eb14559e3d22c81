"""The states of a frozen target along the texts to learn on, computed once for all recipes that share a folder.

The target's own run takes most of a training step of a small head: SmolLM2-135M's takes 80% of EAGLE's. States are
kept after each depth that a head reads, and before the target's head, whose logits follow from them: logits of all
texts would take some hundred times the room.

Shapes: B texts, T tokens, D the target's width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specbench.engine.eager.network_parts import Taps
from specbench.errors import UserError
from specbench.files import json_digest, require_writable, write_atomically
from specbench.train.logits import FromStates
from specbench.train.target_texts import Ids, padded, special_ids

ROWS = 64  # texts of a file
TOKENS = 4096  # of texts that the target reads at once
HEAD = "head"  # in place of a depth: what the target's head reads
TOLERANCE = 1e-2  # of the largest logit: what 16 bits round


class KeptStates:
    """States along `texts` at `depths` and before the head, in files of ROWS texts of like length."""

    def __init__(
        self,
        folder: Path,
        target: PreTrainedModel,
        texts: Sequence[Ids],
        depths: Sequence[int],
        weights: str,
        progress: bool = False,
    ) -> None:
        """Computes the states that `folder` lacks; `weights` is a digest of the target's.

        Raises:
            UserError: the target's logits do not follow from the states before its head.
        """
        require_writable(folder, "distill.states=FOLDER")
        self.target, self.texts, self.depths = target, texts, tuple(depths)
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        self._groups = [order[begin : begin + ROWS] for begin in range(0, len(order), ROWS)]
        self._group_of = {row: number for number, rows in enumerate(self._groups) for row in rows}
        self._digests = [json_digest([weights, str(target.dtype), [texts[row] for row in rows]]) for rows in self._groups]
        self.folder, self._opened = folder, dict[Path, Any]()
        missing = [number for number in range(len(self._groups)) if self._lacking(number)]
        if missing:
            self._require_head_alone(texts[order[0]])
        for number in tqdm(missing, desc="states of the target", unit=" files", disable=not progress):
            self._compute(number)

    def of(self, rows_B: torch.Tensor, length: int) -> list[torch.Tensor]:
        """[B, T, D] before the head, then at each depth, of the texts `rows_B`, with zeros after their ends."""
        found = []
        for depth in (HEAD, *self.depths):
            rows = [self._file(self._group_of[row], depth).get_tensor(str(row)) for row in rows_B.tolist()]
            filled = rows[0].new_zeros(len(rows), length, rows[0].shape[-1])
            for place, states_TD in enumerate(rows):
                filled[place, : len(states_TD)] = states_TD
            found.append(filled.to(self.target.device))
        return found

    def logits_of(self, rows_B: torch.Tensor, length: int) -> FromStates:
        """The target's logits [B, T, V] along the texts `rows_B`."""
        return self.logits(self.of(rows_B, length)[0])

    def logits(self, states: torch.Tensor) -> FromStates:
        """The target's logits after `states`, which its head reads."""
        return FromStates(states, self.target.get_output_embeddings())

    def _path(self, number: int, depth: int | str) -> Path:
        return self.folder / f"states-{depth}-{self._digests[number]}.safetensors"

    def _lacking(self, number: int) -> list[int | str]:
        """The depths of group `number` without a whole file."""
        lacking: list[int | str] = []
        for depth in (HEAD, *self.depths):
            try:
                held = set(self._file(number, depth).keys())
            except (OSError, SafetensorError):
                held = set()
            if held != {str(row) for row in self._groups[number]}:
                lacking.append(depth)
        return lacking

    def _file(self, number: int, depth: int | str) -> Any:
        """The opened file, of which a tensor is read when it is asked for."""
        path = self._path(number, depth)
        if path not in self._opened:
            self._opened[path] = safe_open(path, "pt")
        return self._opened[path]

    def _compute(self, number: int) -> None:
        """Write the files that group `number` lacks."""
        kept: dict[int | str, dict[str, torch.Tensor]] = {depth: {} for depth in self._lacking(number)}
        depths = [depth for depth in kept if isinstance(depth, int)]
        with closing(Taps(self.target, depths)) as taps:
            for rows in self._read_together(self._groups[number]):
                found: dict[int | str, torch.Tensor] = {HEAD: self._before_head([self.texts[row] for row in rows])}
                found.update(zip(depths, taps.taken(), strict=True))
                for depth, states in kept.items():
                    for place, row in enumerate(rows):
                        states[str(row)] = found[depth][place, : len(self.texts[row])].contiguous().cpu()
        for depth, states in kept.items():
            self._opened.pop(path := self._path(number, depth), None)
            write_atomically(path, save(states), "distill.states=FOLDER")

    @torch.no_grad()
    def _before_head(self, texts: Sequence[Ids]) -> torch.Tensor:
        """[B, T, D], without the logits, which take a fifth of a small model's run."""
        device = self.target.device
        ids_BT = padded(list(texts), special_ids(self.target)[0]).to(device)
        mask_BT = padded([[1] * len(text) for text in texts], 0).to(device)
        body = self.target.base_model
        states: torch.Tensor = body(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).last_hidden_state
        return states

    @torch.no_grad()
    def _require_head_alone(self, text: Ids) -> None:
        """Raise UserError if the target changes its logits after the head, or the states before it."""
        wanted = self.target(input_ids=torch.tensor([text], device=self.target.device), use_cache=False).logits.float()
        found = self.logits(self._before_head([text])).computed().float()
        if wanted.shape != found.shape or (wanted - found).abs().max() > TOLERANCE * wanted.abs().max():
            raise UserError(
                "distill.states: the logits of distill.target are not its head's alone (they are scaled or capped), so "
                "its states do not give them; leave it out"
            )

    def _read_together(self, rows: Sequence[int]) -> Iterator[list[int]]:
        """`rows` in parts of at most TOKENS tokens, of which the last text is the longest."""
        part: list[int] = []
        for row in rows:
            if part and (len(part) + 1) * len(self.texts[row]) > TOKENS:
                yield part
                part = []
            part.append(row)
        yield part
