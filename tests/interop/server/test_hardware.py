"""What a measured server computes on: the GPU of one that was started there, and what is known of others."""

from typing import Any, cast

import pytest

from specbench.config.server import ServerConfig
from specbench.interop.server.server_summary import hardware_of

MACHINE: Any = {"cpu": "a CPU", "threads": 2, "gpus": ["a GPU", "another GPU"]}


@pytest.mark.parametrize(
    ("url", "gpus", "device", "found"),
    [
        ("http://127.0.0.1:8000/v1", 2, "cuda:1", "another GPU"),
        ("http://127.0.0.1:8000/v1", 2, "cpu", "a CPU, 2 threads"),
        ("http://localhost:8000/v1", 2, None, "a GPU or another GPU or a CPU, 2 threads"),
        ("http://localhost:8000/v1", 0, None, "a CPU, 2 threads"),
        ("http://example.org/v1", 2, None, "remote"),
    ],
)
def test_hardware_is_that_of_the_server(url: str, gpus: int, device: str | None, found: str) -> None:
    machine = cast(Any, {**MACHINE, "gpus": MACHINE["gpus"][:gpus]})
    assert hardware_of(ServerConfig(url=url), machine, device) == found
