"""Is the model hub there? Asked before a download, since its client retries for half a minute before it says no."""

import functools
import os
import socket
from urllib.parse import urlsplit


@functools.cache
def hub_is_reachable() -> bool:
    """Whether a connection to the hub can be opened. With a proxy set nothing can be told, and it is taken to be."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    address = urlsplit(constants.ENDPOINT)
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname or "", port), timeout=5).close()
    except OSError:
        return False
    return True
