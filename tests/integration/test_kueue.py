"""A real Kueue against a real API server: what Espalier builds on."""

from __future__ import annotations

from apiserver import ApiServer
from kueue_process import KUEUE, KueueProcess

from waiting import until


def test_quota_is_held_until_the_owner_deletes_an_evicted_workload(cluster: ApiServer, kueue: KueueProcess) -> None:
    namespace = cluster.namespace()
    kueue.make_flavor()
    kueue.make_queue(namespace, 1, preemption={"withinClusterQueue": "LowerPriority"})
    kueue.make_workload(namespace, "low", priority=0)

    def holds(workload: str, kind: str) -> bool:
        return kueue.condition(namespace, workload, kind).get("status") == "True"

    until(lambda: holds("low", "Admitted"), "low is admitted")
    kueue.make_workload(namespace, "high", priority=100)
    until(lambda: holds("low", "Evicted"), "low is evicted")
    assert kueue.condition(namespace, "low", "Evicted")["reason"] == "Preempted"
    assert not holds("high", "QuotaReserved")
    cluster.request("DELETE", f"{KUEUE}/namespaces/{namespace}/workloads/low")
    until(lambda: holds("high", "Admitted"), "high is admitted")
