"""A server in this process, for tests of what asks one."""

import socket
import sys
from http.server import ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """Prints no traceback of a client that has gone, which some tests mean to."""

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
