"""Ports for servers that are told which one to listen on: `free_port`."""

from __future__ import annotations

import random
import socket
from typing import Final

_PORTS: Final = range(10_000, 30_000)
"""Below those that Linux and macOS give to connections: nothing takes one by chance, not while a server restarts."""
_given: Final[set[int]] = set()


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens, and which this process has not been given before."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        if port in _given:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
