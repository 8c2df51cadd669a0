"""A TCP relay between a client and a server, so that a test can break connections as networks do."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from apiserver import ApiServer


class Relay:
    """Listens on a port of its own and passes bytes to and from `port` on loopback; a context manager.

    `cut` breaks the connections there are; `freeze` lets new and old ones stand still without a word, as a node that
    lost its network; `refuse` also closes the port until `accept`.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.frozen = False
        self.connections = 0
        """How many were made in all."""
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._closed = False
        self._listener: socket.socket | None = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closed = True
        self._thread.join()
        self.cut()
        self.refuse()
        self._selector.close()

    def kubeconfig(self, cluster: ApiServer, directory: Path) -> Path:
        """Return a kubeconfig for an API server that leads through the relay."""
        whole = json.loads(cluster.kubeconfig.read_text())
        whole["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.port}"
        path = directory / "relay.kubeconfig"
        path.write_text(json.dumps(whole))
        return path

    def cut(self) -> None:
        """Break all connections."""
        with self._lock:
            for each in list(self._pairs):
                self._drop(each)

    def freeze(self) -> None:
        """Pass nothing on, neither bytes nor ends."""
        self.frozen = True

    def thaw(self) -> None:
        """Break what was frozen, and pass on what comes again."""
        self.cut()
        self.frozen = False

    def refuse(self) -> None:
        """Close the port and break all connections."""
        with self._lock:
            if self._listener is not None:
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = None
        self.cut()

    def accept(self) -> None:
        """Open the port again."""
        with self._lock:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _run(self) -> None:
        while not self._closed:
            ready = self._selector.select(0.02)
            with self._lock:
                for key, _ in ready:
                    if key.fileobj is self._listener:
                        self._connect()
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._pairs and not self.frozen:
                        self._pass_on(key.fileobj)
            if self.frozen:
                threading.Event().wait(0.02)

    def _connect(self) -> None:
        assert self._listener is not None
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            client.close()
            return
        self.connections += 1
        for one, other in ((client, server), (server, client)):
            self._pairs[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, one: socket.socket) -> None:
        try:
            data = one.recv(1 << 16)
            if data:
                self._pairs[one].sendall(data)
                return
        except OSError:
            pass  # broken: drop it
        self._drop(one)

    def _drop(self, one: socket.socket) -> None:
        other = self._pairs.pop(one, None)
        if other is None:
            return
        self._pairs.pop(other, None)
        for each in (one, other):
            with contextlib.suppress(KeyError):
                self._selector.unregister(each)
            each.close()
