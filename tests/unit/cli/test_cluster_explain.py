"""`espalier explain`: where a job stands, why, what would change it; for every reason a remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click
import pytest
from cluster_objects import (
    NOW,
    SETTINGS,
    Object,
    acted,
    admitted,
    case,
    gpus,
    job,
    lists,
    looked_at,
    node,
    on,
    pod,
    report,
    reporting,
    sections,
    stands,
    time,
    training,
    worker,
)

from espalier_cli.cluster.case import case_of
from espalier_cli.cluster.client import View
from espalier_cli.cluster.remedies import REMEDIES, remedy_for
from espalier_cli.main import cli
from espalier_core.k8s.resources import LEASES, QUEUES, RESOURCE_QUOTAS, Listing, Resource
from espalier_core.types.measurements import Bid, BidUse, Measurements
from espalier_core.types.reasons import Reason
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import WorkerRole
from espalier_operator.model.actions import Admit, Fail, NoticeReclaim, Requeue, Stop
from espalier_operator.policies.memory import PolicyMemory
from espalier_operator.policies.tiresias import LasPolicy

# ---- remedies


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_remedy(reason: Reason) -> None:
    remedy = remedy_for(reason, name="a", namespace="ns", leader="a-base-0-0", queue="q")
    assert remedy.text.endswith(".")
    for words in map(str.split, remedy.commands):
        assert words[0] in ("kubectl", "espalier")
        if words[0] == "espalier":
            command = cli.get_command(click.Context(cli), words[1])
            command.parse_args(click.Context(command), words[2:])  # what is missing or unknown is an error
    assert set(REMEDIES) == set(Reason)


def test_commands_name_the_job_and_its_pod() -> None:
    remedy = remedy_for(Reason.SUSPENDED, name="a", namespace="ns", leader="a-base-0-0", queue="q")
    assert remedy.commands == ("espalier resume -n ns a",)
    remedy = remedy_for(Reason.PRE_RUNNING_DEADLINE_EXCEEDED, name="a", namespace="ns", leader="p", queue="q")
    assert remedy.commands == ("kubectl describe pod -n ns p", "kubectl logs -n ns p")


# ---- where it stands


def test_a_job_that_no_node_admits_is_shown_which_are_excluded() -> None:
    """A tainted pool counts for nobody, unless the template tolerates it."""
    taint = {"key": "team", "effect": "NoSchedule"}
    picky = gpus(1)
    picky["spec"]["nodeSelector"] = {"zone": "a"}
    waiting = acted(job("a", template=picky), refusal=Reason.UNSCHEDULABLE)
    told = stands(case(jobs=[waiting], nodes=[node("n", 4), node("t", 2, taints=[taint])]))
    assert "Its node selector, affinity and tolerations exclude 1 node with 4 GPUs." in told
    assert "1 node with 2 GPUs does not count; `espalier top` says why." in told


def test_a_job_that_needs_more_than_gpus_is_shown_what_is_missing() -> None:
    hungry, trainer, other = gpus(1), admitted(job("b")), pod("o", 0, "n")
    other["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "6"}}
    hungry["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "2500m"}
    waiting = acted(job("a", template=hungry), refusal=Reason.UNSCHEDULABLE)
    told = stands(case(jobs=[waiting, trainer], pods=[other, worker(trainer, "n")], nodes=[node("n", 4), node("m", 1)]))
    assert "1 node with free GPUs has too little cpu left for a worker, which requests 2.5." in told


def test_a_job_that_kube_scheduler_could_not_place_is_shown_when_it_is_tried_again() -> None:
    actions = (
        Admit(job="default/a", gpu_type=""),
        Requeue(job="default/a", reason=Reason.UNSCHEDULABLE, message="cpu"),
    )
    told = stands(case(jobs=[acted(job("a"), *actions, refusal=Reason.UNSCHEDULABLE)], nodes=[node("n", 4)]))
    assert told.startswith("default/a is Pending, for 0 s. Unschedulable: cpu.")
    assert "kube-scheduler could not place its workers, 1 time in a row. It is tried again in 60 s." in told


def test_a_waiting_job_is_shown_who_holds_what_and_until_when() -> None:
    holder = admitted(job("b", maxReplicas=4, preemption={"noticeSeconds": 7}), gpu_type="x", extra=3, at=NOW - 100)
    leader = worker(holder, "n", age=90)
    extras = [worker(holder, "n", role=WorkerRole.EXTRA, index=index, attempt=2) for index in range(3)]
    waiting = acted(job("a", minReplicas=2, template=gpus(2, "x"), age=60), refusal=Reason.NO_FREE_GPU, at=NOW - 30)
    told = stands(
        case(
            jobs=[holder, waiting, acted(job("first"), refusal=Reason.NO_FREE_GPU)],
            pods=[leader, *extras, pod("o", 2, "n", namespace="ci")],
            nodes=[node("n", 7, "x"), node("m", 4, "x", unschedulable=True), node("other", 4, "y")],
            reports=[report(holder, leader, acknowledged=2, used_seconds=90.0)],
        )
    )
    assert told.startswith("default/a is Pending, for 30 s. NoFreeGPU: no GPUs are free for it; ")
    for sentence in (
        "It needs 2 workers with 2 GPUs of type x each, all at once.",
        "There are 7 GPUs of type x, 1 free, at most 1 on one node.",
        "Job default/b holds 4 (1 base, 3 lent) until its time budget ends, in 5 min 10 s at most; "
        "those lent come back within a notice of 7 s.",
        "Pods that are not Espalier's hold 2, in ci.",
        "1 node with 4 GPUs does not count; `espalier top` says why.",
        "): default/first.",
        "GPUs are kept for it: it starts in ",
    ):
        assert sentence in told
    assert "type y" not in told


def test_a_job_larger_than_all_gpus_is_shown_how_many_there_are() -> None:
    raw = acted(job("a", template=gpus(16)), refusal=Reason.TOO_LARGE)
    told = stands(case(jobs=[raw], nodes=[node("n", 8)]))
    assert "It needs 16 GPUs on one node." in told
    assert "There are 8 GPUs, 8 free, at most 8 on one node." in told


def limited(raw: Object, kind: Resource, *objects: Object, others: Sequence[Object] = (), gpu_type: str = "x") -> str:
    """Where a job stands on a node with eight GPUs, with these objects of a kind."""
    found = {**lists(jobs=[raw, *others], nodes=[node("n", 8, gpu_type)]), kind: Listing(items=objects, version=1)}
    return stands(case_of("default", "a", View(found), NOW, SETTINGS))


def queue_of(name: str, *quotas: Object, cohort: str | None = None) -> Object:
    spec: Object = {"quotas": list(quotas)} if cohort is None else {"quotas": list(quotas), "cohort": cohort}
    return {
        "apiVersion": "espalier.dev/v1alpha1",
        "kind": "Queue",
        "metadata": {"name": name, "resourceVersion": "1"},
        "spec": spec,
    }


def test_a_job_that_waits_for_its_quota_is_shown_what_the_quota_is_and_who_holds_it() -> None:
    raw = acted(job("a", minReplicas=2, maxReplicas=2), refusal=Reason.QUOTA_EXCEEDED)
    holder = admitted(job("b", minReplicas=3, maxReplicas=3), gpu_type="x")
    told = limited(raw, QUEUES, queue_of("default", {"nominal": 4}), others=[holder])
    assert "Queue default has a quota of 4 GPUs, and its jobs hold 3." in told
    assert "more than the queue may ever hold" not in told


@pytest.mark.parametrize(
    ("queues", "quota"),
    [
        ([queue_of("default", {"nominal": 1})], "Queue default has a quota of 1 GPU, and its jobs hold none."),
        (
            [queue_of("default", {"gpuType": "x", "nominal": 1, "borrowingLimit": 0}, cohort="c")],
            "a quota of 1 GPU of type x, and its jobs hold none; it may borrow none of what cohort c does not use.",
        ),
        (
            [queue_of("default", {"nominal": 1}, cohort="c"), queue_of("b", {"nominal": 0}, cohort="c")],
            "a quota of 1 GPU, and its jobs hold none; it may borrow what cohort c does not use.",
        ),
        ([queue_of("default", {"gpuType": "y", "nominal": 9})], "Queue default has no quota for GPUs of type x."),
    ],
)
def test_a_job_that_can_never_fit_its_queue_is_shown_why(queues: Sequence[Object], quota: str) -> None:
    raw = acted(job("a", minReplicas=2, maxReplicas=2), refusal=Reason.QUOTA_EXCEEDED)
    told = limited(raw, QUEUES, *queues)
    assert quota in told
    assert (
        "Its base workers need 2 GPUs, more than the queue may ever hold: only a larger quota, or a job with a smaller "
        "minReplicas or fewer GPUs per worker, changes that."
    ) in told


def test_a_job_that_can_borrow_enough_is_not_told_that_it_never_fits() -> None:
    raw = acted(job("a", minReplicas=2, maxReplicas=2), refusal=Reason.QUOTA_EXCEEDED)
    cohort = queue_of("default", {"nominal": 1}, cohort="c"), queue_of("b", {"nominal": 1}, cohort="c")
    assert "more than the queue may ever hold" not in limited(raw, QUEUES, *cohort)


def test_a_job_that_waits_for_a_resource_quota_is_shown_which() -> None:
    raw = acted(job("a", minReplicas=2, maxReplicas=2), refusal=Reason.RESOURCE_QUOTA_EXCEEDED)
    quota = {
        "metadata": {"name": "team", "namespace": "default", "resourceVersion": "1"},
        "status": {"hard": {"count/pods": "5", "requests.nvidia.com/gpu": "9"}, "used": {"count/pods": "4"}},
    }
    told = limited(raw, RESOURCE_QUOTAS, quota)
    assert "ResourceQuota team allows 5 of pods, and 4 are used; its base workers request 2." in told
    assert "nvidia.com/gpu, and" not in told
    assert "(for a limit of count/pods: that is deleted)" in " ".join(remedy_of(Reason.RESOURCE_QUOTA_EXCEEDED))


def remedy_of(reason: Reason) -> Sequence[str]:
    remedy = remedy_for(reason, name="a", namespace="ns", leader="a-base-0-0", queue="q")
    return [remedy.text, *remedy.commands]


def test_a_training_job_that_is_lent_nothing_is_shown_that_it_lacks_nothing() -> None:
    raw = admitted(job("a", maxReplicas=2), gpu_type="x", at=NOW - 90)
    told = stands(on(node("n", 1, "x"), node("m", 8, "y"), reports=reporting(raw, refusal=Reason.NO_FREE_GPU)))
    assert "It has the GPUs that it is guaranteed; this is about those that it could be lent." in told
    assert told.endswith("There is 1 GPU of type x, none free.")


def test_a_cooldown_is_shown_with_its_end() -> None:
    raw = acted(admitted(job("a", maxReplicas=2), gpu_type="x", at=NOW - 90), changed_at=NOW - 48)
    told = stands(on(node("n", 4, "x"), reports=reporting(raw, refusal=Reason.COOLDOWN)))
    assert "its allocation has just changed" in told
    assert told.endswith("Its extra GPUs changed 48 s ago; the cooldown of 60 s ends in 12 s.")


def test_too_little_budget_is_shown_in_figures() -> None:
    raw = admitted(job("a", maxReplicas=2), gpu_type="x", at=NOW - 395)
    used_up = reporting(raw, age=394, used_seconds=390.0, refusal=Reason.TOO_LITTLE_BUDGET_LEFT)
    assert "left of its time budget; below 20 s nothing is lent." in stands(on(node("n", 4, "x"), reports=used_up))


def test_an_image_that_cannot_be_pulled_is_shown_with_message_and_command() -> None:
    raw = admitted(job("a", preRunningDeadlineSeconds=100), at=NOW - 40)
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found: i:latest"}}
    leader = worker(raw, "n", phase="Pending", containerStatuses=[{"name": "c", "state": waiting}])
    raw = looked_at(raw, [leader])
    what = case(jobs=[raw], pods=[leader], nodes=[node("n", 4)])
    told = stands(what)
    assert told.startswith("default/a is Starting")
    assert "ImagePullFailed: " in told
    assert "ImagePullBackOff: not found: i:latest" in told
    assert "Its leader is pod a-base-0-0: Pending on node n" in told
    assert "Unless that passes, it gives its GPUs back and is tried again later." in told
    assert "$ kubectl describe pod -n default a-base-0-0" in sections(what)["What would change it"]


def test_a_job_that_failed_names_the_pod_that_failed_last_not_one_that_never_was() -> None:
    raw = admitted(job("a", backoffLimit=0), at=NOW - 40)
    failed = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": time(5), "startedAt": time(30)}}
    leader = worker(raw, "n", phase="Failed", containerStatuses=[{"name": "c", "state": failed}])
    raw = acted(looked_at(raw, [leader]), Fail(job="default/a", reason=Reason.CRASH_LOOP, message="1 failure"))
    assert raw["status"]["scheduling"]["attempts"] == [1]
    what = case(jobs=[raw], pods=[leader], nodes=[node("n", 4)])
    assert stands(what).startswith("default/a is Failed, for 0 s. CrashLoop: 1 failure.")
    assert "Its leader is pod a-base-0-0: Failed on node n, exit code 1" in stands(what)
    assert "$ kubectl logs -n default a-base-0-0" in sections(what)["What would change it"]


def test_a_deadline_that_passed_names_the_commands_to_type_next() -> None:
    failed = Fail(job="default/a", reason=Reason.PRE_RUNNING_DEADLINE_EXCEEDED, message="900 s after admission")
    what = case(jobs=[acted(admitted(job("a")), failed)], nodes=[node("n", 4)])
    assert sections(what)["What would change it"][1:] == (
        "$ kubectl describe pod -n default a-base-0-0",
        "$ kubectl logs -n default a-base-0-0",
    )


def test_a_reclaim_is_shown_with_its_deadline() -> None:
    raw, *others = training()
    asked = NoticeReclaim(job="default/a", extra=0, deadline=NOW + 9, reason=Reason.NEEDED_BY_OTHER_JOB)
    assert sections(on(node("n", 4, "x"), reports=(acted(raw, asked), *others)))["GPUs"] == (
        "Allocation 3: 1 worker, 1 GPU of type x, down, NeededByOtherJob; its leader has acknowledged 2 and not this "
        "one yet.",
        "1 of the workers is lent.",
        "It is to be down to no extra workers in 9 s.",
    )


def test_a_job_nobody_has_looked_at_asks_for_the_operator() -> None:
    assert "no operator has written its status. Is one running? kubectl get pods -A" in stands(case(jobs=[job("a")]))


def test_a_change_that_the_operator_has_not_seen_is_shown() -> None:
    raw = acted(job("a"), refusal=Reason.NO_FREE_GPU)
    raw["metadata"] = raw["metadata"] | {"generation": 2}
    assert "has not acted yet on the last change of its specification" in stands(case(jobs=[raw]))


def test_an_operator_that_fell_silent_is_shown() -> None:
    raw, *others = training()
    told = stands(on(node("n", 4, "x"), reports=(acted(raw, counted_until=NOW - 300), *others)))
    assert "The operator last wrote 5 min ago. Is it running?" in told


def test_an_operator_that_writes_seldom_or_waits_for_a_node_is_not_blamed() -> None:
    """With many jobs figures are written seldom, and what a silent node does is not counted."""
    raw, leader, said = training()
    raw = acted(raw, counted_until=NOW - 100)
    names = [f"other-{number}" for number in range(600)]
    others = [{**raw, "metadata": {**raw["metadata"], "name": name, "uid": name}} for name in names]
    assert "Is it running?" not in stands(
        case(jobs=[raw, *others], pods=[leader], nodes=[node("n", 4, "x")], reports=[said])
    )
    [running] = [entry for entry in raw["status"]["conditions"] if entry["type"] == "Running"]
    running |= {"status": "False", "reason": "NodeLost"}
    assert "Is it running?" not in stands(on(node("n", 4, "x"), reports=(raw, leader, said)))


def test_a_job_that_cannot_be_run_is_shown_every_problem() -> None:
    what = case(jobs=[job("a", template=gpus(0), timeBudgetSeconds=-1)])
    raw = acted(job("a"), refusal=Reason.INVALID_SPEC)
    told = stands(replace(what, job=replace(case(jobs=[raw]).job)))
    assert "spec.timeBudgetSeconds: is -1; must be greater than 0." in told


def test_a_suspended_job_that_still_ends_is_shown_until_when() -> None:
    raw, *others = training()
    raw = acted(raw, Stop(job="default/a", reason=Reason.SUSPENDED, deadline=NOW + 4), refusal=Reason.SUSPENDED)
    running = [entry for entry in raw["status"]["conditions"] if entry["type"] == "Running"]
    running[0] |= {"status": "False", "reason": "Suspended"}
    told = stands(on(node("n", 4, "x"), reports=(raw, *others)))
    assert told.endswith("It is asked to checkpoint and end in 4 s; past that it is ended by force.")


# ---- the policy


def place_of(objects: Mapping[Resource, Listing], leases: Sequence[Object], settings: KubeSettings) -> str:
    """Which of two jobs the policy serves job `a` as, beside these Leases."""
    what = case_of("default", "a", View({**objects, LEASES: Listing(items=leases, version=1)}), NOW, settings)
    (place,) = re.findall("as number (.) of 2", sections(what)["Scheduling policy"][0])
    return str(place)


def test_the_policy_remembers_what_its_operator_noted_in_the_lease() -> None:
    """Without that, jobs of one queue go by their submission. Where two Leases differ, nobody knows whose is meant."""
    memory = PolicyMemory("las")
    memory.keep({"queues": [["default/b", "default/a"]]})
    lease = {"metadata": {"name": "espalier-operator", "annotations": {"espalier.dev/policy-memory": memory.to_text()}}}
    other = {"metadata": {"name": "espalier-operator", "annotations": None}}
    objects = lists(jobs=[acted(job("a"), refusal=Reason.NO_FREE_GPU), job("b")], nodes=[node("n", 0)])
    for leases, place in (([lease], "2"), ([lease, other], "2"), ([], "1"), ([lease, lease], "1")):
        assert place_of(objects, leases, replace(SETTINGS, policy="las")) == place


def test_a_job_waits_in_the_order_of_its_operator() -> None:
    """By what namespaces used lately, which the operator notes in its Lease, and by how long jobs have waited."""
    note = json.dumps({"at": NOW, "gpus": {"namespace default": 5.0}})
    lease = {"metadata": {"name": "espalier-operator", "annotations": {"espalier.dev/recent-use": note}}}
    waiting = [acted(job("a"), refusal=Reason.NO_FREE_GPU), job("b", namespace="team", age=500.0, priority=0)]
    objects = lists(jobs=waiting, nodes=[node("n", 0)])
    aging = replace(SETTINGS, aging_seconds=550.0)  # the first has waited for longer than that
    for leases, settings, place in (([lease], SETTINGS, "2"), ([], SETTINGS, "1"), ([lease], aging, "1")):
        assert place_of(objects, leases, settings) == place


def test_the_policy_is_asked_once_and_its_decision_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[View] = []
    decide = LasPolicy.decide

    def counted(policy: LasPolicy, view: Any) -> Any:
        asked.append(view)
        return decide(policy, view)

    monkeypatch.setattr(LasPolicy, "decide", counted)
    settings = replace(SETTINGS, policy="las:promote=2")
    waiting = acted(job("a"), refusal=Reason.NO_FREE_GPU)
    objects = lists(jobs=[waiting, job("b"), job("c")], nodes=[node("n", 0)])
    what = case_of("default", "a", View(objects), NOW, settings)
    found = sections(what)
    assert len(asked) == 1
    assert found["Scheduling policy"] == (
        "Policy las:promote=2 serves it as number 1 of 3, by attained service and arrival.",
        "Its share is 1 worker.",
    )


def test_bids_are_shown_with_the_highest_of_all_jobs() -> None:
    def bidding(name: str, *bids: Bid) -> tuple[Object, Object, Object]:
        raw = admitted(job(name, maxReplicas=3), gpu_type="x", at=NOW - 90)
        return reporting(raw, measurements=Measurements(bids=bids))

    nothing = Bid(use=BidUse.NOTHING, workers=1, gain=0, low=0, high=0, seconds=0)
    second, third = (
        Bid(use=BidUse.WORKER, workers=workers, gain=0.01, low=0, high=0.02, seconds=3600) for workers in (2, 3)
    )
    growth = Bid(use=BidUse.GROWTH, workers=2, gain=0.1, low=-0.05, high=0.3, seconds=600)
    made = bidding("a", second, third, nothing), bidding("b", growth, nothing)
    jobs, pods, reports = (list(each) for each in zip(*made, strict=True))
    expected = {
        "a": (
            "For another worker it bids 1.00% of what it can still gain per GPU-hour (0.00% to 2.00%), for 1 h.",
            "The highest bid, by weight and priority, is that of default/b: 60.00% per GPU-hour.",
        ),
        "b": (
            "For a growth it bids 60.00% of what it can still gain per GPU-hour (-30.00% to 180.00%), for 10 min.",
            "No job bids more.",
        ),
    }
    for name, told in expected.items():
        what = case(name, jobs=jobs, pods=pods, nodes=[node("n", 2, "x")], reports=reports)
        assert sections(what)["Scheduling policy"][-2:] == told


# ---- programs


def test_what_was_read_of_a_program_is_reported() -> None:
    container = {"command": ["sh"], "resources": {"limits": {"nvidia.com/gpu": 1}}}
    progress = {"log": {"pattern": "(?P<step>[0-9]+)"}}
    raw = admitted(
        job("a", program={"progress": progress}, template={"spec": {"containers": [container]}}), at=NOW - 90
    )
    leader = worker(raw, "n", age=80)
    before = looked_at(raw, [leader])
    assert sections(case(jobs=[before], pods=[leader], nodes=[node("n", 2)]))["Training"] == (
        "It is a program; nothing was read of its progress yet.",
    )
    figures = [{"name": "loss", "value": 0.25}]
    training = {"step": 1200, "donePercentage": 60, "metrics": figures, "lastUpdatedTime": time(5)}
    read = {**before, "status": {**before["status"], "training": training}}
    what = sections(case(jobs=[read], pods=[leader], nodes=[node("n", 2)]))
    assert what["Training"] == ("Step 1,200, 60 % done, loss 0.25; read 5 s ago.",)
    assert "report" not in " ".join(what["GPUs"]), "nobody expects one"


def test_a_program_is_not_told_what_it_cannot_follow() -> None:
    places = {"name": "a", "namespace": "ns", "leader": "a-base-0-0", "queue": "default"}
    for reason in Reason:
        text = remedy_for(reason, **places, program=True).text
        assert not any(word in text for word in ("adaptation.mode", "elasticBatch", "maxReplicas")), reason
