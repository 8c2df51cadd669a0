"""What jobs, leaders and queues of a history are like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from espalier_operator.cluster.node_index import ZONE_LABEL
from operator_world.history.world import NAMESPACES
from operator_world.kube_devices import RESOURCE, claiming
from operator_world.kube_objects import GPU, Raw, template
from operator_world.kubernetes import TYPE_LABEL
from operator_world.leaders import Temper

NOTICES, COOLDOWNS = (3, 8), (2, 10)
TOLERATES: Final = {"key": "team", "operator": "Equal", "value": "vision"}
QUEUE_NAMES: Final = ("default", "night", "guests")
BUDGETS: Final = (15, 30, 60, 120)


def borrowing_spec_of(chance: Random) -> dict[str, Any]:
    """Return what a job asks for that fits on any node, and may be stopped where its queue has borrowed."""
    found = spec_of(chance)
    smallest = chance.choice((1, 2, 3))
    preemption = {**found["preemption"], "base": "Checkpoint"}
    plain = {"minReplicas": smallest, "maxReplicas": smallest + chance.choice((0, 1)), "preemption": preemption}
    return {**found, **plain, "priority": 0, "template": template({"resources": {"limits": {GPU: 1}}})}


def spec_of(chance: Random) -> dict[str, Any]:
    """Return what a job asks for."""
    smallest, gpus = chance.choice((1, 1, 2, 2, 3, 5)), chance.choice((1, 1, 1, 1, 2, 4))
    limits = {GPU: gpus, **({"cpu": chance.choice((1, 2, 6, 12))} if chance.random() < 0.4 else {})}
    where: dict[str, Any] = {}
    if chance.random() < 0.3:
        where["nodeSelector"] = chance.choice(({TYPE_LABEL: "a100"}, {"disk": "ssd"}, {ZONE_LABEL: "b"}))
    if chance.random() < 0.3:
        where["tolerations"] = [TOLERATES]
    return {
        "timeBudgetSeconds": chance.choice(BUDGETS),
        "minReplicas": smallest,
        "maxReplicas": smallest + chance.choice((0, 1, 2, 4)),
        "priority": chance.choice((0, 0, 0, 1, 2)),
        "queue": "nobody" if chance.random() < 0.04 else chance.choice(QUEUE_NAMES),
        "backoffLimit": chance.choice((0, 3, 6)),
        "preemption": {
            "noticeSeconds": chance.choice(NOTICES),
            "cooldownSeconds": chance.choice(COOLDOWNS),
            "minRuntimeSeconds": chance.choice((2, 10)),
            "base": chance.choice(("Never", "Checkpoint")),
        },
        "template": template({"resources": {"limits": limits}}, **where),
        "ttlSecondsAfterFinished": 20,
        **({"suspend": True} if chance.random() < 0.05 else {}),
        **({"gpuSecondsBudget": 120} if chance.random() < 0.1 else {}),
    }


def program_of(chance: Random, spec: Mapping[str, Any]) -> tuple[dict[str, Any], Temper]:
    """Return a job as a program, and how its workers behave: some are done before the leader."""
    found = {**spec, "maxReplicas": spec["minReplicas"], "program": {}}
    lasts, others = chance.choice((12.0, 30.0, 1e9)), chance.choice((3.0, 10.0, 1e18))
    return found, Temper(silent=True, lasts=lasts, others_last=others)


def asking_for(resource: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification of a pod that requests, or claims, a resource in the place of GPUs."""
    first, *others = asked["containers"]
    limits = {resource if name == GPU else name: amount for name, amount in first["resources"]["limits"].items()}
    devices = limits.pop(RESOURCE, 0)
    if not devices:
        return {**asked, "containers": [{**first, "resources": {"limits": limits}}, *others]}
    found = claiming(f"devices-{devices}")
    used = {"limits": limits, **found["containers"][0]["resources"]}
    return {**asked, **found, "containers": [{**first, "resources": used}, *others]}


def temper_of(chance: Random) -> Temper:
    """Return how the leaders of a job behave."""
    return Temper(
        start_up=chance.choice((1.0, 2.0, 2.0, 12.0)),
        evaluation=chance.choice((1.0, 4.0)),
        silent=chance.random() < 0.1,
        lasts=chance.choice((12.0, 50.0, 1e9)),
        deaf=chance.random() < 0.1,
        watches=chance.random() < 0.5,
        farewell=chance.choice((1.0, 5.0, 60.0)),
        hangs=chance.random() < 0.1,
    )


def lending_queue_of(chance: Random) -> dict[str, Any]:
    """Return the specification of a queue whose cohort is small, and whose quota others may borrow."""
    return {"cohort": "all", "quotas": [{"nominal": chance.choice((2, 3, 4))}]}


def queue_of(chance: Random, name: str, cohort: Mapping[str, str], types: Sequence[str]) -> dict[str, Any]:
    """Return the specification of a queue; `cohort` is its entry, if it has one; some of `types` have quotas."""
    quotas: list[Raw] = []
    if chance.random() < 0.9:
        quotas.append({"nominal": chance.choice((1, 2, 3, 4, 6, 10))})
        quotas += [{"gpuType": each, "nominal": chance.randint(0, 6)} for each in types if chance.random() < 0.3]
        for quota in quotas:
            limit = chance.randint(0, 4) if chance.random() < 0.5 else None
            if cohort and limit is not None:  # an API server refuses it without a cohort
                quota["borrowingLimit"] = limit
    found: dict[str, Any] = {**cohort, "quotas": quotas}
    if name == "guests" and chance.random() < 0.5:
        found |= {"maxPriority": 1, "namespaces": [*NAMESPACES[:2]]}
    return found
