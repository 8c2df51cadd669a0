"""Jobs as nobody should write them, taken by the API server: the operator says what becomes of each."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from mutations import NASTY, Mutated, mutated_jobs
from operators import World

import sweeps
from espalier_core.types.reasons import Reason

ACCEPTED = sweeps.size("mutated jobs that an operator runs", 300)
"""Jobs that are brought to a condition in one go."""
BY_HAND = ACCEPTED // 3
"""Documents made by hand among those that are sent; the rest are mutated."""
SENT = 20 * ACCEPTED
"""Mutated jobs at most; about a quarter of them is taken."""
CLASS = "high"
"""What the mutated jobs need of a cluster: a PriorityClass, nodes of a zone, a ServiceAccount."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_job_that_is_taken_comes_to_a_condition_with_a_reason(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the operator survives them all, and looks after an ordinary job afterwards."""
    made: dict[str, dict[str, Any]] = {}
    drawn: list[Mutated] = []

    def send(sent: Mutated) -> None:
        try:
            document = json.loads(sent.text)
            document["metadata"] = {**document["metadata"], "name": f"job-{len(made)}", "namespace": world.namespace}
            if document["spec"].get("suspend") is True and len(made) % 10:
                document["spec"]["suspend"] = False  # most of them are to run
            content = json.dumps(document)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return  # no document in which a name could be put; those are for the server to refuse
        answer = world.server.api.post(
            world.jobs.path,
            content=content,
            params={"fieldValidation": "Ignore"},
            headers={"Content-Type": "application/json"},
        )
        if answer.status_code == 201:
            made[answer.json()["metadata"]["name"]] = answer.json()

    @seed(sweeps.SEED)
    @settings(max_examples=SENT, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(mutated_jobs())
    def draw(sent: Mutated) -> None:
        drawn.append(sent)

    draw()  # before there is an operator: kopf takes from the global random numbers, which Hypothesis does not allow
    prepare(world)
    operator = world.operate(start_up_allowance_seconds=1.0, pre_running_deadline_seconds=10.0)
    world.trainers.ends_when = lambda job, pods: 0
    for document in random.Random(sweeps.SEED).sample(NASTY, BY_HAND):
        send(document)
    for sent in drawn:
        if len(made) < ACCEPTED:
            send(sent)
    assert len(made) >= ACCEPTED

    said: dict[str, tuple[str, str]] = {}

    def all_said() -> bool:
        operator.check()
        for item in world.trainers.states(world.namespace):
            for entry in item.get("status", {}).get("conditions", ()):
                assert entry["message"], entry
                if entry["type"] == "Admitted":
                    said[item["metadata"]["name"]] = (entry["status"], entry["reason"])
        return said.keys() >= made.keys()

    world.until("something is said of every job", all_said, 120)
    outcomes = Counter(said.values())
    with capsys.disabled():
        print(f"\n{len(made)} jobs taken by the API server; of them the operator says:")
        for (status, reason), count in outcomes.most_common():
            print(f"{count:6}  Admitted={status}  {reason}")
    assert {reason for _, reason in outcomes} <= set(Reason)
    world.until("many run to their end", lambda: all_said() and _ends(said) >= ACCEPTED // 10, 120)
    world.server.request("DELETE", world.jobs.path)
    world.until("all are gone", lambda: not world.server.request("GET", world.jobs.path)["items"])
    # Hundreds of pods end one after the other; the next job's would wait for them.
    world.kubelet.wait_no_pods(world.namespace, 300)
    world.jobs.make("ordinary", preRunningDeadlineSeconds=120)
    world.until_condition("ordinary", "Complete", "True", "BudgetExhausted")
    world.server.request("DELETE", f"/apis/scheduling.k8s.io/v1/priorityclasses/{CLASS}")


def prepare(world: World) -> None:
    """Make what the mutated jobs need."""
    for number in range(8):
        world.kubelet.add_node(f"node-{number}", 8, labels={"zone": "a"})
    account = {"metadata": {"name": "trainer"}}
    world.server.request("POST", f"/api/v1/namespaces/{world.namespace}/serviceaccounts", account)
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    world.server.request("POST", classes, {"metadata": {"name": CLASS}, "value": 10})


def _ends(said: dict[str, tuple[str, str]]) -> int:
    """Return how many jobs have come to a normal end."""
    return sum(reason == "BudgetExhausted" for _, reason in said.values())
