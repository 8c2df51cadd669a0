"""An API server that restarts, connections that are cut, and history that is forgotten: nothing is lost for long."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
from pathlib import Path

import pytest
from apiserver import ApiServer
from operators import World
from relay import Relay

pytestmark = pytest.mark.slow


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
    with Relay(world.server.port) as relay:
        world.kubelet.add_node("first", 1)
        operator = world.operate(kubeconfig=relay.kubeconfig(world.server, tmp_path), resync_seconds=600.0)
        world.jobs.make("job")
        world.until_condition("job", "Running", "True", "Running")
        relay.cut()
        world.jobs.make("second")
        world.until_condition("second", "Admitted", "False", "NoFreeGPU")
        relay.refuse()
        world.kubelet.add_node("second", 1)
        forget_history(world.server)
        world.kubelet.add_node("third", 1)
        relay.accept()
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
