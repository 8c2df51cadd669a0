"""Connections on which each side has proved that it holds the job's key, and each message says whose it is.

The worker sends a nonce, the leader answers with its own and a proof, the worker proves the key in turn (HMAC-SHA256
over all that was said before). Keys of the connection follow from both nonces, so nothing recorded is of use later.
Messages are authenticated, numbered and limited in size; they are not encrypted. No pickle is read.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from contextlib import suppress
from typing import Final

KEY_BYTES: Final = 32
HANDSHAKE_SECONDS: Final = 2.0
"""A whole handshake takes some milliseconds; a peer that is slower is dropped, however it divides its bytes."""
MESSAGE_BYTES: Final = 1 << 24
_MAGIC: Final = b"espalier workers 1\n"
_NONCE: Final = 32
_TAG: Final = 32
_HEAD: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">Q")
_SAME: Final = "run the same Espalier in all workers, and delete the leader's pod if it is older"


class ChannelError(ConnectionError):
    """The peer is no worker of this job, or the connection is gone; the message names the remedy."""


class Channel:
    """An authenticated connection. One thread at a time uses it."""

    def __init__(self, connection: socket.socket, key: bytes, transcript: bytes, *, leads: bool) -> None:
        """Use a connection after its handshake, all of which is the `transcript`."""
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
        """Wait for a message, at most `seconds`. Raises `OSError`; `ChannelError` if the peer has not sent it so."""
        deadline = None if seconds is None else time.monotonic() + seconds
        head = _exactly(self._connection, _HEAD.size + _TAG, deadline)
        (size,) = _HEAD.unpack_from(head)
        if size > MESSAGE_BYTES:
            raise ChannelError(f"a message of {size} bytes is announced; {MESSAGE_BYTES} are allowed")
        content = _exactly(self._connection, size, deadline)
        if not hmac.compare_digest(head[_HEAD.size :], _tag(self._in, self._received, content)):
            raise ChannelError("a message is not the peer's")
        self._received += 1
        return content

    def close(self) -> None:
        """Close the connection; whoever waits for a message gets an error."""
        wake(self._connection)
        self._connection.close()


def derived(key: bytes, purpose: bytes) -> bytes:
    """Return the key for one purpose."""
    return hmac.digest(key, purpose, "sha256")


def answer(connection: socket.socket, key: bytes, attempt: int) -> Channel:
    """Let a worker prove that it holds the `key`; the leader's side, of its `attempt`. Raises `OSError`."""
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    hello = b""
    while len(hello) < len(_MAGIC):  # not read as a whole: a worker of before would wait for an answer
        hello += _exactly(connection, 1, deadline)
        if not _MAGIC.startswith(hello):
            raise ChannelError(
                "it does not speak as a worker of this Espalier; where it is one of an older version, run the same "
                "Espalier in all workers"
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
    """Prove to a leader that this worker holds the `key`, once the leader has; returns also the leader's attempt.

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
            "it does not hold the key of this worker: it is no leader of this job, or the job's Secret was made again "
            "since; then delete the leader's pod"
        )
    if attempt < least:
        raise ChannelError(f"it is attempt {attempt} of the leader, which attempt {least} has replaced")
    connection.sendall(derived(key, b"worker" + transcript))
    return Channel(connection, key, transcript, leads=False), attempt


def wake(connection: socket.socket) -> None:
    """End a connection, or a socket that listens: a thread that waits in it gets an error, and closes it."""
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
