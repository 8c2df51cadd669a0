"""Operator, agent and a training leader, scraped where they run while a job grows."""

from __future__ import annotations

from collections.abc import Mapping

from kube import SYSTEM, ClusterError, Nodes, Space, digits, get_raw, kubectl, pods_of, wait_for
from prometheus_client.parser import text_string_to_metric_families

Samples = Mapping[tuple[str, frozenset[str]], float]


def scrape(namespace: str, pod: str, port: int) -> Samples:
    """Return what a pod's `/metrics` says through the API server, by name and set of label values; empty: nothing."""
    try:
        text = get_raw(f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/metrics")
    except ClusterError:
        return {}
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for metric in text_string_to_metric_families(text)
        for sample in metric.samples
    }


def total(samples: Samples, name: str) -> float:
    """Return the sum over all series of a metric."""
    return sum(value for (found, _), value in samples.items() if found == name)


def test_all_parts_tell_of_a_job_that_grows(space: Space, nodes: Nodes) -> None:
    operator, agent = (pods_of(part)[0]["metadata"]["name"] for part in ("operator", "agent"))
    advised = total(scrape(SYSTEM, agent, 8080), "espalier_agent_advice_total")
    nodes.set_gpus(2)
    space.apply(digits("grows", budget=45))
    wait_for("it has grown", lambda: space.status("grows").get("adaptationCount"))

    leader = space.leader("grows")
    assert leader is not None
    trained = wait_for(
        "the leader's metrics tell of a growth",
        lambda: (
            (found := scrape(space.name, leader["metadata"]["name"], 9464))
            and ("espalier_trainer_adaptation_seconds_count", frozenset({"Grown"})) in found
            and found
        ),
    )
    assert total(trained, "espalier_trainer_step_seconds_count") > 10
    assert 0 < total(trained, "espalier_trainer_budget_left_seconds") < 45
    assert total(scrape(SYSTEM, agent, 8080), "espalier_agent_advice_total") > advised

    place = frozenset({space.name, "grows"})
    seen = scrape(SYSTEM, operator, 8080)
    assert seen["espalier_operator_leader", frozenset()] == 1
    assert seen["espalier_job_time_budget_seconds", place] == 45
    assert seen["espalier_job_adaptations_total", place] >= 1
    assert seen["espalier_job_gpus", place | {"base"}] == 1
    assert seen["espalier_job_gpus", place | {"extra"}] == 1
    lent = seen["espalier_gpus_lent_total", frozenset({space.name, "default"})]
    assert lent >= 1
    for stage in ("written", "acknowledged"):
        assert seen["espalier_signal_seconds_count", frozenset({stage})] >= 1

    space.wait_condition("grows", "Complete")
    ended = frozenset({space.name, "default", "Complete", "BudgetExhausted"})
    assert scrape(SYSTEM, operator, 8080)["espalier_jobs_finished_total", ended] == 1
    kubectl("delete", "atj", "grows", "--namespace", space.name)
    wait_for(
        "its series are gone",
        lambda: not [labels for _, labels in scrape(SYSTEM, operator, 8080) if place <= labels],
    )
