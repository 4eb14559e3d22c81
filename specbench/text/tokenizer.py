"""The tokenizer of a checkpoint, as a vocabulary."""

from specbench.config.model import ModelConfig
from specbench.engine.weights.load import read_tokenizer
from specbench.text.vocabulary import Vocabulary


def load_tokenizer(model: ModelConfig, key: str) -> Vocabulary:
    """The tokenizer of `model`, with the start token that its config names. `key` is 'target' or 'draft'.

    Raises:
        UserError: there is no tokenizer, or no start token that the model has.
        MachineError: the hub cannot be reached.
    """
    read = read_tokenizer(model, key)
    return Vocabulary(read.tokenizer, read.start, read.is_encoder_decoder, read.family, read.rows)
