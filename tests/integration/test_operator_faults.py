"""An API server that restarts, connections that are cut, and history that is forgotten: nothing is lost for long."""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from apiserver import ApiServer
from operators import World

pytestmark = pytest.mark.slow


class Proxy:
    """A TCP proxy before the API server that can cut its connections, and refuse new ones."""

    def __init__(self, port: int) -> None:
        """Listen on a port of its own."""
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self.refuses = False
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Cut all connections."""
        for each in list(self._open):
            _close(each)

    def close(self) -> None:
        """Cut all connections and take no more."""
        self.refuses = True
        _close(self._listener)
        self.cut()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refuses:
                _close(client)
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            self._open |= {client, server}
            for here, there in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(here, there), daemon=True).start()

    def _pump(self, here: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while data := here.recv(65536):
                there.sendall(data)
        for each in (here, there):
            _close(each)
            self._open.discard(each)


def _close(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@contextmanager
def proxied(server: ApiServer, directory: Path) -> Iterator[tuple[Proxy, Path]]:
    """Give a proxy and a kubeconfig that goes through it."""
    proxy = Proxy(server.port)
    config: Any = json.loads(server.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
    path = directory / "proxied"
    path.write_text(json.dumps(config))
    try:
        yield proxy, path
    finally:
        proxy.close()


def forget_history(server: ApiServer) -> None:
    """Compact etcd and let the API server forget what it kept of it: older versions are answered with 410 Gone."""
    server.stop()
    endpoint = server._etcd_url
    put = subprocess.run(
        ["curl", "-s", "-X", "POST", f"{endpoint}/v3/kv/put", "-d", '{"key": "eA==", "value": "eA=="}'],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    revision = json.loads(put.stdout)["header"]["revision"]
    body = json.dumps({"revision": revision, "physical": True})
    command = ["curl", "-s", "-X", "POST", f"{endpoint}/v3/kv/compaction", "-d", body]
    subprocess.run(command, capture_output=True, check=True, timeout=20)
    server.start()


@pytest.mark.sweep("signals that end a server")
@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_of_the_api_server_disturbs_no_job(world: World, sig: signal.Signals) -> None:
    """What happened meanwhile is seen afterwards, and who runs continues."""
    world.kubelet.add_node("node", 2)
    operator = world.operate()
    world.jobs.make("job")
    world.until_condition("job", "Running", "True", "Running")
    uid = world.pods("job")["job-base-0-0"]["metadata"]["uid"]
    world.server.stop(sig)
    world.server.start()
    world.jobs.make("second")
    world.until_condition("second", "Running", "True", "Running")
    assert world.pods("job")["job-base-0-0"]["metadata"]["uid"] == uid
    assert world.jobs.status("job")["restarts"] == 0
    assert operator.operator.store.listed_at is not None


def test_cut_watches_are_taken_up_again(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also where the server has forgotten the version that they were at, which it says by 410."""
    caplog.set_level(logging.DEBUG, logger="kopf._cogs.clients.watching")
    with proxied(world.server, tmp_path) as (proxy, kubeconfig):
        world.kubelet.add_node("first", 1)
        operator = world.operate(kubeconfig=kubeconfig, resync_seconds=600.0)
        world.jobs.make("job")
        world.until_condition("job", "Running", "True", "Running")
        proxy.cut()
        world.jobs.make("second")
        world.until_condition("second", "Admitted", "False", "NoFreeGPU")
        proxy.refuses = True
        proxy.cut()
        world.kubelet.add_node("second", 1)
        forget_history(world.server)
        world.kubelet.add_node("third", 1)
        proxy.refuses = False
        world.until_condition("second", "Running", "True", "Running")
        world.jobs.make("third")
        world.until_condition("third", "Running", "True", "Running")
        assert any("Restarting the watch-stream for nodes" in line for line in caplog.messages), "kopf met 410"
        assert operator.client.requests["list", "nodes", 200] == 1, "kopf's watches told it, not a list"
        operator.stop()


def test_the_operator_waits_for_a_crd_that_is_missing(world: World) -> None:
    """Taken away and put back it is served again, without a restart of the operator."""
    world.kubelet.add_node("node", 1)
    world.operate(resync_seconds=1.0)
    world.jobs.make("job")
    world.until_condition("job", "Running", "True", "Running")
    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/adaptivetrainingjobs.espalier.dev"
    world.server.request("DELETE", definition)
    world.until("it is gone", lambda: world.server.api.get(definition).status_code == 404)
    world.until("its kind is served no more", lambda: world.server.api.get(world.jobs.path).status_code == 404)
    world.server.install(Path(__file__).parents[2] / "crds")
    world.jobs.make("another")
    world.until_condition("another", "Running", "True", "Running")
