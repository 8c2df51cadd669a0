"""The known devices of the cluster (dynamic resource allocation), by node and by claim. No I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

from espalier_core.k8s import resources
from espalier_core.k8s.resources import Raw, Resource
from espalier_operator.kube.objects import nodes
from espalier_operator.kube.objects.devices import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    DeviceSlice,
    generated_for,
    parse_claim,
    parse_class,
    parse_slice,
    parse_template,
    templates_of,
)
from espalier_operator.kube.objects.pods import UNKNOWN, KnownPod
from espalier_operator.kube.reading import entries, mapping, text
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch.indexer import Indexer, discard
from espalier_operator.model import Worker, WorkerRole, WorkerState
from espalier_operator.model.constraints import Amounts

Pool = tuple[str, str]
"""Driver and name of a pool."""


class Devices:
    """One indexer for each kind, and the derived counts.

    A device counts for each of its classes in the settings; devices of incomplete pools do not count.
    """

    def __init__(
        self,
        settings: KubeSettings,
        nodes_changed: Callable[[Collection[str]], None],
        claims_changed: Callable[[Collection[str]], None],
        template_changed: Callable[[str], None],
    ) -> None:
        """Take callbacks for changes of nodes' devices (by name), of claims' devices (by key), and of a template's
        request (by key); nothing is known yet.
        """
        self._resources = settings.device_classes
        self._nodes_changed, self._claims_changed = nodes_changed, claims_changed
        self.classes: Indexer[DeviceClass] = Indexer(lambda raw, _: parse_class(raw), self._class_changed)
        self.slices: Indexer[DeviceSlice] = Indexer(lambda raw, _: parse_slice(raw), self._slice_changed)
        self.templates: Indexer[DeviceRequest] = Indexer(
            lambda raw, _: parse_template(raw),
            lambda key, before, after: template_changed(key) if before != after else None,
        )
        self.claims: Indexer[DeviceClaim] = Indexer(lambda raw, _: parse_claim(raw), self._claim_changed)
        self.indexers: Mapping[Resource, Indexer[Any]] = {
            resources.DEVICE_CLASSES: self.classes,
            resources.RESOURCE_SLICES: self.slices,
            resources.RESOURCE_CLAIM_TEMPLATES: self.templates,
            resources.RESOURCE_CLAIMS: self.claims,
        }
        self._slices: dict[Pool, dict[str, DeviceSlice]] = defaultdict(dict)
        self._found: dict[Pool, dict[str, tuple[str, tuple[str, ...]]]] = {}
        """For each pool, (node, resources that it counts as) of each device, by name."""
        self._pools: dict[str, set[Pool]] = defaultdict(set)
        """Pools with devices of each node."""
        self._claims: dict[Pool, set[str]] = defaultdict(set)
        """Keys of claims with devices of each pool."""
        self.claims_of_pod: dict[str, set[str]] = defaultdict(set)
        """Keys of the claims made for each pod, by the pod's key."""

    def on(self, node: str) -> Mapping[str, int]:
        """Return the number of devices of a node, by resource."""
        counts = Counter[str]()
        for pool in self._pools.get(node, ()):
            for place, found in self._found[pool].values():
                if place == node:
                    counts.update(found)
        return counts

    def held_by(self, claim: DeviceClaim) -> Mapping[tuple[str, str], int]:
        """Return the number of devices that a claim has, by node and resource."""
        counts = Counter[tuple[str, str]]()
        for each in claim.devices:
            node, found = self._found.get((each.driver, each.pool), {}).get(each.device, ("", ()))
            counts.update((node, resource) for resource in found)
        return counts

    def claimed_by(self, pod: Raw, is_worker: bool) -> Amounts:
        """Return the devices that count as a pod's GPUs, by resource.

        For a worker these are the devices of its own claims, which were or will be made from templates. Foreign claims
        hold their devices themselves, as pods may share them; a foreign pod wants the devices not allocated yet.
        """
        spec = mapping(pod, "spec")
        if not self._resources or not spec.get("resourceClaims") or (text(spec, "nodeName") and not is_worker):
            return ()
        namespace, made = text(pod, "metadata", "namespace") or "default", generated_for(pod)
        amounts = list[tuple[str, int]]()
        for _, name, template in templates_of(spec):
            claim = self.claims.get(f"{namespace}/{made.get(name, '')}")
            asked = self.templates.get(f"{namespace}/{template}") if claim is None else claim.asked
            if asked is not None and (is_worker or claim is None or not claim.allocated):
                amounts += asked.of(self._resources)
        for each in entries(spec, "resourceClaims") if not is_worker else ():
            claim = self.claims.get(f"{namespace}/{text(each, 'resourceClaimName')}")
            if claim is not None and not claim.allocated:
                amounts += claim.asked.of(self._resources)
        return tuple(amounts)

    def _class_changed(self, key: str, before: DeviceClass | None, after: DeviceClass | None) -> None:
        if before != after and key in self._resources:
            for pool in list(self._slices):
                self._survey(pool)

    def _slice_changed(self, key: str, before: DeviceSlice | None, after: DeviceSlice | None) -> None:
        if before == after:
            return
        for each in (before, after):
            if each is not None:
                pool = (each.driver, each.pool)
                if each is before:
                    self._slices[pool].pop(key, None)
                else:
                    self._slices[pool][key] = each
        for pool in {(each.driver, each.pool) for each in (before, after) if each is not None}:
            self._survey(pool)

    def _survey(self, pool: Pool) -> None:
        """Recompute the devices of a pool."""
        slices = self._slices[pool].values()
        generation = max((each.generation for each in slices), default=0)
        newest = [each for each in slices if each.generation == generation]
        if not newest or len(newest) != newest[0].slices:
            newest = []
        classes = [(resource, self.classes.get(name)) for name, resource in self._resources.items()]
        before = self._found.pop(pool, {})
        found = {
            device.name: (
                device.node,
                tuple(resource for resource, each in classes if each is not None and each.has(pool[0], device)),
            )
            for each in newest
            for device in each.devices
        }
        if found:
            self._found[pool] = found
        if not self._slices[pool]:
            del self._slices[pool]
        nodes = {node for node, _ in before.values()} | {node for node, _ in found.values()}
        for node in nodes:
            discard(self._pools, node, pool)
        for node, _ in found.values():
            self._pools[node].add(pool)
        if before != found:
            self._nodes_changed(nodes)
            self._claims_changed(list(self._claims.get(pool, ())))

    def _claim_changed(self, key: str, before: DeviceClaim | None, after: DeviceClaim | None) -> None:
        if before == after:
            return
        if before is not None:
            for each in before.devices:
                discard(self._claims, (each.driver, each.pool), key)
            if before.pod is not None:
                discard(self.claims_of_pod, before.pod, key)
        if after is not None:
            for each in after.devices:
                self._claims[each.driver, each.pool].add(key)
            if after.pod is not None:
                self.claims_of_pod[after.pod].add(key)
        self._claims_changed([key])


class ClaimedDevices:
    """Counts claimed devices as foreign workers."""

    def __init__(
        self,
        settings: KubeSettings,
        time: Callable[[], float],
        devices: Devices,
        pods: Indexer[KnownPod],
        foreign_workers: dict[str, Worker],
    ) -> None:
        """Take `foreign_workers`, which is kept up to date, by name of the worker; no claim holds devices yet."""
        self._settings, self._time, self._devices = settings, time, devices
        self._pods, self._foreign_workers = pods, foreign_workers
        self._left_by_pod: dict[str, float] = {}
        """Time since which the pod of a claim is missing, by key of the claim."""
        self._held_by_claim: dict[str, list[str]] = defaultdict(list)
        """Names of workers for the devices of a claim, by its key."""

    def count(self, claims: Collection[str]) -> None:
        """Count the devices of ResourceClaims, by key, unless they count as the GPUs of the claim's pod.

        Devices of an ended or deleted pod count as about to be free for a while only, as a claim may name any pod.
        """
        for key in list(claims):
            for name in self._held_by_claim.pop(key, ()):
                self._foreign_workers.pop(name, None)
            claim = self._devices.claims.get(key)
            if claim is None or not claim.devices:
                self._left_by_pod.pop(key, None)
                continue
            known = self._pods.get(claim.pod or "") or UNKNOWN
            pod = known.pod
            lives = pod is not None and not pod.ended
            if pod is not None and lives and key in pod.device_claims:
                self._left_by_pod.pop(key, None)
                continue
            left = claim.deleting or (claim.pod is not None and not lives and known.load is None)
            since = self._left_by_pod.setdefault(key, self._time()) if left else self._left_by_pod.pop(key, None)
            for (node, resource), count in self._devices.held_by(claim).items():
                worker = Worker(
                    name=f"{key} (ResourceClaim, {nodes.place_of(node, resource, self._settings)})",
                    job=None,
                    role=WorkerRole.FOREIGN,
                    node=nodes.place_of(node, resource, self._settings),
                    gpus=count,
                    state=WorkerState.TERMINATING if left else WorkerState.RUNNING,
                    leaves_at=since if left else None,
                )
                self._foreign_workers[worker.name] = worker
                self._held_by_claim[key].append(worker.name)
