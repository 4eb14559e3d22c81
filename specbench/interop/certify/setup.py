"""The target that completions are tested against, and the settings of its readings."""

from dataclasses import dataclass

import torch

from specbench.algorithm.acceptance.base import Verification
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.decoding import DecodingSpec
from specbench.algorithm.draft import Draft
from specbench.config.model import name_of
from specbench.config.schema import RunConfig
from specbench.config.verbs import CertifyConfig
from specbench.engine.session import Model
from specbench.loading import require_range
from specbench.loading.model_loader import ModelLoader, ModelRequest, Say
from specbench.methods.build import DraftRequest, builder_for, needed_of_target
from specbench.sampling import Sampling
from specbench.text.processed import drawing, processed
from specbench.text.tokenizer import load_tokenizer
from specbench.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Setup:
    """The target, and the settings of its readings.

    `loaded` has the logits of the weights, `target` those that are processed as the config says.
    """

    config: CertifyConfig
    run: RunConfig
    vocabulary: Vocabulary
    loaded: Model
    target: Model
    draft: Draft
    sampling: Sampling
    device: torch.device


def load(config: CertifyConfig, run: RunConfig, say: Say) -> Setup:
    """Load the target, and the draft that the tests are made with."""
    if run.threads is not None:
        torch.set_num_threads(run.threads)
    device, loader = torch.device(run.device), ModelLoader()
    vocabulary = load_tokenizer(run.target, "target")
    require_range(run, vocabulary, name_of(run.target))
    builder = builder_for(DraftRequest(run, run.draft, "draft", vocabulary, device, loader))
    builder.fit(say)
    request = ModelRequest(run.target, "target", vocabulary, run, device, needed_of_target([builder]))
    loaded = loader.load(request, say)
    target = processed(loaded, config.sampling, vocabulary)
    return Setup(config, run, vocabulary, loaded, target, builder.load(loaded, say), drawing(config.sampling), device)


def spec_of(sampling: Sampling, tokens: int) -> DecodingSpec:
    """How the target writes a completion of its own, of at most `tokens` tokens."""
    return DecodingSpec(sampling, max(1, tokens), Verification(accept_exact, sampling))


def generator_of(setup: Setup, number: int) -> torch.Generator:
    """The random numbers of row `number`."""
    return torch.Generator(setup.device).manual_seed((setup.config.seed * 1_000_003 + number) % 2**63)
