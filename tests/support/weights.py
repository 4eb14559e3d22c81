"""A network from a folder of weights."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM

from specbench.config.model import ModelConfig
from specbench.engine.weights.load import load_network


def read(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    return load_network(ModelConfig(path=str(folder)), "target", AutoModelForSeq2SeqLM, dtype, device).network
