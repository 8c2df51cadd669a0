"""Operators as processes: one acts, the others wait; the Lease goes from hand to hand."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import time
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from operator_process import OperatorProcess
from operators import World

from espalier_operator.kube.client import api_access
from espalier_operator.kube.process import lease as lease_module
from espalier_operator.kube.process.lease import Lease
from espalier_operator.model import Snapshot
from espalier_operator.model.actions import Admit
from espalier_operator.planner import plan
from espalier_operator.policies.memory import PolicyMemory
from espalier_operator.policies.settings import configured
from waiting import PATIENCE

pytestmark = pytest.mark.slow

HOLDS = "holding the lease"
LEASE_SECONDS = 15
"""An operator that cannot renew its lease for most of it ends: a busy machine may hold one up for seconds."""
FOREVER = "--lease-seconds=600"
"""No test waits until such a lease runs out: who gets it was given it."""


def lease_of(world: World) -> dict[str, Any]:
    """Return the operators' Lease."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{world.namespace}/leases"
    (lease,) = world.server.request("GET", path)["items"]
    found: dict[str, Any] = lease
    return found


def recent_use(world: World) -> float:
    """Return what the last operator counted for the namespace of the jobs, in GPUs."""
    use: float = json.loads(lease_of(world)["metadata"]["annotations"]["espalier.dev/recent-use"])["gpus"][
        f"namespace {world.namespace}"
    ]
    return use


def remembered(world: World) -> list[str]:
    """Return the jobs in the first queue of `las`, as the note in the Lease has them."""
    text: str = lease_of(world)["metadata"]["annotations"]["espalier.dev/policy-memory"]
    names: list[str] = [key.partition("/")[2] for key in PolicyMemory("las", text).memory["queues"][0]]
    return names


def remember(world: World, queue: list[str]) -> None:
    """Let the note say that jobs came into the first queue in this order: no operator could see that by itself."""
    memory = PolicyMemory("las")
    memory.keep({"queues": [[f"{world.namespace}/{name}" for name in queue]]})
    path = f"/apis/coordination.k8s.io/v1/namespaces/{world.namespace}/leases/{lease_of(world)['metadata']['name']}"
    world.server.request("PATCH", path, {"metadata": {"annotations": {"espalier.dev/policy-memory": memory.to_text()}}})


def answered(process: OperatorProcess, path: str) -> str:
    """Return what a process answers with 200, nothing where it does not, or not in time: the machine may be busy."""
    answer = process.ask(path)
    return answer.text if answer is not None and answer.status_code == 200 else ""


def test_one_operator_acts_and_hands_over(world: World, tmp_path: Path) -> None:
    """Asked to end it hands over at once; killed it is missed when its lease runs out; cut off it stops by itself."""
    world.kubelet.add_node("node", 3)

    def started(name: str, lease: str = f"--lease-seconds={LEASE_SECONDS}") -> OperatorProcess:
        audit = f"--audit-dir={tmp_path / name}-audit"
        options = (lease, audit, "--log-format=json", "--policy=las")
        options += (f"--fair-share-half-life-seconds={LEASE_SECONDS}",)
        process = OperatorProcess(world.server, tmp_path, name, *options, namespace=world.namespace)
        return stack.enter_context(process)

    with ExitStack() as stack:
        first = started("first", FOREVER)
        world.until("the first holds the lease", lambda: first.says(HOLDS))
        second = started("second")
        world.jobs.make("job-1")
        world.until_condition("job-1", "Running", "True", "Running")
        world.until("the second waits", lambda: "waiting for first_" in answered(second, "/healthz"))
        for each in (first, second):
            world.until("one acts, the other could", lambda process=each: answered(process, "/readyz"))
        assert HOLDS not in second.log.read_text()
        waiting = world.until("it answers", lambda: second.ask("/snapshot", private=True))
        assert (waiting.status_code, "first_" in waiting.text) == (503, True)

        def admitted_by_first() -> list[str]:
            seen = first.ask("/snapshot", private=True)
            jobs = () if seen is None else Snapshot.from_json(seen.text).jobs
            return [job.key for job in jobs if job.admitted_at is not None]

        world.until("its use counts", lambda: admitted_by_first() == [f"{world.namespace}/job-1"])
        public = world.until("it answers", lambda: first.ask("/snapshot"))
        assert public.status_code == 404, "the public address does not give it"

        assert first.end(signal.SIGTERM) == 0
        decisions = [
            json.loads(line) for line in (tmp_path / "first-audit" / "decisions.jsonl").read_text().splitlines()
        ]
        (admitted,) = (line for line in decisions if any(entry["action"] == "Admit" for entry in line["actions"]))
        snapshot = gzip.decompress((tmp_path / "first-audit" / admitted["snapshot"]).read_bytes()).decode()
        again = plan(Snapshot.from_json(snapshot), configured("las"), admitted["at"])
        assert Admit(job=f"{world.namespace}/job-1", gpu_type="") in again.actions, "its log tells why"
        world.until("the second was given the lease", lambda: second.says(HOLDS))
        used = recent_use(world)
        assert used > 0, "the first left a note of what it counted when it released the lease"
        assert remembered(world) == ["job-1"], "and of what its policy remembers"
        world.jobs.make("job-2")
        world.until_condition("job-2", "Running", "True", "Running")

        third, idle = started("third"), started("idle")
        for each in (third, idle):
            world.until("it waits", lambda process=each: answered(process, "/healthz"))
        assert idle.end(signal.SIGTERM) == 0, "one that waits ends as it is asked to"
        assert second.end(signal.SIGKILL) == -signal.SIGKILL
        remember(world, ["job-2", "job-1"])
        renewed = datetime.fromisoformat(lease_of(world)["spec"]["renewTime"])
        world.until("the third holds the lease", lambda: third.says(HOLDS))
        ran_out = renewed + timedelta(seconds=LEASE_SECONDS)
        assert datetime.fromisoformat(lease_of(world)["spec"]["acquireTime"]) >= ran_out, "it waited for that"
        world.jobs.make("job-3")
        world.until_condition("job-3", "Running", "True", "Running")
        for name in ("job-1", "job-2"):
            assert world.jobs.status(name)["restarts"] == 0

        assert recent_use(world) >= used, "those that followed counted on"
        last = world.until("it answers", lambda: third.ask("/snapshot", private=True))
        queues = Snapshot.from_json(last.text).policy_memory["queues"]
        assert queues[0] == [f"{world.namespace}/job-{number}" for number in (2, 1, 3)], "and went on by the note"
        world.server.stop()
        assert third.process.wait(PATIENCE) == 3
        assert "the lease could not be renewed in time" in third.log.read_text()
        world.server.start()


def test_an_operator_that_was_frozen_writes_nothing(world: World, tmp_path: Path) -> None:
    """Its successor acts meanwhile; woken, it finds that its lease has run out before it sends anything."""
    world.kubelet.add_node("node", 3)
    lease = f"--lease-seconds={LEASE_SECONDS}"
    with ExitStack() as stack:

        def started(name: str) -> OperatorProcess:
            return stack.enter_context(OperatorProcess(world.server, tmp_path, name, lease, namespace=world.namespace))

        first = started("first")
        world.until("the first holds the lease", lambda: first.says(HOLDS))
        world.jobs.make("job-1")
        world.until_condition("job-1", "Running", "True", "Running")
        first.process.send_signal(signal.SIGSTOP)
        second = started("second")
        world.until("the second takes the lease", lambda: second.says(HOLDS))
        world.jobs.make("job-2")
        world.until_condition("job-2", "Running", "True", "Running")
        first.process.send_signal(signal.SIGCONT)
        assert first.process.wait(PATIENCE) == 3
        world.jobs.make("job-3")
        world.until_condition("job-3", "Running", "True", "Running")
        assert "was changed by somebody else" not in second.log.read_text()


def test_a_clock_that_is_put_forward_takes_no_lease(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library counts by the time of day: a standby whose clock jumps would act beside the holder."""

    async def contest() -> None:
        async with api_access(world.server.kubeconfig) as api:
            holder, standby = (Lease(api, world.namespace, "contested", name, 30) for name in ("holder", "standby"))
            await holder.acquire()
            waiting = asyncio.create_task(standby.acquire())
            while standby.holder != "holder":  # noqa: ASYNC110 - the library tells nobody
                await asyncio.sleep(0.01)
            tried, real = standby.tried_at, time.time
            monkeypatch.setattr("kubernetes.aio.leaderelection.leaderelection.time.time", lambda: real() + 86_400)
            while standby.tried_at == tried or not refused:
                assert not waiting.done()
                await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    refused: list[str] = []
    monkeypatch.setattr(lease_module.logger, "warning", lambda text, *given: refused.append(text % given))
    asyncio.run(asyncio.wait_for(contest(), PATIENCE))
    assert "the clock was set forward: the lease of holder has not expired" in refused[0]
    assert lease_of(world)["spec"]["holderIdentity"] == "holder"


def test_what_cannot_be_is_refused_at_the_start(world: World, tmp_path: Path) -> None:
    """Exit codes and words of the command; each option has its words in `test_kube_options.py`."""
    refused = {
        ("--agent-url=agent:80",): (2, "is not a URL; write http://HOST:PORT"),
        ("--audit-dir=/proc/audit",): (4, "--audit-dir: /proc/audit cannot be written"),
        ("--http=256.0.0.1:1",): (4, "give another address to --http"),
    }
    for number, (options, (code, words)) in enumerate(refused.items()):
        with OperatorProcess(world.server, tmp_path, f"refused-{number}", *options) as process:
            assert process.process.wait(PATIENCE) == code, process.log.read_text()
            assert words in process.log.read_text()
