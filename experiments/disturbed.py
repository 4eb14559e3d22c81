"""A copy of a checkpoint whose weights are disturbed: a draft that a small target without a smaller sibling can have.

    python experiments/disturbed.py FOLDER COPY [SHARE]

Each matrix but the embeddings gets normal noise of SHARE (default .1) times its own standard deviation, from one seed.
Such a draft costs as much as its target, so it shows no speedup: it is for tests of acceptance.
"""

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def main(folder: Path, copy: Path, share: float) -> None:
    """Write the copy of `folder`."""
    copy.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    for file in sorted(folder.iterdir()):
        if file.suffix != ".safetensors":
            shutil.copy(file, copy / file.name)
            continue
        weights = load_file(file)
        for name in sorted(weights):
            weight = weights[name]
            if weight.dim() == 2 and "embed" not in name:
                noise = torch.randn(weight.shape, generator=generator)
                weights[name] = weight + (noise * weight.std() * share).to(weight.dtype)
        save_file(weights, copy / file.name, metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.1)
