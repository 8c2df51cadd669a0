"""What happens: one history of an operator, all of it from a seed."""

from __future__ import annotations

import math
from typing import Final

from espalier_core.k8s.errors import Status
from espalier_core.types.job import API_VERSION, KIND
from espalier_operator.cluster.node_index import ZONE_LABEL
from operator_world.history.draws import (
    BUDGETS,
    QUEUE_NAMES,
    TOLERATES,
    asking_for,
    borrowing_spec_of,
    lending_queue_of,
    program_of,
    queue_of,
    spec_of,
    temper_of,
)
from operator_world.history.kinds import Kind, kind_of
from operator_world.history.quotas import limit_of
from operator_world.history.stage import Stage
from operator_world.history.world import NAMESPACES
from operator_world.kube_api import is_over, node_of
from operator_world.kube_devices import RESOURCE
from operator_world.kube_objects import GPU, MIG, Raw, template
from operator_world.kube_scheduler import requests_of
from operator_world.kubernetes import TYPE_LABEL

TAINT: Final = {"key": "team", "value": "vision", "effect": "NoSchedule"}
HOPELESS: Final = ("TooLarge", "Suspended", "Unschedulable", "QueueNotFound", "PriorityTooHigh")
"""Reasons of jobs that would wait for ever in most histories, in the place of others."""
REASONS: Final = ("", "AlreadyExists", "BadRequest", "Conflict", "Forbidden", "Invalid", "NotFound")
"""What a webhook may say beside its code."""
MOST_JOBS, MOST_NODES, MOST_STRANGERS = 8, 6, 5


class Story(Stage):
    """A cluster, operators in it, and what happens to both."""

    def __init__(self, seed: int, *, judges_plans: bool = True, kind: Kind | None = None) -> None:
        """Begin the history of this seed; `judges_plans` as for `Stage`. `kind`: None: it is drawn, too."""
        super().__init__(seed, judges_plans=judges_plans, kind=kind_of(seed) if kind is None else kind)
        self._make_cluster()

    def run(self, steps: int) -> None:
        """Let so many things happen. `ClauseError`, or another `AssertionError`, where something does not hold."""
        try:
            for _ in range(steps):
                self._step()
                self.world.pass_time(self.random.choice((0.5, 1.0, 1.0, 2.0, 4.0)))
                self.rest()
        finally:
            self.close()

    # ---- the beginning

    _is_about_quotas = False
    """Jobs are small, and may be stopped; their queues borrow from each other."""

    def _make_cluster(self) -> None:
        chance = self.random
        self._is_about_quotas = chance.random() < 0.25
        for _ in range(chance.randint(3, 5)):
            self._node_comes()
        if self._is_about_quotas:
            for name in QUEUE_NAMES:
                self.world.set_queue(name, lending_queue_of(chance))
        elif chance.random() < 0.7:
            cohort = {"cohort": "all"} if chance.random() < 0.7 else {}
            for name in QUEUE_NAMES:
                self.world.set_queue(name, queue_of(self.random, name, cohort, self._types()))
        for namespace in NAMESPACES:
            if chance.random() < 0.3:
                self._quota_changes(namespace)
            if self.kind.has_defaults:
                self._defaults_change(namespace)
        for _ in range(3):
            self._job_comes()

    # ---- what happens

    def _step(self) -> None:
        chance = self.random
        happenings = (
            (6, self._job_comes),
            (6, self._nothing),
            (3, self._stranger_comes),
            (2, self._operator_dies),
            (2, self._operator_is_late),
            (1, self._calls_fail),
            (2, self._node_changes),
            (2, self._node_comes),
            (2, self._pod_ends),
            (2, self._leader_ends),
            (2, self._person_acts),
            (1, self._quota_changes),
            (1, self._queue_changes),
            *(((1, self._operator_freezes),) if self.kind.has_frozen_operators else ()),
            *(((6, self._ended_pods_are_deleted),) if self.kind.has_programs else ()),
            *(((1, self._defaults_change),) if self.kind.has_defaults else ()),
            *(((3, self._devices_fail),) if self.kind.has_failures else ()),
            *(((1, self._denials_change), (1, self._pulls_change)) if self.kind.has_denials else ()),
            *(((2, self._gates_change),) if self.kind.has_gates else ()),
        )
        weights, what = zip(*happenings, strict=True)
        chance.choices(what, weights)[0]()

    def _nothing(self) -> None:
        """Time passes."""

    def _job_comes(self) -> None:
        chance, world = self.random, self.world
        unfinished = sorted(key for key, job in world.jobs.items() if _goes_on(job))
        if len(unfinished) >= MOST_JOBS:  # somebody gives up, rather one who waits
            waiting = [key for key in unfinished if "admittedAt" not in world.jobs[key]["status"]["scheduling"]]
            hopeless = [key for key in waiting if _reason(world.jobs[key]) in HOPELESS]
            key = chance.choice((chance.random() < 0.7 and hopeless) or waiting or unfinished)
            self._say(f"delete {key}")
            world.delete_job(key)
        name, namespace = self._name("job"), chance.choice(NAMESPACES)
        spec = borrowing_spec_of(chance) if self._is_about_quotas else spec_of(chance)
        if len(self.kind.controllers) > 1:
            spec["controllerName"] = chance.choice(self.kind.controllers)
        spec["template"] = {**spec["template"], "spec": asking_for(self._resource(), spec["template"]["spec"])}
        world.tempers[f"{namespace}/{name}"] = temper_of(chance)
        if self.kind.has_programs and chance.random() < 0.5:
            spec, world.tempers[f"{namespace}/{name}"] = program_of(chance, spec)
        finalizers = ("example.com/archive",) if chance.random() < 0.15 else ()
        world.submit(namespace, name, spec, finalizers)
        asked = spec["template"]["spec"]
        self._say(
            f"job {namespace}/{name}: {spec['minReplicas']}-{spec['maxReplicas']} x "
            f"{dict(requests_of(spec['template']))}, {spec['timeBudgetSeconds']} s, queue {spec['queue']}, "
            f"priority {spec['priority']}, {asked.get('nodeSelector')}, {'tolerates' if 'tolerations' in asked else ''}"
        )

    def _stranger_comes(self) -> None:
        chance, world = self.random, self.world
        if len(world.leave_at) >= MOST_STRANGERS:
            return
        limits = {GPU: chance.choice((0, 1, 1, 2, 4, 9)), "cpu": chance.choice((1, 4, 10))}
        pod = template({"resources": {"limits": {name: each for name, each in limits.items() if each}}})["spec"]
        pod = asking_for(self._resource(), pod)
        pod["nodeSelector"] = chance.choice(({}, {}, {TYPE_LABEL: "a100"}, {"disk": "none"}))
        if chance.random() < 0.3:
            pod["tolerations"] = [TOLERATES]
        namespace, name, owner = chance.choice((*NAMESPACES, "others", "others")), self._name("other"), None
        victims = sorted(world.jobs)
        if victims and chance.random() < 0.3:  # it claims to be a worker of a job of another namespace
            victim = world.jobs[chance.choice(victims)]
            namespace, name = "others", f"{victim['metadata']['name']}-base-{chance.randrange(2)}-0"
            owner = {"apiVersion": API_VERSION, "kind": KIND, "controller": True}
            owner |= {"name": victim["metadata"]["name"], "uid": victim["metadata"]["uid"]}
        if f"{namespace}/{name}" not in world.pods:
            world.add_stranger(f"{namespace}/{name}", pod, chance.choice((5.0, 20.0, 90.0)), owner)
            asked = dict(requests_of({"spec": pod}))
            self._say(f"stranger {namespace}/{name}: {asked} {pod['nodeSelector']} {'forged' if owner else ''}")

    def _operator_dies(self) -> None:
        """Before one of its next calls, or when it has none left to do; or it is away for a while."""
        one = self._one()
        one.operator.client.calls_left = self.random.choice((0, 1, 2, 3, 5, 8, 13))
        if self.random.random() < 0.5:
            one.operator.see(*self.kinds)
        one.clauses.is_fresh = False
        if one.tick():
            self._say("the operator is ended")
            one.restart()
        if self.random.random() < 0.3:
            self._cluster_moves()
            self._nobody_acts(self.random.choice((5.0, 40.0)))
            one.restart()

    def _nobody_acts(self, seconds: float) -> None:
        """Let time pass for longer than operators take to look again."""
        self.world.pass_time(seconds)
        for each in self.operators:
            each.clauses.was_away(seconds)

    def _operator_is_late(self) -> None:
        """It works on by what it saw, which is no longer so, or sees a part of what has changed."""
        one = self._one()
        one.clauses.is_fresh = False
        self._cluster_moves()
        self.world.pass_time(self.random.choice((1.0, 8.0)))
        if self.random.random() < 0.5:
            one.operator.see(*(kind for kind in self.kinds if self.random.random() < 0.5))
        one.tick()

    def _calls_fail(self) -> None:
        one = self._one()
        client = one.operator.client
        client.failing, client.unanswered = self.random.randint(0, 4), self.random.randint(0, 2)
        one.clauses.is_fresh = False
        one.tick()
        client.failing = client.unanswered = 0

    def _node_comes(self) -> None:
        chance = self.random
        if len(self.world.nodes) >= MOST_NODES:
            return
        zone = chance.choice("ab")
        labels = {ZONE_LABEL: zone, **({"disk": "ssd"} if chance.random() < 0.5 else {})}
        labels |= {TYPE_LABEL: "a100"} if chance.random() < 0.4 else {}
        taints = [TAINT] if chance.random() < 0.25 else []
        name, gpus, cpus = self._name("node"), chance.choice((1, 2, 4, 8, 8)), chance.choice((4, 16, 64))
        slices = chance.choice((0, 2, 4, 7)) if self.kind.has_slices else 0
        devices = chance.choice((0, 2, 4, 7)) if self.kind.has_devices else 0
        gpus = chance.choice((0, gpus)) if slices or devices else gpus
        self.world.add_machine(name, gpus, cpus, labels, taints, slices, devices)
        amounts = f"{gpus} GPUs, {slices} slices, {devices} devices, {cpus} CPUs"
        self._say(f"node {name}: {amounts}, {labels} {'tainted' if taints else ''}")

    def _node_changes(self) -> None:
        chance, world = self.random, self.world
        if not world.nodes:
            return
        name = chance.choice(sorted(world.nodes))
        closed = ("cordoned", "maintained")
        fate = chance.choice(("gone", "silent", *("heard",) * 4, "unwell", *closed, *("open",) * 3, "fewer", "more"))
        self._say(f"{name} is {fate}")
        match fate:
            case "gone":
                world.remove_node(name)
            case "silent" | "heard" | "unwell":
                world.set_ready(name, fate != "silent", well=fate != "unwell")
            case "cordoned" | "maintained" | "open":
                world.set_cordoned(name, fate == "cordoned")
                world.set_maintained(name, fate == "maintained")
            case "fewer" | "more":
                resource = self._resource()
                gpus = world.whole(name).get(resource, 0) + (1 if fate == "more" else -1)
                world.set_gpus(name, max(0, min(gpus, 8)), resource)

    def _devices_fail(self) -> None:
        chance, world = self.random, self.world
        if not world.nodes:
            return
        name = chance.choice(sorted(world.nodes))
        if chance.random() < 0.5:
            seconds = chance.choice((10.0, 60.0, 300.0, 2000.0))
            self._say(f"{name} refuses pods for {seconds:g} s")
            world.refusing[name] = world.now + seconds
        else:
            resource, seconds = self._resource(), chance.choice((2.0, 15.0, 50.0))
            self._say(f"{name} has no {resource} for {seconds:g} s")
            world.restart_plugin(name, seconds, resource)

    def _pod_ends(self) -> None:
        if not self.world.pods:
            return
        key = self.random.choice(sorted(self.world.pods))
        how, pod = self.random.choice(("delete", "force", "evict")), self.world.pods[key]
        self._say(f"{how} {key}")
        node = node_of(pod)
        if how != "evict":
            self.world.delete_pod(key, force=how == "force")
        elif node is not None and self.world.is_ready(node) and not is_over(pod):
            self.world.evict(key)

    def _ended_pods_are_deleted(self) -> None:
        """At once after their ends: no operator has seen them yet."""
        if self.random.random() < 0.7:
            self.world.pass_time(self.random.choice((1.0, 3.0)))
        ended = [key for key, pod in self.world.pods.items() if is_over(pod)]
        if ended:
            self._say(f"delete what has ended: {', '.join(ended)}")
        for key in ended:
            self.world.delete_pod(key)

    def _operator_freezes(self) -> None:
        """Another takes its place; it wakes up and finishes the write that it was about to send."""
        one = self._one()
        frozen = one.freeze()
        self._say("the operator is frozen, and another one acts")
        for _ in range(self.random.randint(0, 2)):
            self._leader_ends()
            self._nobody_acts(self.random.choice((1.0, 20.0)))
            self.rest()
        before = dict(self.world.jobs)
        known = {key: each.version for key, each in frozen.store.jobs.mapping().items()}
        frozen.wake()
        one.clauses.woke(before, known)

    def _leader_ends(self) -> None:
        running = {each.key: each for each in self.world.processes.values() if each.code is None and each.leads}
        if running:
            process, code = running[self.random.choice(sorted(running))], self.random.choice((1, 1, 2, 3, 137, 143))
            self._say(f"{process.key} ends with {code}")
            process.crash(self.world, code)

    def _person_acts(self) -> None:
        chance, world = self.random, self.world
        if not world.jobs:
            return
        key = chance.choice(sorted(world.jobs))
        what = chance.choice(("suspend", "resume", "resume", "resume", "delete", "priority", "most", "budget"))
        self._say(f"{what} {key}")
        if what == "delete":
            world.delete_job(key)
        elif what == "priority":
            world.change_spec(key, priority=chance.randint(0, 2))
        elif what == "budget":
            world.change_spec(key, timeBudgetSeconds=chance.choice(BUDGETS))
        elif what == "most" and "program" in world.jobs[key]["spec"]:
            pass  # the API server refuses more than the fewest
        elif what == "most":
            world.change_spec(key, maxReplicas=world.jobs[key]["spec"]["minReplicas"] + chance.randint(0, 3))
        else:
            world.change_spec(key, suspend=what == "suspend")

    def _quota_changes(self, namespace: str | None = None) -> None:
        chance = self.random
        namespace = namespace or chance.choice(NAMESPACES)
        hard = {limit_of(self._resource()): chance.choice((0, 4, 8, 16))} if chance.random() < 0.5 else {}
        hard |= {"pods": chance.choice((2, 6, 12))} if chance.random() < 0.3 else {}
        if self.kind.has_defaults and chance.random() < 0.5:
            hard |= {limit_of("cpu"): chance.choice((4, 12, 40))}
        self._say(f"ResourceQuota of {namespace}: {hard}")
        self.world.set_resource_quota(namespace, hard)

    def _defaults_change(self, namespace: str | None = None) -> None:
        """While no worker is there that was made with others: these count as if they were made again."""
        chance = self.random
        namespace = namespace or chance.choice(NAMESPACES)
        requests = chance.choice(({}, {"cpu": "500m"}, {"cpu": "3"}, {"cpu": "6", "memory": "20Gi"}))
        if not any(key.startswith(f"{namespace}/job") for key in self.world.pods):
            self._say(f"LimitRange of {namespace}: {requests}")
            self.world.set_defaults(namespace, requests)

    def _denials_change(self) -> None:
        """A webhook denies pods for a while, by any code, or changes them."""
        chance, world, namespace = self.random, self.world, self.random.choice(NAMESPACES)
        if chance.random() < 0.3:
            self._say(f"a webhook changes its mind on the pods of {namespace}")
            world.webhooks.injects ^= {namespace}
            return
        code, reason = chance.choice((400, 401, 403, 404, 409, 413, 422, 429, 500, 503)), chance.choice(REASONS)
        seconds, message = (
            chance.choice((2.0, 15.0, 45.0, 120.0)),
            chance.choice(('Pod "a" is invalid: no', "later", "")),
        )
        denial = Status(code, reason, f'admission webhook "w.example.com" denied the request: {message}')
        self._say(f"pods of {namespace} are denied for {seconds} s: {denial}")
        world.denials[namespace] = world.now + seconds, denial

    def _gates_change(self) -> None:
        """A webhook puts scheduling gates, some for ever, or selectors on the pods of a namespace from now on."""
        chance, webhooks, namespace = self.random, self.world.webhooks, self.random.choice(NAMESPACES)
        webhooks.gates.pop(namespace, None)
        webhooks.selectors.pop(namespace, None)
        seconds = chance.choice((None, None, 1.0, 8.0, 40.0, math.inf))
        selector = chance.choice((None, None, {"disk": "ssd"}, {ZONE_LABEL: "b"}, {"disk": "none"}))
        if seconds is not None:
            webhooks.gates[namespace] = seconds
        if selector is not None:
            webhooks.selectors[namespace] = selector
        self._say(f"new pods of {namespace} have gates for {seconds} s, and ask for {selector}")

    def _pulls_change(self) -> None:
        """Images cannot be pulled on a node, or can again."""
        if self.world.nodes:
            name = self.random.choice(sorted(self.world.nodes))
            self._say(f"images on {name}: {name in self.world.unable_to_pull}")
            self.world.unable_to_pull ^= {name}

    def _resource(self) -> str:
        others = ((MIG, self.kind.has_slices), (RESOURCE, self.kind.has_devices))
        return next((name for name, is_there in others if is_there and self.random.random() < 0.4), GPU)

    def _types(self) -> tuple[str, ...]:
        """Return the types of GPU of which queues may have quotas by name."""
        others = ((MIG, self.kind.has_slices), (RESOURCE, self.kind.has_devices))
        return ("a100", *(each for name, is_there in others if is_there for each in (name, f"{name}/a100")))

    def _queue_changes(self) -> None:
        if self.world.queues:
            name = self.random.choice(sorted(self.world.queues))
            cohort = self.world.queues[name]["spec"].get("cohort")
            tight = lending_queue_of(self.random) if self._is_about_quotas else None
            spec = tight or queue_of(self.random, name, {"cohort": cohort} if cohort else {}, self._types())
            self._say(f"queue {name}: {spec}")
            self.world.set_queue(name, spec)
            for each in self.operators:
                each.clauses.count_again()


def _goes_on(job: Raw) -> bool:
    return "completionTime" not in job.get("status", {}) and "deletionTimestamp" not in job["metadata"]


def _reason(job: Raw) -> str:
    return next((each["reason"] for each in job["status"]["conditions"] if each["type"] == "Admitted"), "")
