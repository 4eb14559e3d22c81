"""A batch for toy recipes."""

import torch

SOURCE, TEXT = [5, 9, 12, 30, 1], [7, 9, 30, 4, 22, 8, 5, 11]


def batch(family: str) -> dict[str, torch.Tensor]:
    """One text, and below it the same with its last three tokens missing."""
    texts = torch.tensor([TEXT, [*TEXT[:-3], -100, -100, -100]])
    read = texts.clamp(min=0)
    if family == "gpt2":
        return {"input_ids": read, "attention_mask": (texts >= 0).long(), "labels": texts}
    shifted = torch.cat([torch.zeros_like(read[:, :1]), read[:, :-1]], 1)
    ids = torch.tensor([SOURCE, SOURCE])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": texts, "decoder_input_ids": shifted}


def every_place(given: dict[str, torch.Tensor]) -> torch.Tensor:
    """The numbers [B, T] of the decoder's tokens."""
    ids_BT = given.get("decoder_input_ids", given["input_ids"])
    return torch.arange(ids_BT.shape[1]).expand_as(ids_BT)
