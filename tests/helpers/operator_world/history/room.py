"""What nodes have for workers, and who is owed some of it: read from the objects of the world alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from espalier_core.types.job import DEFAULT_CONTROLLER
from espalier_core.types.status import JobStatus, parse_status
from espalier_operator.kube.objects.names import worker_of
from operator_world.history.seen import Seen, claimant, identity, times
from operator_world.history.world import SharedCluster
from operator_world.kube_api import is_over, node_of
from operator_world.kube_devices import RESOURCE, claim_of, claimed_by
from operator_world.kube_objects import GPU_RESOURCES, Raw
from operator_world.kube_scheduler import is_gated, obstacle, pinned_to, requests_of
from operator_world.kubernetes import TYPE_LABEL

Place = tuple[str, str]
"""A node, and a resource of it that is a kind of GPU."""


class Room:
    """The nodes and pods of one world, and the jobs of one of its operators."""

    def __init__(self, world: SharedCluster, controller: str = DEFAULT_CONTROLLER) -> None:
        """Read nothing yet. `controller` is the name of the operator."""
        self._world, self._controller = world, controller
        self._parsed: dict[str, tuple[Seen, Raw | None]] = {}

    def jobs(self) -> Iterator[Seen]:
        """Yield the jobs of the operator, but for those that are deleted and still there."""
        yield from (job for job in self._all_jobs() if self._is_own(job.raw))

    def _is_own(self, job: Raw) -> bool:
        return bool(job["spec"].get("controllerName", DEFAULT_CONTROLLER) == self._controller)

    def _all_jobs(self) -> Iterator[Seen]:
        for key, raw in self._world.jobs.items():
            if "deletionTimestamp" in raw["metadata"]:
                continue
            limits = self._world.limit_ranges.get(f"{raw['metadata']['namespace']}/defaults")
            known = self._parsed.get(key)
            if known is None or known[0].raw is not raw or known[1] is not limits:
                template = self._world.completed(raw["metadata"]["namespace"], raw["spec"]["template"])
                known = self._parsed[key] = Seen(key, raw, parse_status(raw) or JobStatus(), template), limits
            yield known[0]

    def pinned(self, *, own: bool = False) -> Counter[Place]:
        """Return the GPUs that workers wait for which are not bound; `own`: workers of the operator's jobs.

        Workers of others, and of jobs that are being deleted, wait for none while a ResourceQuota refuses their claims,
        or the node does not take them, or has too few that are free or given back.
        """
        found, taken = Counter[Place](), Counter[Place]()
        leaving = Counter[Place]() if own else self.leaving()
        stays = {identity(job): "deletionTimestamp" not in job["metadata"] for job in self._world.jobs.values()}
        is_own = {identity(job): self._is_own(job) and stays[identity(job)] for job in self._world.jobs.values()}
        for pod in self._world.pods.values():
            waits = not (node_of(pod) or is_over(pod) or is_gated(pod) or "deletionTimestamp" in pod["metadata"])
            if not waits or (node := pinned_to(pod)) is None:
                continue
            mine = is_own.get(claimant(pod))
            takes = not mine and node in self._world.nodes and obstacle(pod, self._world.nodes[node]) is None
            gpus = _gpus_at(node, pod)
            if mine:
                found.update(gpus)
            elif mine is not None and not own and takes and (claim_of(pod) or not claimed_by(pod)):
                will = {place: self._world.free(*place) + leaving[place] for place in gpus}
                if all(will[place] - taken[place] >= amount for place, amount in gpus.items()):
                    taken.update(gpus)
        found.update(taken)
        return found

    def leaving(self) -> Counter[Place]:
        """Return the GPUs that are being given back, whose job that may be."""
        return self._given_back_by(self._all_jobs())

    def is_given_back(self) -> bool:
        """Return whether GPUs are being given back that the operator knows of: by its jobs, or by pods that end."""
        return any(self._given_back_by(self.jobs()).values())

    def _given_back_by(self, givers: Iterable[Seen]) -> Counter[Place]:
        left = self._world.devices.left(self._world.pods.values())
        found = Counter({(node, each): gpus for node, held in left.items() for each, gpus in held.items()})
        jobs = {identity(job.raw): job for job in givers}
        for pod in self._world.pods.values():
            node, owner = node_of(pod), jobs.get(claimant(pod))
            if node is None or is_over(pod):
                continue
            goes = "deletionTimestamp" in pod["metadata"]
            if owner is not None and not goes:
                kept = owner.status.scheduling
                worker = worker_of(owner.key.partition("/")[2], pod["metadata"]["name"])
                is_extra = worker is not None and worker[0] == "extra"
                goes = not owner.holds or kept.stopping is not None or (is_extra and kept.reclaim is not None)
            if goes:
                found.update(_gpus_at(node, pod))
        return found

    def owed(self, jobs: list[Seen]) -> Iterator[Counter[str]]:
        """Yield what each worker requests that is owed GPUs and has none, and each pod of others that waits
        for what some node has.
        """
        own = set(map(identity, self._world.jobs.values()))
        for pod in self._world.pods.values():
            wants = requests_of(pod)
            if node_of(pod) or is_over(pod) or not any(wants[each] for each in GPU_RESOURCES):
                continue
            # A base worker that has gates is kept none. For others, who else refuses them is known only after a while.
            has_gates = is_gated(pod) and "-extra-" not in pod["metadata"]["name"]
            if not has_gates and (claimant(pod) in own or self._fits_somewhere(pod)):
                yield wants
        for wants, count in self.missing(jobs):
            for _ in range(count):
                yield wants

    def missing(self, jobs: list[Seen]) -> Iterator[tuple[Counter[str], int]]:
        """Yield what workers request that are granted and not made, and how many are."""
        live: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for pod in self._world.pods.values():
            if not is_over(pod) and "deletionTimestamp" not in pod["metadata"]:
                live[claimant(pod)]["extra" if "-extra-" in pod["metadata"]["name"] else "base"] += 1
        for job in jobs:
            if job.holds:
                own, extra = live[identity(job.raw)], job.status.scheduling.extra
                yield job.wants, max(0, job.base - own["base"]) + max(0, extra - own["extra"])

    def unclaimed(self, jobs: list[Seen]) -> int:
        """Return how many devices workers of `jobs` ask for whose claims are still to be made."""
        own = {identity(job.raw) for job in jobs}
        waiting = (pod for pod in self._world.pods.values() if not (is_over(pod) or claim_of(pod)))
        return sum(claimed_by(pod) for pod in waiting if claimant(pod) in own)

    def passing(self, jobs: list[Seen]) -> Iterator[Counter[str]]:
        """Yield what each worker of `jobs` requests that is extra or being given back, made or not."""
        owners, unmade = {identity(job.raw): job for job in jobs}, Counter[str]()
        stopping = {job.key for job in jobs if job.holds and job.status.scheduling.stopping is not None}
        for job in jobs:
            if job.holds:
                unmade[job.key] = job.status.scheduling.extra + (job.base if job.key in stopping else 0)
        for pod in self._world.pods.values():
            owner = owners.get(claimant(pod))
            if owner is None or is_over(pod):
                continue
            is_extra, deleted = "-extra-" in pod["metadata"]["name"], "deletionTimestamp" in pod["metadata"]
            if is_extra or deleted or not owner.holds or owner.key in stopping:
                yield requests_of(pod)
            if (is_extra or owner.key in stopping) and not deleted:
                unmade[owner.key] -= 1
        for job in jobs:
            for _ in range(unmade[job.key]):
                yield job.wants

    def types(self) -> set[str]:
        """Return the types of GPU of nodes that take pods."""
        nodes = [name for name in self._world.nodes if self._world.is_open(name)]
        return {self._world.type_of(name, resource) for name in nodes for resource in GPU_RESOURCES}

    def size(self, job: Seen, gpu_type: str, *, bare: bool) -> int:
        """Return how many workers of a job the nodes of a type would take if they were empty; `bare`: whatever its
        template asks.

        A device that is gone is none that an empty node has, though a claim may still name it.
        """
        wants = {job.resource: job.wants[job.resource]} if bare else job.wants
        nodes = self.nodes_of(job, gpu_type, bare=bare)
        return sum(times(self._world.whole(name) | {RESOURCE: self._world.devices.on(name)}, wants) for name in nodes)

    def fits(self, job: Seen, gpu_type: str, owed: list[Counter[str]], *, without_lent: bool = False) -> int:
        """Return how many workers of a job fit now, whatever nodes those take that are owed something.

        `without_lent`: or would if nobody were lent GPUs of its resource: those of others keep their memory.
        """
        held, wants = self._world.held(), job.wants
        if without_lent:
            for node, amounts in self._lent(job.resource).items():
                held[node].subtract(amounts)
        room = 0
        for name in self.nodes_of(job, gpu_type):
            whole = self._world.whole(name)
            room += times({each: whole[each] - held[name][each] for each in whole}, wants)
        return room - sum(max(-(-each[name] // wants[name]) for name in wants if name != "pods") for each in owed)

    def _lent(self, resource: str) -> dict[str, Counter[str]]:
        """Return by node what extra workers of the operator's jobs hold that have GPUs of `resource` and go on."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        owners = set(map(identity, filter(self._is_own, self._world.jobs.values())))
        for pod in self._world.pods.values():
            node, name = node_of(pod), pod["metadata"]["name"]
            stays = not is_over(pod) and "deletionTimestamp" not in pod["metadata"]
            has_some = stays and requests_of(pod)[resource]
            if node in self._world.nodes and has_some and claimant(pod) in owners and "-extra-" in name:
                found[node or ""].update(requests_of(pod))
        return found

    def nodes_of(self, job: Seen, gpu_type: str, *, bare: bool = False) -> Iterator[str]:
        """Yield the nodes of a type that take the workers of a job."""
        selected = job.spec["template"]["spec"].get("nodeSelector", {}).get(TYPE_LABEL)
        for name, node in self._world.nodes.items():
            right = self._world.type_of(name, job.resource) == gpu_type
            right = right and selected in (None, self._world.type_of(name))
            if right and self._world.is_open(name) and (bare or obstacle(job.template, node) is None):
                yield name

    def _fits_somewhere(self, pod: Raw) -> bool:
        """Return whether a node would take a pod if it were empty."""
        return any(
            obstacle(pod, node) is None and times(self._world.whole(name), requests_of(pod)) > 0
            for name, node in self._world.nodes.items()
        )


def _gpus_at(node: str, pod: Raw) -> dict[Place, int]:
    wants = requests_of(pod)
    return {(node, resource): wants[resource] for resource in GPU_RESOURCES if wants[resource]}
