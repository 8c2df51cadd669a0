"""What the operator lists at intervals, by a real API server: all at first, and then only what it does not know yet."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from apiserver import ApiServer
from connections import connections_closed

from espalier_core.k8s import resources
from espalier_core.k8s.resources import Raw, Resource
from espalier_operator.clock import WallClock
from espalier_operator.kube.client import KubeClient, api_access
from espalier_operator.kube.objects import names
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch import informer
from espalier_operator.kube.watch.informer import Informer
from espalier_operator.kube.watch.store import Store
from operator_world.kube_objects import raw_node

NODES = "/api/v1/nodes"
WORKER = {names.MANAGED_BY_LABEL: names.MANAGER, names.ROLE_LABEL: "base"}


class Lists(KubeClient):
    """Counts objects that come whole, by kind."""

    def __init__(self, api: Any) -> None:
        super().__init__(api)
        self.whole = Counter[str]()

    async def list(
        self, resource: Resource, *given: Any, keep: Any = lambda raw: raw, identities: bool = False, **selectors: Any
    ) -> Any:
        def count(raw: Raw) -> Raw:
            if not identities:
                self.whole[resource.plural] += 1
            kept: Raw = keep(raw)
            return kept

        return await super().list(resource, *given, keep=count, identities=identities, **selectors)


class Lister:
    """A store that is filled by lists alone: no watch tells it anything."""

    def __init__(self, api: Any) -> None:
        settings = KubeSettings()
        self.client, self.store = Lists(api), Store(settings)
        clock, doubt = WallClock(), asyncio.Event()
        self._informer = Informer(self.client, api.configuration, self.store, settings, clock, lambda: None, doubt)

    async def list_all(self) -> Counter[str]:
        """Return how many objects came whole, by kind."""
        self.client.whole.clear()
        await self._informer.list_all()
        return Counter(self.client.whole)

    def known(self) -> dict[str, Any]:
        """Return what follows from nodes and pods."""
        return {
            "nodes": dict(self.store.planned_nodes),
            "pods": dict(self.store.pods.mapping()),
            "foreign": dict(self.store.foreign_workers),
        }


def pod(name: str, node: str | None, gpus: int = 0, labels: dict[str, str] | None = None) -> dict[str, Any]:
    limits = {"cpu": "1", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    containers = [{"name": "one", "image": "none", "resources": {"limits": limits, "requests": limits}}]
    spec = {"containers": containers, **({"nodeName": node} if node else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": spec}


@pytest.mark.parametrize("most", [0, 50])
def test_a_second_list_reads_only_what_is_new_and_knows_the_same(
    cluster: ApiServer, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or all again, if more is new than are read one by one."""
    monkeypatch.setattr(informer, "_READ_ONE_BY_ONE", most)
    namespace = cluster.namespace()
    pods = resources.PODS.path(namespace)
    for name in ("a", "b", "c"):
        cluster.request("POST", NODES, {"apiVersion": "v1", "kind": "Node", **raw_node(name, 2)})
    for name, gpus in (("holds", 1), ("other", 1), ("idle", 0), ("goes", 1)):
        cluster.request("POST", pods, pod(name, "a", gpus))
    cluster.request("POST", pods, pod("ends", "b", 1, WORKER))

    def change() -> None:
        cluster.request("PATCH", f"{NODES}/a", {"spec": {"unschedulable": True}})
        cluster.request("DELETE", f"{NODES}/c")
        cluster.request("PATCH", f"{pods}/other", {"metadata": {"labels": {"is": "new"}}})
        cluster.request("PATCH", f"{pods}/ends/status", {"status": {"phase": "Succeeded"}})
        cluster.request("DELETE", f"{pods}/goes", {"gracePeriodSeconds": 0})
        cluster.request("POST", pods, pod("comes", "b", 2))

    async def story() -> None:
        async with api_access(cluster.kubeconfig) as api:
            lister, fresh = Lister(api), Lister(api)
            first = await lister.list_all()
            assert await lister.list_all() - first == Counter()
            assert not {"nodes", "pods"} & (await lister.list_all()).keys()
            await asyncio.to_thread(change)
            second = await lister.list_all()
            await fresh.list_all()
            assert lister.known() == fresh.known()
            assert f"{namespace}/comes" in lister.known()["pods"]
            if most:
                assert (second["nodes"], second["pods"]) == (1, 3)
        await connections_closed()

    asyncio.run(story())
