"""The leader's store, which only workers of its job can reach: torch's `Store`, over authenticated connections.

torch's own TCPStore answers any client of its port. Here each side of a connection proves that it holds the job's key,
and each message proves its sender. The worker sends a nonce, the leader answers with its own and a proof, the worker
proves the key in turn (HMAC-SHA256 over the whole handshake so far). Keys of the connection follow from both nonces, so
a recorded connection cannot be replayed. Messages are authenticated, numbered and limited in size; they are not
encrypted. No pickle is read.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from torch._C._distributed_c10d import HashStore, Store

from espalier_core.causes import in_one_line

logger = logging.getLogger(__name__)


KEY_BYTES: Final = 32
HANDSHAKE_SECONDS: Final = 2.0
"""Seconds of a whole handshake, which takes some ms; a slower peer is dropped, however it divides its bytes."""
MESSAGE_BYTES: Final = 1 << 24
_MAGIC: Final = b"espalier workers 1\n"
_NONCE: Final = 32
_TAG: Final = 32
_HEAD: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">Q")
_SAME: Final = "run the same Espalier in all workers, and delete the leader's pod if it is older"


class ChannelError(ConnectionError):
    """The peer is not a worker of this job, or the connection is gone; the message names the remedy."""


class Channel:
    """An authenticated connection. One thread at a time uses it."""

    def __init__(self, connection: socket.socket, key: bytes, transcript: bytes, *, leads: bool) -> None:
        """Use a connection after its handshake; `transcript` is all of the handshake."""
        self._connection = connection
        keys = [derived(key, name + transcript) for name in (b"to the leader", b"to the worker")]
        self._in, self._out = keys if leads else reversed(keys)
        self._received = self._sent = 0

    def send(self, content: bytes) -> None:
        """Send a message. Raises `OSError`."""
        tag = _tag(self._out, self._sent, content)
        self._sent += 1
        self._connection.sendall(_HEAD.pack(len(content)) + tag + content)

    def receive(self, seconds: float | None = None) -> bytes:
        """Wait for a message, at most `seconds`. Raises `OSError`, and `ChannelError` for a forged message."""
        deadline = None if seconds is None else time.monotonic() + seconds
        head = _exactly(self._connection, _HEAD.size + _TAG, deadline)
        (size,) = _HEAD.unpack_from(head)
        if size > MESSAGE_BYTES:
            raise ChannelError(f"a message of {size} bytes is announced; at most {MESSAGE_BYTES} are allowed")
        content = _exactly(self._connection, size, deadline)
        if not hmac.compare_digest(head[_HEAD.size :], _tag(self._in, self._received, content)):
            raise ChannelError("a message is not the peer's")
        self._received += 1
        return content

    def close(self) -> None:
        """Close the connection; a thread waiting for a message gets an error."""
        wake(self._connection)
        self._connection.close()


def derived(key: bytes, purpose: bytes) -> bytes:
    """Return the key for one purpose."""
    return hmac.digest(key, purpose, "sha256")


def answer(connection: socket.socket, key: bytes, attempt: int) -> Channel:
    """Check that a worker holds the `key`, on the side of the leader of this `attempt`. Raises `OSError`."""
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    hello = b""
    while len(hello) < len(_MAGIC):  # byte by byte: an older worker sends less, and waits
        hello += _exactly(connection, 1, deadline)
        if not _MAGIC.startswith(hello):
            raise ChannelError(
                "it does not use the protocol of this Espalier's workers; if it is one of an older version, run the "
                "same Espalier in all workers"
            )
    own = _MAGIC + _NUMBER.pack(attempt) + secrets.token_bytes(_NONCE)
    transcript = hello + _exactly(connection, _NONCE, deadline) + own
    key = _of_attempt(key, attempt)
    connection.sendall(own + derived(key, b"leader" + transcript))
    if not hmac.compare_digest(_exactly(connection, _TAG, deadline), derived(key, b"worker" + transcript)):
        raise ChannelError("it does not hold the key of this job")
    connection.settimeout(None)
    return Channel(connection, key, transcript, leads=True)


def call(connection: socket.socket, key: bytes, least: int = 0) -> tuple[Channel, int]:
    """Prove to a leader that this worker holds the `key`, after the leader has; return also the leader's attempt.

    Raises `OSError`, and `ChannelError` for another peer or a leader of an attempt before `least`.
    """
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    connection.settimeout(HANDSHAKE_SECONDS)
    hello = _MAGIC + secrets.token_bytes(_NONCE)
    connection.sendall(hello)
    try:
        answered = _exactly(connection, len(_MAGIC) + _NUMBER.size + _NONCE, deadline)
    except OSError as error:
        raise ChannelError(f"it does not answer as a leader of this Espalier ({error}): {_SAME}") from error
    if not answered.startswith(_MAGIC):
        raise ChannelError(f"it does not answer as a leader of this Espalier: {_SAME}")
    (attempt,) = _NUMBER.unpack_from(answered, len(_MAGIC))
    transcript = hello + answered
    key = _of_attempt(key, attempt)
    if not hmac.compare_digest(_exactly(connection, _TAG, deadline), derived(key, b"leader" + transcript)):
        raise ChannelError(
            "it does not hold the key of this worker: it does not lead this job, or the job's Secret was recreated "
            "since; then delete the leader's pod"
        )
    if attempt < least:
        raise ChannelError(f"it is attempt {attempt} of the leader, which attempt {least} has replaced")
    connection.sendall(derived(key, b"worker" + transcript))
    return Channel(connection, key, transcript, leads=False), attempt


def wake(connection: socket.socket) -> None:
    """End a connection, or a listening socket: a thread that waits in it gets an error, and closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _of_attempt(key: bytes, attempt: int) -> bytes:
    return derived(key, b"attempt" + _NUMBER.pack(attempt))


def _tag(key: bytes, number: int, content: bytes) -> bytes:
    return hmac.digest(key, _NUMBER.pack(number) + content, "sha256")


def _exactly(connection: socket.socket, size: int, deadline: float | None) -> bytes:
    """Return the next bytes; memory grows as they arrive. Raises `OSError`, `ChannelError` where the peer hangs up."""
    found = bytearray()
    while len(found) < size:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError("it is silent")
        connection.settimeout(left)
        piece = connection.recv(min(size - len(found), 1 << 16))
        if not piece:
            raise ChannelError("it hung up")
        found += piece
    return bytes(found)


MOST_UNAUTHENTICATED: Final = 32
"""Maximum number of connections before they have proved to be of the job; one more drops the oldest."""
PATIENCE: Final = timedelta(seconds=5)
"""Default time for which a store waits for a missing key."""
_ANSWER_SECONDS: Final = 10.0
_REQUEST: Final = struct.Struct(">BqI")
"""Format of a request: operation, number, bytes of the keys (JSON); then the keys, then a value."""
_SET, _GET, _ADD, _CHECK, _WAIT, _DELETE, _SET_WHILE_CONNECTED = range(7)
_OK: Final = b"\0"
_FAILED: Final = b"\1"


class StoreServer:
    """Serves `store`, which the leader uses directly, to the job's workers; ends when it is dropped or closed."""

    def __init__(self, listener: socket.socket, key: bytes, attempt: int) -> None:
        """Begin to accept connections at `listener`."""
        self.store: Any = HashStore()
        self.store.set_timeout(PATIENCE)
        acceptor = _Acceptor(listener, key, attempt, self.store)
        self.close = weakref.finalize(self, acceptor.close)
        threading.Thread(target=acceptor.run, name="rendezvous", daemon=True).start()


class _Acceptor:
    """Accepts connections, each in a thread of its own. A failure ends one connection, never the leader."""

    def __init__(self, listener: socket.socket, key: bytes, attempt: int, store: Any) -> None:
        self._listener, self._key, self._attempt, self._store = listener, key, attempt, store
        self._lock = threading.Lock()
        self._unauthenticated: dict[socket.socket, None] = {}
        self._authenticated: set[socket.socket] = set()
        self._kept_by: dict[str, socket.socket] = {}
        """Connections with which keys go."""
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
                self._unauthenticated[connection] = None
                if len(self._unauthenticated) > MOST_UNAUTHENTICATED:
                    oldest = next(iter(self._unauthenticated))
                    del self._unauthenticated[oldest]
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
            open_ones = [*self._unauthenticated, *self._authenticated]
        for each in (self._listener, *open_ones):
            wake(each)

    def _serve(self, connection: socket.socket, peer: str) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # its node may disappear
            channel = answer(connection, self._key, self._attempt)
            with self._lock:
                self._unauthenticated.pop(connection, None)
                self._authenticated.add(connection)
        except OSError as error:
            self._refused(peer, error)
            self._forget(connection)
            return
        try:
            while True:
                answered, kept = _answered(self._store, channel.receive())
                if kept is not None:
                    with self._lock:
                        self._kept_by[kept] = connection
                channel.send(answered)
        except OSError as error:
            logger.debug("the connection of a worker at %s is over: %s", peer, error)
        finally:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._unauthenticated.pop(connection, None)
            self._authenticated.discard(connection)
            for key in [key for key, keeper in self._kept_by.items() if keeper is connection]:
                del self._kept_by[key]
                self._store.delete_key(key)
        connection.close()

    def _refused(self, peer: str, error: Exception) -> None:
        why = str(error)
        with self._lock:
            level = logging.DEBUG if why in self._said or self._closed else logging.WARNING
            self._said.add(why)
        logger.log(level, "refused a connection from %s: %s (logged once)", peer, why)


def _answered(store: Any, request: bytes) -> tuple[bytes, str | None]:
    """Carry out a request; return the answer, and the key that goes with the connection, if it wrote one."""
    kept = None
    try:
        operation, number, size = _REQUEST.unpack_from(request)
        keys = json.loads(request[_REQUEST.size : _REQUEST.size + size])
        value = request[_REQUEST.size + size :]
        found = b""
        if operation in (_SET, _SET_WHILE_CONNECTED):
            store.set(keys[0], value)
            kept = keys[0] if operation == _SET_WHILE_CONNECTED else None
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
            raise ValueError(f"{operation} is not an operation of a store")
    except (RuntimeError, ValueError, LookupError, TypeError, struct.error) as error:
        return _FAILED + (in_one_line(str(error)) or type(error).__name__).encode(), None
    return _OK + found, kept


class StoreClient(Store):
    """A worker's side, in the form torch's process groups use. Raises `OSError`, and the store's `RuntimeError`."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel, self._lock = channel, threading.Lock()
        self._end = weakref.finalize(self, channel.close)

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self._ask(_SET, [key], value=value.encode() if isinstance(value, str) else bytes(value))

    def set_while_connected(self, key: str) -> None:
        """Write a key without a value, which the leader deletes when this connection ends."""
        self._ask(_SET_WHILE_CONNECTED, [key])

    def get(self, key: str) -> bytes:
        """Wait for a value, and return it."""
        return self._ask(_GET, [key])

    def add(self, key: str, number: int) -> int:
        """Add to a count; return the result."""
        return int(self._ask(_ADD, [key], number))

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist."""
        return self._ask(_CHECK, keys) == b"1"

    def wait(self, keys: Sequence[str], timeout: timedelta = PATIENCE) -> None:
        """Wait until all keys exist."""
        self._ask(_WAIT, keys, int(timeout.total_seconds() * 1000), seconds=timeout.total_seconds())

    def delete_key(self, key: str) -> bool:
        """Delete a value; return whether it existed."""
        return self._ask(_DELETE, [key]) == b"1"

    def _ask(
        self, operation: int, keys: Sequence[str], number: int = 0, value: bytes = b"", seconds: float = 0.0
    ) -> bytes:
        named = json.dumps(list(keys)).encode()
        with self._lock:
            try:
                self._channel.send(_REQUEST.pack(operation, number, len(named)) + named + value)
                answered = self._channel.receive(seconds + _ANSWER_SECONDS)
            except OSError:
                self._channel.close()  # a later answer would be taken for that of another request
                raise
        if answered[:1] != _OK:
            raise RuntimeError(answered[1:].decode(errors="replace"))
        return answered[1:]
