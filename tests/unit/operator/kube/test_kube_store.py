"""What is known of the cluster: events and lists in any order, and what follows from them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.k8s import resources
from espalier_core.types.report import TrainerPhase
from espalier_operator.kube.objects.jobs import InvalidJob, KubeJob
from espalier_operator.kube.objects.names import JobRef
from espalier_operator.kube.objects.template import require_node
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.snapshot import assemble
from espalier_operator.kube.watch.indexer import Indexer
from espalier_operator.kube.watch.nodes import UnreachablePods
from espalier_operator.kube.watch.store import Store
from espalier_operator.model import Rules, Worker, WorkerRole
from operator_world.kube_known import Known
from operator_world.kube_objects import (
    EPOCH,
    at,
    kube_job,
    raw_job,
    raw_node,
    raw_report,
    raw_stranger,
    raw_worker,
    report,
    template,
    terminated,
    time_at,
)

Raw = dict[str, Any]
ONE = JobRef("ns", "one", "uid-1")


def thing(name: str, value: str, version: int) -> Raw:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "value": value}


class Seen:
    """A indexer of values, with what it said of changes."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str | None, str | None]] = []
        self.indexer: Indexer[str] = Indexer(lambda raw, _: raw["value"], lambda *change: self.told.append(change))


# ---- one kind


def test_the_newest_word_counts_whatever_comes_last() -> None:
    """An old event after a new list, an old list after a new event."""
    seen = Seen()
    seen.indexer.put(thing("a", "new", 5))
    seen.indexer.put(thing("a", "old", 4))
    seen.indexer.put(thing("a", "same", 5))
    assert seen.told == [("a", None, "new")]
    seen.indexer.replace([thing("a", "older", 3)], 3)
    assert seen.indexer.get("a") == "new"
    assert seen.indexer.listed_version == 3


@pytest.mark.parametrize("paged", [False, True])
def test_a_list_removes_what_is_older_and_keeps_what_is_younger(paged: bool) -> None:
    """What was made after the list was taken is not in it; also where it was put page by page."""
    seen = Seen()
    for raw in (thing("ghost", "x", 2), thing("young", "y", 9), *([thing("kept", "z", 1)] if paged else [])):
        seen.indexer.put(raw)
    before = len(seen.told)
    seen.indexer.replace([] if paged else [thing("kept", "z", 1)], 5, put=["kept"] if paged else [])
    assert sorted(seen.indexer.values()) == ["y", "z"]
    assert [change for change in seen.told[before:] if change[0] != "kept"] == [("ghost", "x", None)]
    assert seen.indexer.listed_version == 5


def test_what_went_is_not_brought_back_by_an_older_list_or_event() -> None:
    """A younger one of the same name is another."""
    seen = Seen()
    seen.indexer.put(thing("a", "x", 2))
    seen.indexer.drop("a", 6)
    seen.indexer.put(thing("a", "x", 4))
    seen.indexer.replace([thing("a", "x", 4)], 5)
    assert seen.indexer.get("a") is None
    seen.indexer.put(thing("a", "again", 7))
    assert seen.indexer.get("a") == "again"
    seen.indexer.drop("a", 6)
    assert seen.indexer.get("a") == "again", "that was the end of the one before"


def test_an_object_nobody_has_heard_of_is_not_known_to_be_gone() -> None:
    """Until a list as young as the question lacks it."""
    seen = Seen()
    assert not seen.indexer.is_gone("a", 3)
    seen.indexer.replace([], 2)
    assert not seen.indexer.is_gone("a", 3)
    seen.indexer.replace([], 3)
    assert seen.indexer.is_gone("a", 3)
    seen.indexer.put(thing("a", "x", 4))
    assert not seen.indexer.is_gone("a", 3)
    seen.indexer.drop("a", 5)
    assert seen.indexer.is_gone("a", 9)


@given(st.data())
def test_in_whatever_order_events_and_lists_come_the_end_is_the_truth(data: st.DataObject) -> None:
    """A history of three objects, told by events in disorder and by lists taken at any time, then by a last list."""
    truth: dict[str, tuple[str, int]] = {}
    words: list[tuple[str, Any]] = []
    for version in range(1, data.draw(st.integers(1, 12)) + 1):
        name = data.draw(st.sampled_from("abc"))
        if name in truth and data.draw(st.booleans()):
            del truth[name]
            words.append(("drop", (name, version)))
        else:
            truth[name] = (f"{name}{version}", version)
            words.append(("put", thing(name, f"{name}{version}", version)))
        if data.draw(st.booleans()):
            words.append(("list", ([thing(n, v, r) for n, (v, r) in truth.items()], version)))
    last = len([kind for kind, _ in words if kind != "list"])
    seen = Seen()
    for kind, word in data.draw(st.permutations(words)):
        if kind == "put":
            seen.indexer.put(word)
        elif kind == "drop":
            seen.indexer.drop(*word)
        else:
            seen.indexer.replace(*word)
    seen.indexer.replace([thing(n, v, r) for n, (v, r) in truth.items()], last)
    assert dict(seen.indexer.mapping()) == {name: value for name, (value, _) in truth.items()}
    assert all(before != after for _, before, after in seen.told)


# ---- all kinds


class World(Known):
    """A store with its notes."""

    def __init__(self) -> None:
        super().__init__(changed=self._count_change, doubted=self._count_doubt)
        self.changes = self.doubts = 0

    def _count_change(self) -> None:
        self.changes += 1

    def _count_doubt(self) -> None:
        self.doubts += 1


@pytest.fixture
def world() -> World:
    return World()


def test_the_world_is_unknown_until_every_kind_was_listed(world: World) -> None:
    kinds = (
        *(resources.NODES, resources.PODS, resources.JOBS, resources.CONFIG_MAPS),
        *(resources.PRIORITY_CLASSES, resources.QUEUES),
    )
    world.take(resources.NODES, raw_node())
    for number, kind in enumerate(kinds):
        assert len(world.store.unknown()) == len(kinds) - number
        world.store.replace(kind, [], 1)
    assert world.store.unknown() == []


def test_a_job_is_parsed_again_only_when_its_specification_changed(world: World) -> None:
    first = world.take(resources.JOBS, raw_job())
    seen = world.store.job("uid-1")
    assert world.store.take_changed() == {"uid-1"}
    world.take(resources.JOBS, {**first, "status": {"phase": "Running"}})
    assert world.store.job("uid-1").parsed is seen.parsed
    assert (world.store.take_changed(), world.store.overwritten) == (set(), {"uid-1"})
    changed = raw_job(spec={"suspend": True})
    changed["metadata"]["generation"] = 2
    world.take(resources.JOBS, changed)
    assert world.store.take_changed() == {"uid-1"}
    assert isinstance(world.store.job("uid-1").parsed, KubeJob)


def test_extra_workers_have_their_job_s_class_where_that_is_lower(world: World) -> None:
    """kube-scheduler evicts the lowest first, and base workers are the last to go."""

    def classes(version: int, **values: int) -> None:
        items = [
            {"metadata": {"name": name, "resourceVersion": str(version)}, "value": value}
            for name, value in values.items()
        ]
        world.store.replace(resources.PRIORITY_CLASSES, items, version)

    def has_lower_class(uid: str) -> bool:
        return world.store.job(uid).parsed.has_lower_class

    classes(10, low=-5, high=5)
    worker = {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    inside = {"spec": {"priorityClassName": "low", "containers": [worker]}}
    world.take(resources.JOBS, raw_job("low", {"priorityClassName": "low"}))
    world.take(resources.JOBS, raw_job("high", {"priorityClassName": "high"}, uid="uid-2"))
    world.take(resources.JOBS, raw_job("none", uid="uid-3"))
    world.take(resources.JOBS, raw_job("inside", {"template": inside}, uid="uid-4"))
    assert [has_lower_class(f"uid-{number}") for number in (1, 2, 3, 4)] == [True, False, False, True]
    classes(11, low=-5, high=5, **{"espalier-extra": 7})
    assert [has_lower_class(f"uid-{number}") for number in (1, 2, 3, 4)] == [True, True, False, True]


def test_a_priority_class_that_comes_or_goes_makes_its_jobs_be_read_again(world: World) -> None:
    def value(number: int) -> Raw:
        return {"metadata": {"name": "high"}, "value": number}

    world.store.replace(resources.PRIORITY_CLASSES, [], 0)
    world.take(resources.JOBS, raw_job("named", {"priorityClassName": "high"}))
    world.take(resources.JOBS, raw_job("other", uid="uid-2"))

    def parsed() -> Any:
        return world.store.job("uid-1").parsed

    assert isinstance(parsed(), InvalidJob)
    world.store.take_changed()
    world.take(resources.PRIORITY_CLASSES, value(7))
    assert parsed().terms.priority == 7
    assert world.store.take_changed() == {"uid-1"}
    world.take(resources.PRIORITY_CLASSES, value(8))
    assert parsed().terms.priority == 8
    world.take(resources.PRIORITY_CLASSES, value(8), "DELETED")
    assert isinstance(parsed(), InvalidJob)


def test_a_job_is_read_again_when_the_limit_ranges_of_its_namespace_change(world: World) -> None:
    """What its containers request by default binds its workers to nodes, and counts for quotas."""
    world.take(resources.JOBS, raw_job("one"))
    world.take(resources.JOBS, raw_job("own", {"template": template()}, uid="uid-2"))

    def cpu() -> list[int | None]:
        jobs = [world.store.job(uid) for uid in ("uid-1", "uid-2")]
        return [dict(job.parsed.terms.constraints.requests).get("cpu") for job in jobs]

    def limit_range(name: str, namespace: str = "ns", **requests: str) -> Raw:
        limit = {"type": "Container", "defaultRequest": requests}
        return {"metadata": {"name": name, "namespace": namespace}, "spec": {"limits": [limit]}}

    assert cpu() == [None, None]
    world.store.take_changed()
    world.take(resources.LIMIT_RANGES, limit_range("theirs", "else", cpu="9"))
    assert world.store.take_changed() == set()
    world.take(resources.LIMIT_RANGES, limit_range("first", cpu="2"))
    assert world.store.take_changed() == {"uid-1", "uid-2"}
    assert cpu() == [2000, 2000]
    world.take(resources.LIMIT_RANGES, limit_range("second", cpu="3"))
    assert cpu() == [3000, 3000]
    world.take(resources.LIMIT_RANGES, limit_range("second", cpu="3"), "DELETED")
    going = raw_job("own", {"template": template()}, uid="uid-2")
    going["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    world.take(resources.JOBS, going)
    world.take(resources.LIMIT_RANGES, limit_range("first", cpu="1"))
    assert [world.store.job(uid).deleting for uid in ("uid-1", "uid-2")] == [False, True]
    world.take(resources.LIMIT_RANGES, limit_range("first"))
    assert cpu() == [None, None]


def test_our_pods_are_filed_by_job_and_others_as_foreign(world: World) -> None:
    world.take(resources.PODS, raw_worker(kube_job()))
    stranger = world.take(resources.PODS, raw_stranger())
    world.take(resources.PODS, raw_stranger("poor", {}))
    assert list(world.store.pods_by_job[ONE]) == ["ns/one-base-0-0"]
    assert list(world.store.foreign_workers) == ["ns/stranger"]
    world.take(resources.PODS, stranger, "DELETED")
    assert world.store.foreign_workers == {}


def test_jobs_of_another_operator_are_ignored() -> None:
    """Each job is one operator's: the default one's if it names none."""

    def known(settings: KubeSettings) -> set[str]:
        store = Store(settings)
        store.take(resources.JOBS, None, at(1, raw_job("plain", uid="uid-1")))
        second = raw_job("second", {"controllerName": "example.com/second"}, uid="uid-2")
        store.take(resources.JOBS, None, at(2, second))
        return set(store.jobs.mapping())

    assert known(KubeSettings()) == {"ns/plain"}
    assert known(KubeSettings(controller_name="example.com/second")) == {"ns/second"}


def test_workers_of_another_operator_keep_the_node_that_was_chosen_for_them(world: World) -> None:
    """Whether they are bound yet or not; without a node they want nothing of us."""

    def seen() -> Worker | None:
        world.take(resources.PODS, raw)
        found = assemble([], world.store, EPOCH, Rules()).workers
        world.remove(resources.PODS, raw)
        return next(iter(found), None)

    raw = raw_worker(kube_job(), node=None, phase="Pending", state={})
    assert seen() is None
    require_node(raw["spec"], "n1")
    waits = seen()
    assert (waits.role, waits.node, waits.pinned_to, waits.is_rival) == (WorkerRole.FOREIGN, None, "n1", True)
    raw["spec"]["nodeName"] = "n1"
    bound = seen()
    assert (bound.role, bound.node, bound.pinned_to, bound.is_rival) == (WorkerRole.FOREIGN, "n1", None, True)
    raw["spec"]["nodeName"], raw["spec"]["schedulingGates"] = "", [{"name": "later"}]
    assert seen() is None


def test_a_pod_event_that_says_nothing_new_wakes_nobody(world: World) -> None:
    pod = world.take(resources.PODS, raw_worker(kube_job()))
    world.store.take_changed()
    changes = world.changes
    world.take(resources.PODS, {**pod, "metadata": {**pod["metadata"], "managedFields": []}})
    assert (world.changes, world.store.take_changed()) == (changes, set())


def test_a_pod_of_ours_that_is_watched_no_more_stays_until_somebody_has_looked(world: World) -> None:
    job = kube_job()
    running = world.take(resources.PODS, raw_worker(job))
    world.take(resources.PODS, running, "DELETED")
    assert "ns/one-base-0-0" in world.store.pods_by_job[ONE]
    assert world.doubts == 1
    ((pod, version),) = world.store.doubtful.values()
    ended = at(version, raw_worker(job, phase="Failed"))
    world.store.settle(pod, version, ended)
    assert world.store.pods_by_job[ONE]["ns/one-base-0-0"].phase == "Failed"
    assert world.store.doubtful == {}
    world.store.doubt(world.store.pods_by_job[ONE]["ns/one-base-0-0"], version)
    world.store.settle(world.store.pods_by_job[ONE]["ns/one-base-0-0"], version, None)
    assert ONE not in world.store.pods_by_job


@pytest.mark.parametrize("news", ["watch", "batch", "look", "list"])
def test_the_end_of_a_worker_outlives_its_pod_until_it_is_recorded(world: World, news: str) -> None:
    """Whoever tells that the pod is gone, and though its end and its deletion come as one."""
    job, key = kube_job(), "ns/one-base-0-0"
    world.take(resources.JOBS, raw_job())
    world.take(resources.PODS, raw_worker(job))
    end = raw_worker(job, phase="Failed", state=terminated(1))
    if news == "batch":
        world.take(resources.PODS, end, "DELETED")
    else:
        seen = world.take(resources.PODS, end)
        pod = world.store.pods_by_job[ONE][key]
        if news == "watch":
            world.take(resources.PODS, seen, "DELETED")
        elif news == "look":
            world.store.doubt(pod, int(pod.resource_version))
            world.store.settle(pod, int(pod.resource_version), None)
        else:
            world.store.replace(resources.PODS, (), 99)
    (left,) = world.store.pods_of(ONE)
    assert (left.gone, left.ended, left.exit_code) == (True, True, 1)
    assert world.store.pods.get(key) is None
    world.store.forget([left])
    assert not world.store.pods_of(ONE)


def test_a_worker_that_had_ended_before_it_was_deleted_was_not_ended_from_outside(world: World) -> None:
    """Finalizers of others may keep its pod; the order of events tells, and no clock."""
    job = kube_job()
    world.take(resources.JOBS, raw_job())
    end = world.take(resources.PODS, raw_worker(job, phase="Succeeded", state=terminated(0)))
    for _ in range(2):
        end["metadata"]["deletionTimestamp"] = time_at(EPOCH + 10)
        end = world.take(resources.PODS, end)
        (pod,) = world.store.pods_of(ONE)
        assert (pod.deleting, pod.ended_first) == (True, True)
    world.take(resources.PODS, end, "DELETED")
    (pod,) = world.store.pods_of(ONE)
    assert (pod.gone, pod.ended_first) == (True, True)
    world.take(resources.PODS, raw_worker(job, 1))
    asked = world.take(resources.PODS, raw_worker(job, 1, deleted_at=EPOCH + 10))
    world.take(resources.PODS, {**asked, "status": end["status"]})
    stopped = world.store.pods_by_job[ONE]["ns/one-base-1-0"]
    assert (stopped.done, stopped.ended_first) == (True, False), "it ended as it was asked to"


def test_what_is_left_of_a_job_s_pods_goes_with_it(world: World) -> None:
    job = world.take(resources.JOBS, raw_job())
    end = world.take(resources.PODS, raw_worker(kube_job(), phase="Succeeded", state=terminated(0)))
    world.take(resources.PODS, end, "DELETED")
    world.take(resources.JOBS, job, "DELETED")
    assert world.store.pods_by_job == {}
    end = world.take(resources.PODS, raw_worker(kube_job(), phase="Succeeded", state=terminated(0)))
    world.take(resources.PODS, end, "DELETED")
    assert world.store.pods_by_job == {}, "nobody waits for the end of a worker without a job"


def test_a_pod_that_was_looked_up_and_is_gone_is_not_brought_back_by_a_late_answer(world: World) -> None:
    """The answer to its deletion may come after the news of its end."""
    job = kube_job()
    running = world.take(resources.PODS, raw_worker(job))
    deleting = world.versioned(raw_worker(job, deleted_at=EPOCH))
    world.remove(resources.PODS, running)
    world.store.pods.put(deleting)
    assert world.store.pods_by_job == {}


def test_nodes_that_nobody_has_heard_of_count_as_ready_until_a_list_lacks_them(world: World) -> None:
    """Pods' events may overtake those of their nodes."""
    world.take(resources.PODS, raw_worker(kube_job(), node="new"))
    pods = list(world.store.pods_by_job[ONE].values())
    assert world.store.reach_of(pods, EPOCH) == UnreachablePods()
    world.store.replace(resources.NODES, [], 50)
    assert world.store.reach_of(pods, EPOCH) == UnreachablePods(lost=frozenset({pods[0].uid}))


def test_a_node_that_falls_silent_is_news_to_the_jobs_on_it(world: World) -> None:
    world.take(resources.NODES, raw_node("here"))
    world.take(resources.PODS, raw_worker(kube_job(), node="here"))
    world.take(resources.PODS, raw_worker(kube_job("two", uid="uid-2"), node="there"))
    world.store.take_changed()
    world.take(resources.NODES, raw_node("here", ready="Unknown"))
    assert world.store.take_changed() == {"uid-1"}
    (pod,) = world.store.pods_by_job[ONE].values()
    assert world.store.reach_of([pod], EPOCH).silent == {pod.uid}, "all nodes are silent: the only one"
    world.take(resources.NODES, raw_node("well"))
    assert world.store.take_changed() == {"uid-1"}, "now it is this node that is ill"
    assert world.store.reach_of([pod], EPOCH).lost == {pod.uid}
    world.take(resources.NODES, raw_node("here", gpus=1, ready="Unknown"))
    assert world.store.take_changed() == set(), "how many GPUs it has is news to the planner only"


def test_reports_are_heard_only_from_the_job_s_own_config_map(world: World) -> None:
    job = kube_job()
    world.take(resources.JOBS, raw_job())
    said = raw_report(job, report("leader"))
    for forged in (
        {**said, "metadata": {**said["metadata"], "ownerReferences": []}},
        {**said, "metadata": {**said["metadata"], "name": "another"}},
    ):
        world.take(resources.CONFIG_MAPS, forged)
    assert world.store.reports.of(ONE) is None
    world.take(resources.CONFIG_MAPS, said)
    assert world.store.take_reported() == {"uid-1"}
    world.take(resources.CONFIG_MAPS, said)
    assert world.store.take_reported() == set(), "the same words are no news"
    world.take(resources.CONFIG_MAPS, said, "DELETED")
    assert world.store.reports.of(ONE) is not None, "its last word counts while the job is there"
    world.take(resources.JOBS, raw_job(), "DELETED")
    assert world.store.reports.of(ONE) is None


def test_a_job_of_the_same_name_is_another_job(world: World) -> None:
    world.take(resources.JOBS, raw_job())
    world.store.take_changed()
    world.take(resources.JOBS, raw_job(uid="uid-2"))
    assert world.store.take_changed() == {"uid-1", "uid-2"}
    assert world.store.job("uid-1") is None


@pytest.mark.parametrize("change", [{"namespace": "evil"}, {"name": "two"}, {"namespace": "evil", "name": "two"}])
def test_what_claims_the_job_of_another_tenant_is_left_out_and_counted(world: World, change: dict[str, str]) -> None:
    """Nothing of it is seen by the job: neither its pods, nor its report, nor that anything happened."""
    owner = {"name": "one", **{key: value for key, value in change.items() if key == "name"}}

    def claims(raw: Raw, name: str) -> Raw:
        reference = {**raw["metadata"]["ownerReferences"][0], **owner}
        place = {"namespace": change.get("namespace", "ns"), "name": name}
        return {
            **raw,
            "metadata": {**raw["metadata"], **place, "ownerReferences": [reference], "uid": f"forged-{name}"},
        }

    job = kube_job()
    world.take(resources.JOBS, raw_job())
    world.take(resources.PODS, raw_worker(job))
    world.take(resources.CONFIG_MAPS, raw_report(job, report("leader")))
    world.store.take_changed()
    world.store.take_reported()
    before = (list(world.store.pods_of(ONE)), world.store.reports.of(ONE))
    forged = claims(raw_worker(job, state=terminated(2), phase="Failed"), f"{owner['name']}-base-0-0")
    words = claims(raw_report(job, report("leader", TrainerPhase.COMPLETED)), f"{owner['name']}-report")
    world.take(resources.PODS, forged)
    world.take(resources.CONFIG_MAPS, words)
    assert (list(world.store.pods_of(ONE)), world.store.reports.of(ONE)) == before
    assert (world.store.take_changed(), world.store.take_reported()) == (set(), set())
    assert world.store.misattributed() == {"pods": 1, "configmaps": 1}
    world.take(resources.CONFIG_MAPS, words, "DELETED")
    world.take(resources.PODS, forged, "DELETED")
    assert (list(world.store.pods_of(ONE)), world.store.reports.of(ONE)) == before
    assert world.store.misattributed() == {"pods": 0, "configmaps": 0}


def test_a_forged_pod_on_a_node_holds_its_gpus(world: World) -> None:
    """Whoever made it: kube-scheduler has given them to it."""
    job = kube_job()
    world.take(resources.JOBS, raw_job())
    forged = raw_worker(job)
    forged["metadata"]["namespace"] = "evil"
    world.take(resources.PODS, forged)
    snapshot = assemble([], world.store, EPOCH, Rules())
    assert [(worker.name, worker.role, worker.node, worker.gpus) for worker in snapshot.workers] == [
        ("evil/one-base-0-0", WorkerRole.FOREIGN, "node", 1)
    ]


def test_what_pods_of_others_take_of_a_node_is_counted_while_they_are_there(world: World) -> None:
    """Those without GPUs too; workers of our jobs are the planner's own business."""

    def used() -> dict[str, int]:
        return dict(world.store.planned_nodes["node"].used)

    world.take(resources.NODES, raw_node("node"))
    web, changes = raw_stranger("web", {"requests": {"cpu": "500m"}}), world.changes
    world.take(resources.PODS, web)
    assert (used(), world.changes) == ({"cpu": 500, "pods": 1}, changes + 1)
    world.take(resources.PODS, {**web, "metadata": {**web["metadata"], "labels": {"new": "one"}}})
    assert world.changes == changes + 1
    worker = world.take(resources.PODS, raw_worker(kube_job()))
    assert used() == {"cpu": 500, "pods": 2}, "its job may be another operator's"
    job = world.take(resources.JOBS, raw_job())
    assert used() == {"cpu": 500, "pods": 1}
    world.take(resources.PODS, {**worker, "metadata": {**worker["metadata"], "labels": {"new": "one"}}})
    assert used() == {"cpu": 500, "pods": 1}
    world.take(resources.JOBS, job, "DELETED")
    assert used() == {"cpu": 500, "pods": 2}
    world.take(resources.JOBS, job)
    assert used() == {"cpu": 500, "pods": 1}
    world.take(resources.PODS, {**web, "status": {"phase": "Succeeded"}})
    assert used() == {}
    world.take(resources.PODS, web)
    world.take(resources.PODS, web, "DELETED")
    assert used() == {}
    world.take(resources.PODS, web)
    world.store.replace(resources.PODS, [], 10**6)
    assert used() == {}
