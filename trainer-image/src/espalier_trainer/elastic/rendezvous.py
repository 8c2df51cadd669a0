"""The rendezvous of the workers: a store in the leader's process, which is not preemptible.

A worker writes a `WorkerArrival` and waits for the `GenerationPlan` that admits it; only the leader makes plans, so
there are never two groups. If the leader dies, its store dies too; workers keep their state and join the next leader.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any, Final, TypeVar

from espalier_core.causes import in_one_line
from espalier_core.files.documents import write_text_atomically
from espalier_core.types import environment
from espalier_trainer.elastic.membership import PROTOCOL, GenerationPlan, RecordError, WorkerArrival
from espalier_trainer.elastic.store import KEY_BYTES, ChannelError, StoreClient, StoreServer, call
from espalier_trainer.errors import TrainerError
from espalier_trainer.process.settings import Rendezvous

logger = logging.getLogger(__name__)

T = TypeVar("T")
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 3.0
"""Seconds without an answer after which a leader counts as away: frozen, or its node is gone. Its successor waits
longer."""
LEAVE_SECONDS: Final = 1.0
"""Seconds that a worker that must leave waits for an answer."""
ASK_SECONDS: Final = (0.001, 0.05)
"""Interval of requests for a plan: first and longest. The first is short, as a generation forms within some ms."""
_FORGET_SECONDS: Final = 10.0
"""Seconds after which a counted but unwritten arrival is forgotten: its worker died in between."""
_LOOPBACK: Final = "127.0.0.1"
_COUNT: Final = "arrivals"
BEAT_SECONDS: Final = 0.5
"""Interval of a waiting worker's messages."""
SILENT_SECONDS: Final = 2.5
"""Seconds of silence after which a worker counts as dead or frozen."""


class RendezvousError(TrainerError):
    """The rendezvous cannot be opened; the message names the setting and the remedy."""


class LeaderAwayError(Exception):
    """The leader's store does not answer."""


def answered(ask: Callable[[], T], stop: Callable[[], bool], seconds: float = ANSWER_SECONDS) -> T:
    """Return the result of `ask`, or raise its error; raise `LeaderAwayError` where that takes too long.

    `ask` runs in a thread, which is then abandoned: the client of a store waits without limit for a leader that is
    frozen or whose node disappeared, and Python handles no signals meanwhile.
    """
    answer: futures.Future[T] = futures.Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    deadline = time.monotonic() + seconds
    while not futures.wait([answer], timeout=0.1).done:
        now = time.monotonic()
        if stop():
            deadline = min(deadline, now + LEAVE_SECONDS)
        if now >= deadline:
            raise LeaderAwayError("it does not answer")
    return answer.result()


class RendezvousServer:
    """The leader's side of the rendezvous: it holds the store, receives arrivals, and answers with plans."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        """Open the store. Raises `RendezvousError`."""
        place = rendezvous.place
        address, port = (_LOOPBACK, 0) if _is_file(place) else _split(place)
        self.key = secrets.token_bytes(KEY_BYTES) if _is_file(place) else _key(rendezvous)
        try:
            # The DNS may not know the pod's own name yet when it starts, so the name is not looked up.
            own = address if _is_address(address) else socket.getaddrinfo(socket.gethostname(), None)[0][4][0]
            family = socket.AF_INET6 if ":" in str(own) else socket.AF_INET
            listener = socket.create_server((str(own), port), family=family)
        except OSError as error:
            raise RendezvousError(f"ESPALIER_RENDEZVOUS is {place!r}, which cannot be listened on: {error}") from error
        self.address, self.port = listener.getsockname()[:2]
        self._server = StoreServer(listener, self.key, rendezvous.attempt)
        self.store: Any = self._server.store
        if _is_file(place):
            write_text_atomically(Path(place), f"{self.address}:{self.port}\n{self.key.hex()}\n", private=True)
        self._heard = 0
        self._pending: dict[int, float] = {}
        self._tickets: dict[str, int] = {}
        self._beats: dict[str, tuple[int, float]] = {}
        """Number of messages of each waiting worker, and the time of the last one."""
        self._felt = 0.0
        self._connected: set[str] = set()
        """Workers that were connected when they last arrived."""

    def listen(self) -> list[WorkerArrival]:
        """Return workers' arrivals and announcements that they leave since the last call."""
        count = self.store.add(_COUNT, 0)
        now = time.monotonic()
        self._pending.update(dict.fromkeys(range(self._heard + 1, count + 1), now))
        self._heard = count
        found = []
        for number, since in list(self._pending.items()):
            key = f"arrival/{number}"
            if not self.store.check([key]):
                if now - since > _FORGET_SECONDS:
                    del self._pending[number]
                continue
            del self._pending[number]
            text = self.store.get(key).decode()
            self.store.delete_key(key)
            try:
                arrival = WorkerArrival.from_json(text)
            except RecordError as error:
                logger.warning("%s", error)
                continue
            if arrival.protocol != PROTOCOL:
                logger.warning("worker %s uses protocol %s, not %s", arrival.worker, arrival.protocol, PROTOCOL)
                continue
            if arrival.leaving:
                self._beats.pop(arrival.worker, None)
            else:
                self._tickets[arrival.worker] = number
                self._beats[arrival.worker] = (0, now)
            if self.store.check([_connected_key(arrival.worker)]):
                self._connected.add(arrival.worker)
            found.append(arrival)
        return found

    def hung_up(self, worker: str) -> bool:
        """Return whether the connection of a worker has ended: its process has, or it looks for another leader."""
        return worker in self._connected and not self.store.check([_connected_key(worker)])

    def silent(self) -> frozenset[str]:
        """Return the workers that no longer wait, although they did not announce that they leave."""
        now = time.monotonic()
        # A leader that was busy for long did not read the messages; the workers were not silent.
        if now - self._felt >= BEAT_SECONDS:
            late = now - self._felt > 2 * BEAT_SECONDS
            self._felt = now
            for worker, (beats, _) in self._beats.items():
                count = int(self.store.add(_beat(self._tickets[worker]), 0))
                if count != beats or late:
                    self._beats[worker] = (count, now)
        return frozenset(
            worker for worker, (_, since) in self._beats.items() if now - since > SILENT_SECONDS or self.hung_up(worker)
        )

    def answer(self, worker: str, plan: GenerationPlan) -> None:
        """Send the plan to a worker that arrived; a plan without the worker dismisses it."""
        ticket = self._tickets.pop(worker)
        self._beats.pop(worker, None)
        self.store.delete_key(_beat(ticket))
        self.store.set(f"plan/{ticket}", plan.to_json())

    def reported(self, worker: str) -> str:
        """Return the last progress report of a worker on its order; '' if there is none."""
        key = _reported(worker)
        return self.store.get(key).decode() if self.store.check([key]) else ""

    def dismiss(self, worker: str) -> None:
        """Cancel a worker's order."""
        self.store.set(_dismissed(worker), "")

    def begin_order(self, worker: str) -> None:
        """Delete the reports and the cancellation of a worker's earlier order."""
        for key in (_reported(worker), _dismissed(worker)):
            self.store.delete_key(key)


class RendezvousClient:
    """A worker's side of the rendezvous."""

    def __init__(self, rendezvous: Rendezvous, stop: Callable[[], bool], least: int = 0) -> None:
        """Connect to the leader's store. Raises `RendezvousError`, and `LeaderAwayError` where it is unreachable.

        `stop` returns whether this worker must leave: then it waits only briefly for answers. A leader of an attempt
        before `least` is not followed.
        """
        self._stop = stop
        self.store: Any
        self.address, self.port, self.key, self.attempt, self.store = self._asked(lambda: _connected(rendezvous, least))
        self._introduced = False

    def arrive(self, arrival: WorkerArrival) -> int:
        """Write an arrival; return the ticket for requesting the plan. Raises `LeaderAwayError`."""
        if not self._introduced:
            self._asked(lambda: self.store.set_while_connected(_connected_key(arrival.worker)))
            self._introduced = True
        # One request each: an abandoned one must not write an arrival later, when there is a newer one.
        number = int(self._asked(lambda: self.store.add(_COUNT, 1)))
        self._asked(lambda: self.store.set(f"arrival/{number}", arrival.to_json()))
        return number

    def plan(self, ticket: int) -> GenerationPlan | None:
        """Wait for the answer to an arrival; None if `stop` returned True first. Raises `LeaderAwayError`."""
        key = f"plan/{ticket}"
        pause, longest = ASK_SECONDS
        beat = time.monotonic()
        # Polled, because waiting in the store handles no signals, and logs the wait.
        while not self._asked(lambda: self.store.check([key])):
            if self._stop():
                return None
            if time.monotonic() - beat >= BEAT_SECONDS:
                beat = time.monotonic()
                self._asked(lambda: self.store.add(_beat(ticket), 1))
            time.sleep(pause)
            pause = min(1.05 * pause, longest)

        def take() -> str:
            text: str = self.store.get(key).decode()
            self.store.delete_key(key)
            self.store.delete_key(_beat(ticket))
            return text

        try:
            return GenerationPlan.from_json(self._asked(take))
        except RecordError as error:
            raise LeaderAwayError(str(error)) from error

    def report_progress(self, worker: str, text: str) -> None:
        """Report the progress of an order. Raises `LeaderAwayError`."""
        self._asked(lambda: self.store.set(_reported(worker), text))

    def dismissed(self, worker: str) -> bool:
        """Return whether the order was cancelled. Raises `LeaderAwayError`."""
        return bool(self._asked(lambda: self.store.check([_dismissed(worker)])))

    def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return answered(ask, self._stop)
        except (OSError, RuntimeError) as error:
            raise LeaderAwayError(in_one_line(str(error))) from error


def _connected(rendezvous: Rendezvous, least: int) -> tuple[str, int, bytes, int, StoreClient]:
    """Return address and port of the leader, the job's key, the leader's attempt, and a client of its store."""
    if _is_file(rendezvous.place):
        found, _, secret = Path(rendezvous.place).read_text(encoding="utf-8").strip().partition("\n")
        try:
            key = bytes.fromhex(secret)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise ChannelError(f"{rendezvous.place} holds no key: its leader is of an older version")
    else:
        found, key = rendezvous.place, _key(rendezvous)
    address, port = _split(found)
    connection = socket.create_connection((address, port), timeout=CONNECT_SECONDS)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel, attempt = call(connection, key, least)
    except BaseException:
        connection.close()
        raise
    return address, port, key, attempt, StoreClient(channel)


def _key(rendezvous: Rendezvous) -> bytes:
    """Read the job's key. Raises `RendezvousError`."""
    name, path = environment.RENDEZVOUS_KEY_FILE, rendezvous.key_file
    if path is None:
        raise RendezvousError(
            f"{name} is not set: the key in this file proves that a worker belongs to the job. An operator of an "
            "older version does not give one: upgrade it, or use the trainer of its version"
        )
    try:
        key = path.read_bytes()
    except OSError as error:
        raise RendezvousError(f"{name}: {path} cannot be read ({error.strerror}); it holds the job's key") from error
    if len(key) < KEY_BYTES:
        raise RendezvousError(f"{name}: {path} has {len(key)} bytes; a key has at least {KEY_BYTES} random ones")
    return key


def _connected_key(worker: str) -> str:
    return f"connected/{worker}"


def _beat(ticket: int) -> str:
    return f"beat/{ticket}"


def _reported(worker: str) -> str:
    return f"reported/{worker}"


def _dismissed(worker: str) -> str:
    return f"dismissed/{worker}"


def _is_file(place: str) -> bool:
    return place.startswith(os.sep)


def _split(place: str) -> tuple[str, int]:
    host, _, port = place.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 65536):
        raise RendezvousError(
            f"ESPALIER_RENDEZVOUS is {place!r}; it must be host:port, or the absolute path of a file that the leader "
            "writes"
        )
    return host.strip("[]"), int(port)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
