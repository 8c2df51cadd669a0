"""A store of the leader that only workers of its job reach: torch's `Store`, over authenticated connections.

torch's own TCPStore answers whoever reaches its port.
"""

from __future__ import annotations

import json
import logging
import socket
import struct
import threading
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from torch._C._distributed_c10d import HashStore, Store

from espalier_core.causes import in_one_line
from espalier_trainer.elastic.channel import Channel, answer, wake

logger = logging.getLogger(__name__)

STRANGERS: Final = 32
"""Connections that have not proved yet to be of the job: one more, and the oldest is dropped."""
PATIENCE: Final = timedelta(seconds=5)
"""How long a store waits for what is not there, unless it is told."""
_ANSWER_SECONDS: Final = 10.0
_REQUEST: Final = struct.Struct(">BqI")
"""Operation, number, bytes of the keys (JSON); then the keys, then a value."""
_SET, _GET, _ADD, _CHECK, _WAIT, _DELETE = range(6)
_OK: Final = b"\0"
_FAILED: Final = b"\1"


class StoreServer:
    """Answers the job's workers from `store`, which the leader uses directly; ends when it is dropped or closed."""

    def __init__(self, listener: socket.socket, key: bytes, attempt: int) -> None:
        """Begin to accept connections at `listener`."""
        self.store: Any = HashStore()
        self.store.set_timeout(PATIENCE)
        door = _Door(listener, key, attempt, self.store)
        self.close = weakref.finalize(self, door.close)
        threading.Thread(target=door.run, name="rendezvous", daemon=True).start()


class _Door:
    """Accepts connections, each in a thread of its own. What fails ends one connection, never the leader."""

    def __init__(self, listener: socket.socket, key: bytes, attempt: int, store: Any) -> None:
        self._listener, self._key, self._attempt, self._store = listener, key, attempt, store
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, None] = {}
        self._known: set[socket.socket] = set()
        self._closed = False
        self._said: set[str] = set()

    def run(self) -> None:
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError as error:
                if self._closed:
                    self._listener.close()
                    return
                self._refused("nobody", error)  # such as too many open files
                threading.Event().wait(0.1)
                continue
            with self._lock:
                self._strangers[connection] = None
                if len(self._strangers) > STRANGERS:
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    wake(oldest)
                if self._closed:
                    wake(connection)
            try:
                threading.Thread(target=self._serve, args=(connection, peer[0]), name="worker", daemon=True).start()
            except RuntimeError as error:  # no more threads
                self._refused(peer[0], error)
                self._forget(connection)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            open_ones = [*self._strangers, *self._known]
        for each in (self._listener, *open_ones):
            wake(each)

    def _serve(self, connection: socket.socket, peer: str) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # its node may disappear
            channel = answer(connection, self._key, self._attempt)
            with self._lock:
                self._strangers.pop(connection, None)
                self._known.add(connection)
        except OSError as error:
            self._refused(peer, error)
            self._forget(connection)
            return
        try:
            while True:
                channel.send(_answered(self._store, channel.receive()))
        except OSError as error:
            logger.debug("the connection of a worker at %s is over: %s", peer, error)
        finally:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._strangers.pop(connection, None)
            self._known.discard(connection)
        connection.close()

    def _refused(self, peer: str, error: Exception) -> None:
        why = str(error)
        with self._lock:
            level = logging.DEBUG if why in self._said or self._closed else logging.WARNING
            self._said.add(why)
        logger.log(level, "a connection from %s is refused: %s (told once)", peer, why)


def _answered(store: Any, request: bytes) -> bytes:
    """Carry a request out; returns what to send back."""
    try:
        operation, number, size = _REQUEST.unpack_from(request)
        keys = json.loads(request[_REQUEST.size : _REQUEST.size + size])
        value = request[_REQUEST.size + size :]
        found = b""
        if operation == _SET:
            store.set(keys[0], value)
        elif operation == _GET:
            found = store.get(keys[0])
        elif operation == _ADD:
            found = str(store.add(keys[0], number)).encode()
        elif operation == _CHECK:
            found = str(int(store.check(keys))).encode()
        elif operation == _WAIT:
            store.wait(keys, timedelta(milliseconds=number))
        elif operation == _DELETE:
            found = str(int(store.delete_key(keys[0]))).encode()
        else:
            raise ValueError(f"{operation} is no operation of a store")
    except (RuntimeError, ValueError, LookupError, TypeError, struct.error) as error:
        return _FAILED + (in_one_line(str(error)) or type(error).__name__).encode()
    return _OK + found


class StoreClient(Store):
    """A worker's side, as torch's process groups use a store. Raises `OSError`, and `RuntimeError` from the store."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel, self._lock = channel, threading.Lock()
        self._end = weakref.finalize(self, channel.close)

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self._ask(_SET, [key], value=value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Wait for a value, and return it."""
        return self._ask(_GET, [key])

    def add(self, key: str, number: int) -> int:
        """Add to a count; returns what it is then."""
        return int(self._ask(_ADD, [key], number))

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all are there."""
        return self._ask(_CHECK, keys) == b"1"

    def wait(self, keys: Sequence[str], timeout: timedelta = PATIENCE) -> None:
        """Wait until all are there."""
        self._ask(_WAIT, keys, int(timeout.total_seconds() * 1000), seconds=timeout.total_seconds())

    def delete_key(self, key: str) -> bool:
        """Delete a value; returns whether it was there."""
        return self._ask(_DELETE, [key]) == b"1"

    def _ask(
        self, operation: int, keys: Sequence[str], number: int = 0, value: bytes = b"", seconds: float = 0.0
    ) -> bytes:
        named = json.dumps(list(keys)).encode()
        with self._lock:
            self._channel.send(_REQUEST.pack(operation, number, len(named)) + named + value)
            answered = self._channel.receive(seconds + _ANSWER_SECONDS)
        if answered[:1] != _OK:
            raise RuntimeError(answered[1:].decode(errors="replace"))
        return answered[1:]
