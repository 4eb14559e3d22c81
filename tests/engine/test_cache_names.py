"""A network's cache goes in and comes out by the name that its release of transformers has for it."""

from typing import Any

import torch
from transformers.modeling_outputs import ModelOutput

from specbench.engine.cache_names import cache_argument, cache_of
from tests.support.networks import network


class Renamed(torch.nn.Module):
    def forward(self, input_ids: Any, cache: Any = None) -> Any:
        raise NotImplementedError


class OfMamba(torch.nn.Module):
    def forward(self, input_ids: Any, cache_params: Any = None) -> Any:
        raise NotImplementedError


def test_the_argument_is_the_one_that_the_forward_names() -> None:
    assert (cache_argument(Renamed()), cache_argument(OfMamba())) == ("cache", "cache_params")


def test_the_cache_of_a_network_goes_in_and_comes_out() -> None:
    """Of whatever release is installed."""
    small = network("gpt2", 2)
    ids = torch.tensor([[3, 4]])
    cache = cache_of(small(input_ids=ids, use_cache=True))
    both = small(input_ids=ids, use_cache=True, **{cache_argument(small): cache})
    assert cache_of(both).get_seq_length() == 4


def test_any_of_the_names_is_read_from_an_output() -> None:
    for name in ("cache", "past_key_values", "cache_params"):
        assert cache_of(ModelOutput({name: 1})) == 1
