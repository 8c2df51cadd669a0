"""Bound pods that their nodes do not start: what the kubelet says in Events is said by the job, and outlives them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from operators import World

from espalier_cli.main import cli
from espalier_operator.kube import start_events

NFS = 'MountVolume.SetUp failed for volume "data" : mount failed: exit status 32: Connection timed out'


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Events be read as soon as a pod waits."""
    monkeypatch.setattr(start_events, "AFTER", 0.0)
    monkeypatch.setattr(start_events, "EVERY", 0.2)


def explained(world: World, job: str) -> str:
    """Return what `espalier explain` says."""
    words = ["explain", job, "-n", world.namespace, "--kubeconfig", str(world.server.kubeconfig)]
    return CliRunner().invoke(cli, words).stdout


def test_a_volume_that_cannot_be_mounted_is_named_while_it_lasts_and_after_the_end(world: World) -> None:
    world.kubelet.add_node("node", 2)
    world.kubelet.hindrance = lambda pod: ("FailedMount", NFS)
    world.operate()
    world.jobs.make("waits")
    world.until_condition("waits", "Running", "False", "VolumeUnavailable")
    assert world.jobs.message("waits", "Running") == f"FailedMount: {NFS}"
    world.until_event("waits", "VolumeUnavailable")
    assert NFS in explained(world, "waits")
    world.jobs.make("ends", preRunningDeadlineSeconds=20)
    world.until_condition("ends", "Failed", "True", "VolumeUnavailable")
    assert NFS in world.jobs.message("ends", "Failed")
    said = [each for each in world.jobs.events("ends") if each["reason"] == "VolumeUnavailable"]
    assert any(NFS in each["message"] for each in said)
    world.until("its pods are gone", lambda: not world.pods("ends"))
    assert NFS in explained(world, "ends")
    world.kubelet.hindrance = lambda pod: None
    world.until_condition("waits", "Running", "True", "Running")
