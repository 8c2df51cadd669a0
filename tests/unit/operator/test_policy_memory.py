"""What policies remember outlives the scheduler: the next one decides as the first would have."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweeps
from espalier_operator.clock import ScaledClock
from espalier_operator.loop import SchedulerLoop
from espalier_operator.model import JobTerms, Node
from espalier_operator.policies.memory import MOST_CHARACTERS, PolicyMemory
from espalier_operator.policies.settings import configured
from espalier_operator.policies.view import Candidate, Decision, View
from operator_world.cluster import Cluster, ClusterBackend

MEMORABLE = ("las:thresholds=20/100,promote=2", "gittins:quantum=50", "gavel", "gandiva", "goodput", "fifo")
TYPES = {"fast": 3, "slow": 2}


class Speeds:
    """Half as fast on slow GPUs, and two thirds beside another job."""

    def steps_per_second(self, job: str, gpu_type: str, beside: str | None = None) -> float:
        return (2.0 if gpu_type == "fast" else 1.0) * (1.0 if beside is None else 2 / 3)


def view(
    now: float, services: Mapping[str, float], ended: Mapping[str, float], memory: Mapping[str, Any], continuous: bool
) -> View:
    jobs = tuple(
        Candidate(
            key=key,
            gpu_type="fast" if continuous and service % 3 > 1 else None,
            submitted_at=1.0,
            min_workers=1,
            max_workers=2,
            workers=int(service % 3 > 1),
            service=service,
        )
        for key, service in services.items()
    )
    typed: dict[str, Any] = {"gpu_types": TYPES, "speeds": Speeds()}
    return View(now=now, gpus=5, jobs=jobs, ended=ended, memory=memory, continuous=continuous, **typed)


@pytest.mark.parametrize("name", MEMORABLE)
@settings(max_examples=sweeps.examples(40))
@given(
    continuous=st.booleans(),
    steps=st.lists(
        st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 90.0), min_size=1), min_size=1, max_size=6
    ),
)
def test_a_restart_changes_no_decision(name: str, continuous: bool, steps: list[dict[str, float]]) -> None:
    """In each step some jobs run on, those that are missing have ended."""
    policy, memory, text = configured(name), {}, ""
    services: dict[str, float] = {}
    for number, step in enumerate(steps):
        ended = {key: service for key, service in services.items() if key not in step}
        services = {key: services.get(key, 0.0) + more for key, more in step.items()}
        now = 1.0 + 250.0 * number
        seen = view(now, services, ended, memory, continuous)
        restarted = PolicyMemory(name, text)
        after = policy.decide(view(now, services, ended, restarted.memory, continuous))
        decision: Decision = policy.decide(seen)
        assert after == decision
        memory = decision.memory
        restarted.keep(after.memory)
        text = restarted.to_text()


def test_only_the_same_policy_continues(caplog: pytest.LogCaptureFixture) -> None:
    first = PolicyMemory("las")
    first.keep({"queues": [["ns/a"]]})
    assert PolicyMemory("las", first.to_text()).memory == {"queues": [["ns/a"]]}
    assert PolicyMemory("las", None).memory == PolicyMemory("las", "").memory == {}
    assert not caplog.records
    assert PolicyMemory("las:promote=2", first.to_text()).memory == {}
    assert "policy las:promote=2 starts with an empty memory" in caplog.text


@pytest.mark.parametrize(
    "text", ["{}", "????", base64.b64encode(b"x").decode(), base64.b64encode(zlib.compress(b'["las"]')).decode()]
)
def test_what_somebody_else_wrote_is_not_read(text: str) -> None:
    assert PolicyMemory("las", text).memory == {}
    cut = PolicyMemory("las")
    cut.keep({"queues": [["a"]]})
    assert PolicyMemory("las", cut.to_text()[:-8]).memory == {}


def test_what_is_too_large_or_no_json_is_lost_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    kept = PolicyMemory("own")
    kept.keep({"noise": [hash((number, "noise")) for number in range(MOST_CHARACTERS // 8)]})
    assert kept.to_text() == kept.to_text() == ""
    assert ["at most 131072 are kept" in record.message for record in caplog.records] == [True]
    kept.keep({"small": 1})
    assert PolicyMemory("own", kept.to_text()).memory == {"small": 1}
    kept.keep({"set": {1}})
    assert kept.to_text() == ""
    assert "is not plain JSON" in caplog.records[-1].message


def test_memory_that_a_policy_cannot_use_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    """Of an earlier version, for example: the scheduler starts all the same, and plans."""
    text = base64.b64encode(zlib.compress(json.dumps({"policy": "las", "memory": {"queues": 7}}).encode())).decode()
    memory, cluster = PolicyMemory("las", text), Cluster()
    cluster.nodes["n"] = Node(name="n", gpu_type="a", allocatable=1)
    cluster.submit("ns/one", JobTerms(min_replicas=1, max_replicas=1, time_budget_seconds=9))
    backend = _Backend(cluster)
    asyncio.run(SchedulerLoop(backend, configured("las"), ScaledClock(), memory=memory).tick())
    assert cluster.jobs["ns/one"].admitted_at is not None
    assert "starts with an empty memory: it cannot use its stored memory" in caplog.text
    assert memory.memory["queues"][0] == ["ns/one"]


class _Backend(ClusterBackend):
    def planned(self, snapshot: Any, plan: Any) -> None:
        assert snapshot.policy_memory in ({}, plan.policy_memory)
