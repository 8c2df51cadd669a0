"""Objects of a running job that somebody deletes: the operator makes them again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from espalier_core.k8s.errors import Status
from espalier_core.types.reasons import Reason
from espalier_core.types.status import JobPhase, JobStatus, parse_status
from espalier_operator.kube.client import ApiRefusalError
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import Rules
from espalier_operator.policies.fair import FairPolicy
from operator_world.kube_objects import template
from operator_world.kube_operator import KINDS, LiveOperator
from operator_world.kubernetes import Kubernetes

SETTINGS = KubeSettings(persist_seconds=5)
SPEC = {
    "timeBudgetSeconds": 100,
    "minReplicas": 1,
    "maxReplicas": 2,
    "backoffLimit": 3,
    "preemption": {"noticeSeconds": 3, "cooldownSeconds": 2, "minRuntimeSeconds": 2},
    "template": template(),
}


class Life:
    """A cluster with one node, and an operator."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.world, self._runner = Kubernetes(), runner
        self.world.add_node("node", gpus=1)
        self.world.create_job("job", SPEC)
        self.operator = self.next_operator()

    def next_operator(self) -> LiveOperator:
        """Start another operator, by what is in the cluster."""
        return LiveOperator(self.world, FairPolicy(), SETTINGS, Rules(stop_grace_seconds=10), self._runner)

    def live(self, seconds: float) -> None:
        """Let time pass while everybody works."""
        until = self.world.now + seconds
        while self.world.now < until:
            for _ in range(3):
                self.operator.see(*KINDS)
                self.operator.tick()
                self.world.controllers()
                self.world.schedule()
                self.world.kubelets()
            self.world.pass_time(1.0)

    @property
    def status(self) -> JobStatus:
        """The job's."""
        found = parse_status(self.world.jobs["ns/job"])
        assert found is not None
        return found


@pytest.fixture
def life() -> Iterator[Life]:
    with asyncio.Runner() as runner:
        one = Life(runner)
        yield one
        one.operator.close()


@pytest.mark.parametrize("seen", [True, False])
def test_a_report_that_somebody_deletes_is_made_again_for_the_leader_that_runs(life: Life, seen: bool) -> None:
    """Otherwise the operator hears nothing more of it: it is lent nothing, and is ended in its last evaluation."""
    life.live(10)
    assert life.status.phase is JobPhase.RUNNING
    pods = dict(life.world.pods)
    del life.world.config_maps["ns/job-report"]
    if not seen:
        life.operator.close()
        life.operator = life.next_operator()

    life.live(10)

    assert "ns/job-report" in life.world.config_maps
    assert life.world.pods.keys() == pods.keys()
    assert life.status.restarts == 0
    life.world.add_node("more", gpus=1)
    life.live(20)
    assert life.status.scheduling.extra == 1, "it is heard of, so it is lent what is spare"
    calls = life.operator.client.calls
    life.live(0.5)
    assert life.operator.client.calls - calls <= 1, "no more than figures"


def test_an_account_that_somebody_deletes_is_made_again_for_the_next_leader(life: Life) -> None:
    accounts: list[str] = []

    def creating(manifest: Mapping[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "ServiceAccount":
            accounts.append(name)
        if manifest["kind"] == "Pod" and not accounts:
            message = f'pods "{name}" is forbidden: error looking up service account ns/job: not found'
            raise ApiRefusalError(f"create {name}", Status(403, "Forbidden", message))

    life.operator.client.on_create = creating
    life.live(10)
    assert life.status.phase is JobPhase.RUNNING

    accounts.clear()
    life.world.evict("ns/job-base-0-0")
    life.live(40)

    assert accounts
    assert life.status.phase is JobPhase.RUNNING
    assert all(each.reason is not Reason.POD_REJECTED for each in life.status.conditions)
