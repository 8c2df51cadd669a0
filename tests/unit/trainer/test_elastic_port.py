"""The leader's port: who does not hold the job's key takes no part, and costs training nothing."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import stat
import struct
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

from espalier_core.types import environment
from espalier_trainer.elastic import store as channel
from espalier_trainer.elastic.group import Group, GroupBrokenError
from espalier_trainer.elastic.membership import WorkerArrival
from espalier_trainer.elastic.rendezvous import LeaderAwayError, RendezvousClient, RendezvousError, RendezvousServer
from espalier_trainer.elastic.states import Code, Command
from espalier_trainer.elastic.store import KEY_BYTES, MOST_UNAUTHENTICATED, Channel, ChannelError, StoreClient, call
from espalier_trainer.process.settings import Rendezvous, TrainerSettings
from groups import together
from ports import free_port
from waiting import PATIENCE, until

KEY = bytes(range(KEY_BYTES))
STRANGE: dict[str, bytes] = {
    "nothing": b"",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "zeros": bytes(4096),
    "a huge length": b"\xff" * 64,
    "the beginning of a handshake": b"espalier workers 1\n",
    "a handshake without a proof": b"espalier workers 1\n" + bytes(32) + bytes(32),
}


def never() -> bool:
    return False


class Leader:
    """A rendezvous at an address of loopback, as on a cluster."""

    def __init__(self, folder: Path, attempt: int = 0, port: int | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.key_file = folder / "key"
        self.key_file.write_bytes(KEY)
        self.place = f"127.0.0.1:{free_port() if port is None else port}"
        self.server = RendezvousServer(Rendezvous(self.place, self.key_file, attempt))

    @property
    def address(self) -> tuple[str, int]:
        return self.server.address, self.server.port

    def worker(self, least: int = 0) -> RendezvousClient:
        return RendezvousClient(Rendezvous(self.place, self.key_file), never, least)

    def close(self) -> None:
        self.server._server.close()


@pytest.fixture
def leader(tmp_path):
    made = Leader(tmp_path / "leader")
    yield made
    made.close()


def admits(leader: Leader, name: str = "one") -> bool:
    """Return whether a worker of the job still reaches the leader."""
    worker = leader.worker()
    worker.arrive(WorkerArrival(name, base=False, index=0))
    return [each.worker for each in leader.server.listen()] == [name]


def hangs_up(connection: socket.socket) -> bool:
    """Return whether the other side ends the connection, in time."""
    connection.settimeout(PATIENCE)
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


# ---- who is let in


def test_a_worker_that_holds_the_key_is_admitted(leader):
    assert admits(leader)
    assert leader.worker().store.add("count", 2) == 2
    assert leader.server.store.add("count", 0) == 2


def test_a_worker_whose_connection_ends_has_hung_up_unless_it_has_another(leader):
    first, second, other = leader.worker(), leader.worker(), leader.worker()
    for client, name in ((first, "one"), (second, "one"), (other, "two")):
        client.arrive(WorkerArrival(name, base=False, index=0))
    assert len(leader.server.listen()) == 3
    first.store._channel.close()
    other.store._channel.close()
    until(lambda: leader.server.hung_up("two"))
    assert not leader.server.hung_up("one")
    second.store._channel.close()
    until(lambda: leader.server.hung_up("one"))
    assert not leader.server.hung_up("nobody")


@pytest.mark.parametrize("sent", STRANGE.values(), ids=STRANGE)
def test_whoever_sends_something_else_is_refused_and_nobody_waits_for_him(leader, sent):
    with socket.create_connection(leader.address) as stranger:
        stranger.sendall(sent)
        assert admits(leader)
        assert hangs_up(stranger)
    assert admits(leader, "two")


def test_bytes_that_drip_do_not_extend_the_handshake(leader, monkeypatch):
    monkeypatch.setattr(channel, "HANDSHAKE_SECONDS", 0.5)
    refused = threading.Event()
    with socket.create_connection(leader.address) as stranger:

        def drip() -> None:
            for each in b"espalier workers 1\n" + bytes(1 << 20):
                try:
                    stranger.sendall(bytes([each]))
                except OSError:
                    return
                if refused.wait(0.05):
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        assert hangs_up(stranger)
        refused.set()
        dripping.join(PATIENCE)


def test_many_silent_connections_do_not_keep_a_worker_out(leader):
    silent = [socket.create_connection(leader.address) for _ in range(3 * MOST_UNAUTHENTICATED)]
    try:
        assert admits(leader)
        assert len([each for each in threading.enumerate() if each.name == "worker"]) <= 4 * MOST_UNAUTHENTICATED
        assert all(hangs_up(each) for each in silent[: 2 * MOST_UNAUTHENTICATED - 1])
    finally:
        for each in silent:
            each.close()


def test_another_key_is_refused_by_both_sides(leader, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(hashlib.sha256(KEY).digest())
    with pytest.raises(LeaderAwayError, match="does not hold the key of this worker"):
        RendezvousClient(Rendezvous(leader.place, other), never)

    # One that does not care whether the leader holds its key is refused by the leader.
    with socket.create_connection(leader.address) as stranger:
        stranger.sendall(b"espalier workers 1\n" + bytes(32))
        hello = channel._exactly(stranger, len(b"espalier workers 1\n") + 8 + 32 + 32, time.monotonic() + PATIENCE)
        stranger.sendall(hello[-32:])  # the leader's own proof
        assert hangs_up(stranger)
    assert admits(leader)


def test_a_handshake_that_was_recorded_is_of_no_use(leader):
    recorded: list[bytes] = []

    class Recorded:
        def __init__(self, real: socket.socket) -> None:
            self.real = real

        def sendall(self, content: bytes) -> None:
            recorded.append(content)
            self.real.sendall(content)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    with socket.create_connection(leader.address) as real:
        made, _ = call(Recorded(real), KEY)
        StoreClient(made).set("admitted", "yes")
    assert len(recorded) == 3
    with socket.create_connection(leader.address) as again:
        for content in recorded:
            again.sendall(content)
        assert hangs_up(again)


def test_a_leader_that_was_replaced_is_not_followed(tmp_path):
    """Its node was cut off, and it does not know; the key of each attempt is another one, too."""
    first, second = Leader(tmp_path / "0", 3), Leader(tmp_path / "1", 4)
    assert second.worker().attempt == 4
    with pytest.raises(LeaderAwayError, match="attempt 3 of the leader, which attempt 4 has replaced"):
        first.worker(least=4)
    assert second.worker(least=3).attempt == 4
    first.close()
    second.close()


def test_refusals_are_told_once(leader, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            with socket.create_connection(leader.address) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert hangs_up(stranger)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "run the same Espalier in all workers" in caplog.text
    assert KEY.hex() not in caplog.text


# ---- versions before this one


def test_a_worker_of_an_older_version_learns_that_it_is_refused(leader, caplog):
    with caplog.at_level(logging.WARNING), pytest.raises(Exception, match=r"."):
        TCPStore(*leader.address, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=2))
    until(lambda: "of an older version, run the same Espalier in all workers" in caplog.text)
    assert admits(leader)


def test_a_leader_of_an_older_version_is_named(tmp_path):
    older = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    key = tmp_path / "key"
    key.write_bytes(KEY)
    with pytest.raises(LeaderAwayError, match="not answer as a leader of this Espalier.*delete the leader's pod"):
        RendezvousClient(Rendezvous(f"127.0.0.1:{older.port}", key), never)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read"), (b"", "has 0 bytes"), (bytes(31), "has 31 bytes")]
)
def test_without_a_key_no_port_is_opened(tmp_path, content, message):
    key = tmp_path / "key"
    if content is not None:
        key.write_bytes(content)
    with pytest.raises(RendezvousError, match=rf"ESPALIER_RENDEZVOUS_KEY_FILE: .*{message}"):
        RendezvousServer(Rendezvous(f"127.0.0.1:{free_port()}", key))
    with pytest.raises(RendezvousError, match="ESPALIER_RENDEZVOUS_KEY_FILE is not set.*upgrade it"):
        RendezvousServer(Rendezvous(f"127.0.0.1:{free_port()}"))
    with pytest.raises(RendezvousError, match="ESPALIER_RENDEZVOUS_KEY_FILE is not set"):
        RendezvousClient(Rendezvous(f"127.0.0.1:{free_port()}"), never)


@pytest.mark.parametrize("place", [":29500", "leader", "leader:", "leader:http", "leader:-1", "leader:65536"])
def test_a_place_that_cannot_be_is_refused(place):
    with pytest.raises(RendezvousError, match="must be host:port, or the absolute path of a file"):
        RendezvousServer(Rendezvous(place))


def test_the_environment_names_the_key():
    variables = {
        environment.JOB_FILE: "job.json",
        environment.RENDEZVOUS: "leader:29400",
        environment.RENDEZVOUS_KEY_FILE: "/key",
        environment.ATTEMPT: "2",
    }
    assert TrainerSettings.from_environment(variables).rendezvous == Rendezvous("leader:29400", Path("/key"), 2)


# ---- on one machine


def test_on_one_machine_the_leader_makes_a_key_that_only_its_user_reads(tmp_path):
    place = Rendezvous(str(tmp_path / "rendezvous"))
    keys = set()
    for _ in range(2):
        server = RendezvousServer(place)
        assert stat.S_IMODE(os.stat(place.place).st_mode) == 0o600
        assert RendezvousClient(place, never).key == server.key
        keys.add(server.key)
        server._server.close()
    assert len(keys) == 2


@pytest.mark.parametrize("secret", ["", "00ff", "no key"])
def test_a_file_without_a_key_is_of_an_older_leader(leader, tmp_path, secret):
    place = tmp_path / "rendezvous"
    place.write_text(f"{leader.place}\n{secret}\n")
    with pytest.raises(LeaderAwayError, match="its leader is of an older version"):
        RendezvousClient(Rendezvous(str(place)), never)


# ---- what follows the handshake


def pair(leads: bool) -> tuple[Channel, socket.socket]:
    one, other = socket.socketpair()
    return Channel(one, KEY, b"said", leads=leads), other


def test_messages_are_authentic_in_order_and_limited():
    one, other = socket.socketpair()
    leader, worker = Channel(one, KEY, b"said", leads=True), Channel(other, KEY, b"said", leads=False)
    for content in (b"", b"first", bytes(1 << 18)):
        sending = threading.Thread(target=worker.send, args=(content,))
        sending.start()
        assert leader.receive(PATIENCE) == content
        sending.join()
    leader.close()
    worker.close()


@pytest.mark.parametrize("what", ["changed", "repeated", "reflected", "of another connection", "huge"])
def test_a_message_that_is_not_the_peers_ends_the_connection(what):
    reader, wire = pair(leads=True)
    speaker, heard = pair(leads=what == "reflected")
    if what == "of another connection":
        speaker = Channel(speaker._connection, KEY, b"said otherwise", leads=False)
    speaker.send(b"set a")
    frame = heard.recv(1 << 12)
    if what == "changed":
        frame = frame[:-1] + b"b"
    elif what == "repeated":
        frame += frame
    elif what == "huge":
        frame = struct.pack(">I", 1 << 31) + frame[4:]
    wire.sendall(frame)
    if what == "repeated":
        assert reader.receive(PATIENCE) == b"set a"
    with pytest.raises(ChannelError):
        reader.receive(PATIENCE)
    for each in (reader, speaker, wire, heard):
        each.close()


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\xff" * 13,
        struct.pack(">BqI", 0, 0, 99),
        struct.pack(">BqI", 9, 0, 2) + b"[]",
        struct.pack(">BqI", 1, 0, 2) + b"[]",
    ],
)
def test_a_request_that_cannot_be_read_is_answered_with_an_error(leader, request_):
    with socket.create_connection(leader.address) as real:
        made, _ = call(real, KEY)
        made.send(request_)
        assert made.receive(PATIENCE)[:1] == b"\1"
        made.send(struct.pack(">BqI", 3, 0, 5) + json.dumps(["a"]).encode())
        assert made.receive(PATIENCE) == b"\x000"


def test_the_store_serves_a_process_group(leader):
    """Torch asks it as any store."""
    own = leader.worker().store
    own.set("a", b"\x00\xff")
    assert own.get("a") == b"\x00\xff"
    assert leader.server.store.get("a") == b"\x00\xff"
    assert [own.check(["a"]), own.check(["a", "b"])] == [True, False]
    assert [own.delete_key("a"), own.delete_key("a")] == [True, False]
    with pytest.raises(RuntimeError):
        own.wait(["b"], timedelta(milliseconds=20))
    until(lambda: leader.server.store.set("b", "1") is None)
    own.wait(["b"], timedelta(seconds=PATIENCE))


def test_a_leader_that_is_dropped_closes_its_port(tmp_path):
    made = Leader(tmp_path)
    worker, address = made.worker(), made.address
    del made.server
    with pytest.raises(ConnectionError):
        worker.store.add("count", 1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=PATIENCE)


# ---- commands


def _with_another_key(group: Group) -> None:
    """Whoever has taken a connection of the group over has no key of the generation."""
    group._key = b"another"


def _the_same_bytes_again(group: Group) -> None:
    group._documents = 0


@pytest.mark.parametrize("forged", [_with_another_key, _the_same_bytes_again])
def test_a_command_that_is_not_the_leaders_or_of_before_breaks_the_generation(forged):
    def act(group: Group) -> str:
        if group.rank == 0:
            Command(Code.WAIT, epoch=3).send(group)
            forged(group)
            Command(Code.WAIT, epoch=3).send(group)
            return ""
        assert Command.receive(group) == Command(Code.WAIT, epoch=3)
        with pytest.raises(GroupBrokenError, match="not that of member 0"):
            Command.receive(group)
        return "refused"

    assert together(2, act) == ["", "refused"]


def test_documents_of_any_size_reach_all_members():
    content = bytes(range(256)) * 1000

    def act(group: Group) -> list[bytes]:
        return [group.broadcast_document(each if group.rank == 1 else None, 1) for each in (b"", content)]

    assert together(3, act) == [[b"", content]] * 3
