"""What the planner keeps and shortens changes no plan: it plans the same without."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweeps
from espalier_operator.cluster import free_gpus as buckets
from espalier_operator.cluster import ledger, topology
from espalier_operator.cluster.capacity import Capacity
from espalier_operator.cluster.free_gpus import FreeGpuIndex, Room, choose
from espalier_operator.cluster.headroom import ResourceVector
from espalier_operator.cluster.node_index import NodeIndex, NodePool, ReferencedLabels
from espalier_operator.model import Node, WorkerRole
from espalier_operator.model.constraints import Amounts, Constraints
from espalier_operator.planner import plan
from espalier_operator.planner.starting import FailedPlacements
from espalier_operator.policies import Policy
from espalier_operator.policies.decisions import LendingOrder, Rank
from espalier_operator.policies.fair import FairPolicy
from espalier_operator.policies.gandiva import GandivaPolicy
from espalier_operator.policies.tiresias import LasPolicy
from espalier_operator.reclaim.extra_workers import ExtraWorker, ExtraWorkers, ReclaimOrder, lost_seconds
from espalier_operator.reclaim.queue import ReclaimQueue
from operator_world.crowds import NOW, crowd

POLICIES: tuple[Policy, ...] = (FairPolicy(), LasPolicy(thresholds=(20.0, 100.0), promote=2), GandivaPolicy())


def plain(patch: pytest.MonkeyPatch) -> None:
    """Take the planner's shortcuts away."""
    room_of, by_node = topology.RackSplit._room_of, ExtraWorkers.by_node

    def counted_again(self: Any, rack: topology.Rack) -> Any:
        self._racks.headroom.clear()
        return room_of(self, rack)

    def summed_again(self: Any, keeps: Any) -> Mapping[str, ResourceVector]:
        self._lent, self._counted = {}, {}
        return by_node(self, keeps)

    def by_rank(self: Any, order: LendingOrder, now: float) -> dict[str, ReclaimOrder]:
        ranked: dict[str, list[tuple[Rank, ExtraWorker]]] = {}
        for job in self._holders.values():
            extra_workers = [(order.lending_rank(job, each.worker.index), each) for each in self.of(job.key)]
            ranked.setdefault(job.gpu_type or "", []).extend(extra_workers)

        def first(pair: tuple[Rank, ExtraWorker]) -> tuple[Rank, float]:
            """In the order of levels; of those who are spare at one level, who lose least go first."""
            (*level, _), each = pair
            lost = lost_seconds(each.job, now, WorkerRole.EXTRA) if order.is_spare(pair[0]) else 0.0
            return tuple(-part for part in level), lost

        for pairs in ranked.values():
            pairs.sort(key=itemgetter(0), reverse=True)
            pairs.sort(key=first)
        return {name: ReclaimOrder(partial(list, [each for _, each in pairs])) for name, pairs in ranked.items()}

    def each_group(
        self: FreeGpuIndex, node_pool: NodePool, gpus: int, requests: Amounts, room: Room, workers: int = 1
    ) -> tuple[str, int] | None:
        return choose(self.on(node_pool), gpus, requests, room, workers)

    def each_rack(
        self: topology.Racks, node_pool: NodePool, gpus: int, nodes: Collection[str], room: Room
    ) -> str | None:
        near = {self._rack[node] for node in nodes if node in self._rack}
        zones = {zone for zone, _ in near}
        others = (rack for rack in self.free(node_pool) if rack[0] in zones and rack not in near)
        for racks in (near, others):
            found = choose(self.free_groups(node_pool, sorted(racks)), gpus, node_pool.requests, room)
            if found is not None:
                return found[0]
        return None

    def made_again(nodes: Collection[Node], constraints: Collection[Constraints], rack_label: str | None) -> NodeIndex:
        return NodeIndex(nodes, ReferencedLabels.by(constraints), rack_label)

    patch.setattr(ledger, "node_index_of", made_again)
    patch.setattr(FailedPlacements, "is_hopeless", lambda *_: False)
    patch.setattr(Capacity, "swapping", lambda *_: lambda *_: None)
    patch.setattr(buckets, "_STALE", 10**6)
    patch.setattr(FreeGpuIndex, "choose", each_group)
    patch.setattr(topology, "_MOST_VIEWS", 0)
    patch.setattr(topology.RackSplit, "_room_of", counted_again)
    patch.setattr(topology.Racks, "nearest", each_rack)
    patch.setattr(ExtraWorkers, "by_node", summed_again)
    patch.setattr(ExtraWorkers, "lines", by_rank)


@given(seed=st.integers(0, 10**6), policy=st.sampled_from(POLICIES))
@settings(max_examples=sweeps.examples(60), deadline=None)
def test_plans_are_the_same_without_shortcuts(seed: int, policy: Policy) -> None:
    snapshot = crowd(seed, nodes=60, jobs=60)
    with pytest.MonkeyPatch.context() as patch:
        plain(patch)
        wanted = plan(snapshot, policy, NOW)
    assert plan(snapshot, policy, NOW) == wanted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "_FEW_GROUPS", 0)
        patch.setattr(buckets, "_STALE", 0)
        assert plan(snapshot, policy, NOW) == wanted


def test_the_shortcuts_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above compares two ways: in these snapshots workers are swapped, put into racks and given up."""
    taken = {"_swap": 0, "_swap_one": 0, "_room_of": 0, "nearest": 0, "by_node": 0, "is_hopeless": 0}

    def counting(owner: Any, name: str) -> None:
        method = getattr(owner, name)

        def counted(*arguments: Any) -> Any:
            found = method(*arguments)
            taken[name] += bool(found)
            return found

        monkeypatch.setattr(owner, name, counted)

    counting(ReclaimQueue, "_swap")
    counting(ReclaimQueue, "_swap_one")
    counting(topology.RackSplit, "_room_of")
    counting(topology.Racks, "nearest")
    counting(ExtraWorkers, "by_node")
    counting(FailedPlacements, "is_hopeless")
    for seed in range(20):
        plan(crowd(seed), FairPolicy(), NOW)
    assert min(taken.values()) > 5, taken
