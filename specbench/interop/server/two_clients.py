"""The servers of a measurement, and who they say they are."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from specbench.config.server import ServerConfig, address
from specbench.errors import UserError
from specbench.interop.server.client import Client, Identity

Alone = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True)
class Servers:
    """The two servers, and who they say they are.

    device: of both, if they were started here. `alone` lets one (drafting | plain) answer while the other is held.
    """

    drafting: Client
    plain: Client | None
    identity: Identity
    plain_identity: Identity | None
    device: str | None = None
    alone: Alone = nullcontext

    def named(self) -> str:
        """The engine, and after a '/' the engine of the server without a draft if it is another."""
        names = [self.identity.engine, *([self.plain_identity.engine] if self.plain_identity else [])]
        return " / ".join(dict.fromkeys(names))


def connect(config: ServerConfig) -> Servers:
    """Clients of both servers, each of which answered who it is. Raises UserError if one is no such server."""
    token = None
    if config.token_env is not None and (token := os.environ.get(config.token_env)) is None:
        raise UserError(f"token_env={config.token_env}: there is no such environment variable")

    def client(url: str, key: str) -> Client:
        made = Client(address(url), config.model or "", key=key, timeout=config.timeout, token=token)
        made.streams = config.stream
        made.penalties = {
            name: value for name, value in config.sampling.set_keys().items() if name.endswith("_penalty")
        }
        return made

    drafting = client(config.url, "url")
    identity = drafting.identify()
    plain = None if config.plain is None else client(config.plain, "plain")
    return Servers(drafting, plain, identity, None if plain is None else plain.identify())
