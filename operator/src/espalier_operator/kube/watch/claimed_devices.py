"""The devices that ResourceClaims hold and that are not counted as the GPUs of a pod. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from espalier_operator.kube.objects import nodes
from espalier_operator.kube.objects.pods import Load, Pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch.devices import Devices
from espalier_operator.kube.watch.indexer import Indexer
from espalier_operator.model import Role, Worker, WorkerState


class ClaimedDevices:
    """Counts them as foreign workers."""

    def __init__(
        self,
        settings: KubeSettings,
        time: Callable[[], float],
        devices: Devices,
        pods: Indexer[Pod],
        loads: Indexer[Load],
        foreign_workers: dict[str, Worker],
    ) -> None:
        """No claim holds anything yet; `foreign_workers` are kept up to date, by the name of the worker."""
        self._settings, self._time, self._devices = settings, time, devices
        self._pods, self._loads, self._foreign_workers = pods, loads, foreign_workers
        self._left_by_pod: dict[str, float] = {}
        """Since when the pod that a claim was made for is not there, by the key of the claim."""
        self._held_by_claim: dict[str, list[str]] = defaultdict(list)
        """Names of workers for the devices that a claim has, by its key."""

    def count(self, claims: Collection[str]) -> None:
        """Count what ResourceClaims hold, by key, unless it is counted as the GPUs of the pod that they were made for.

        Devices of a pod that has ended or gone are about to be free, for a while: who made the claim says what pod.
        """
        for key in list(claims):
            for name in self._held_by_claim.pop(key, ()):
                self._foreign_workers.pop(name, None)
            claim = self._devices.claims.get(key)
            if claim is None or not claim.devices:
                self._left_by_pod.pop(key, None)
                continue
            pod = None if claim.pod is None else self._pods.get(claim.pod)
            lives = pod is not None and not pod.ended
            if pod is not None and lives and key in pod.device_claims:
                self._left_by_pod.pop(key, None)
                continue
            left = claim.deleting or (claim.pod is not None and not lives and self._loads.get(claim.pod) is None)
            since = self._left_by_pod.setdefault(key, self._time()) if left else self._left_by_pod.pop(key, None)
            for (node, resource), count in self._devices.held_by(claim).items():
                worker = Worker(
                    name=f"{key} (ResourceClaim, {nodes.place_of(node, resource, self._settings)})",
                    job=None,
                    role=Role.FOREIGN,
                    node=nodes.place_of(node, resource, self._settings),
                    gpus=count,
                    state=WorkerState.TERMINATING if left else WorkerState.RUNNING,
                    leaves_at=since if left else None,
                )
                self._foreign_workers[worker.name] = worker
                self._held_by_claim[key].append(worker.name)
