"""Dynamic resource allocation in a shared cluster: its objects, and who acts on them.

A driver publishes the devices of each node as a pool. The claim controller makes a claim for each pod that names a
template, and deletes it a while after the pod has ended or gone: until then its devices are nobody else's.
kube-scheduler gives a claim devices of the node to which it binds the pod.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from espalier_core.k8s import resources
from espalier_core.k8s.resources import Resource
from operator_world.kube_api import Objects, is_over, node_of, owner_of
from operator_world.kube_devices import (
    RESOURCE,
    TEMPLATES,
    allocation,
    asking,
    claim_of,
    claimed_by,
    raw_claim,
    raw_class,
    raw_slice,
    raw_template,
)
from operator_world.kube_objects import Raw

KINDS: Final[Mapping[str, Resource]] = {
    "device_classes": resources.DEVICE_CLASSES,
    "resource_slices": resources.RESOURCE_SLICES,
    "resource_claim_templates": resources.RESOURCE_CLAIM_TEMPLATES,
    "resource_claims": resources.RESOURCE_CLAIMS,
}
CLAIM_SECONDS: Final = 1.5
"""For so long a claim stays after its pod."""


class Devices:
    """The devices of all nodes, and who has them."""

    def __init__(self, versions: Iterator[int]) -> None:
        """No node has any."""
        self.classes, self.slices = Objects(versions), Objects(versions)
        self.templates, self.claims = Objects(versions), Objects(versions)
        self._left_at: dict[str, float] = {}
        """Since when the pod of a claim has ended or gone, by the key of the claim."""

    def install(self, namespaces: Iterable[str]) -> None:
        """Make the class, and all templates in each namespace."""
        self.classes["class"] = raw_class()
        for namespace in namespaces:
            for name, count in TEMPLATES.items():
                self.templates[f"{namespace}/{name}"] = raw_template(asking(count), name, namespace)

    def publish(self, node: str, count: int) -> None:
        """Let a node have so many devices; pods that have others keep them."""
        known = self.slices.get(node)
        if count or known is not None:
            generation = 1 if known is None else known["spec"]["pool"]["generation"] + 1
            self.slices[node] = raw_slice(node, map(str, range(count)), generation=generation)

    def on(self, node: str) -> int:
        """Return how many devices a node has."""
        return len(self.slices[node]["spec"]["devices"]) if node in self.slices else 0

    def whole(self, node: str, pods: Iterable[Raw]) -> int:
        """Return the devices of a node, those too that are gone and that claims still name: nobody lacks these.

        But not where workers have them: a worker whose device is gone holds one that is there.
        """
        if not self.claims:
            return self.on(node)
        workers = {claim_of(pod) for pod in pods if not is_over(pod) and owner_of(pod) is not None}
        there = set(map(str, range(self.on(node))))
        others = (claim for key, claim in self._allocated() if key not in workers)
        return len(there) + sum(device not in there for claim in others for device in _devices_of(claim, node))

    def make_claims(self, pods: dict[str, Raw], may_claim: Callable[[str, int], bool]) -> None:
        """Make the claims of pods that have none, and name them in their status.

        `may_claim`: whether a pod, by its key, may claim so many devices.
        """
        for key, pod in list(pods.items()):
            metadata, status = pod["metadata"], pod["status"]
            count = claimed_by(pod)
            goes_on = not is_over(pod) and "deletionTimestamp" not in metadata
            if count and goes_on and not claim_of(pod) and may_claim(key, count):
                name = f"{metadata['name']}-gpu-{metadata['uid']}"
                self.claims[f"{metadata['namespace']}/{name}"] = raw_claim(name, asking(count), pod=pod)
                named = [{"name": "gpu", "resourceClaimName": name}]
                pods[key] = {**pod, "status": {**status, "resourceClaimStatuses": named}}

    def allocate(self, pods: Iterable[Raw]) -> None:
        """Give pods that were just bound the devices that they claim."""
        for pod in pods:
            node, key = node_of(pod), claim_of(pod)
            if node is None or key not in self.claims or self.claims[key]["status"]:
                continue
            held = {device for _, claim in self._allocated() for device in _devices_of(claim, node)}
            free = [device for device in map(str, range(self.on(node))) if device not in held]
            self.claims[key] = {**self.claims[key], "status": allocation(node, free[: claimed_by(pod)])}

    def collect(self, pods: Iterable[Raw], now: float) -> None:
        """Delete the claims of pods that have ended or gone for `CLAIM_SECONDS`."""
        there = _live(pods)
        for key in list(self.claims):
            if key in there:
                self._left_at.pop(key, None)
            elif now - self._left_at.setdefault(key, now) >= CLAIM_SECONDS:
                del self.claims[key], self._left_at[key]

    def claimed_in(self, namespace: str) -> int:
        """Return how many devices the claims of a namespace ask for, allocated or not."""
        claims = (claim for claim in self.claims.values() if claim["metadata"]["namespace"] == namespace)
        return sum(claim["spec"]["devices"]["requests"][0]["exactly"]["count"] for claim in claims)

    def left(self, pods: Iterable[Raw]) -> Mapping[str, Counter[str]]:
        """Return by node what claims hold whose pod has ended or gone."""
        if not self.claims:
            return {}
        there, found = _live(pods), defaultdict[str, Counter[str]](Counter)
        for key, claim in self._allocated():
            if key not in there:
                node = claim["status"]["allocation"]["devices"]["results"][0]["pool"]
                found[node][RESOURCE] += len(_devices_of(claim, node))
        return found

    def _allocated(self) -> Iterator[tuple[str, Raw]]:
        return ((key, claim) for key, claim in self.claims.items() if claim["status"])


def _live(pods: Iterable[Raw]) -> set[str]:
    """Return the keys of the claims of pods that go on."""
    return {claim_of(pod) for pod in pods if not is_over(pod)}


def _devices_of(claim: Raw, node: str) -> list[str]:
    """Return the devices of a node that a claim has."""
    results = claim["status"]["allocation"]["devices"]["results"]
    return [each["device"] for each in results if each["pool"] == node]
