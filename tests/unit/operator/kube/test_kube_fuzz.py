"""Whatever a tenant writes into its objects, the operator sees, plans and measures; other jobs do not notice.

The API server refuses much of it. It guarantees only which object it is: namespace, name, UID, versions, creation time.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweeps
from espalier_core.files.documents import dumps
from espalier_core.k8s import resources
from espalier_core.k8s.resources import Listing, Resource
from espalier_core.types.report import Metric, TrainerPhase
from espalier_operator.job.state import Grant, JobState
from espalier_operator.job.view import memory_of
from espalier_operator.kube.apply.steps import steps
from espalier_operator.kube.backend import KubeBackend
from espalier_operator.kube.metrics.exporter import OperatorMetrics
from espalier_operator.kube.metrics.measurements import measurements
from espalier_operator.kube.metrics.series import owner
from espalier_operator.kube.objects.events import events
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.snapshot import seen_by_operator
from espalier_operator.kube.watch.store import Store
from espalier_operator.model import JobFacts, WorkerRole
from espalier_operator.model.actions import NoticeReclaim
from espalier_operator.planner import plan
from espalier_operator.policies.memory import RecentUse
from espalier_operator.policies.settings import configured
from operator_world.kube_known import Clock
from operator_world.kube_objects import (
    EPOCH,
    Raw,
    adaptation,
    at,
    kube_job,
    raw_job,
    raw_node,
    raw_report,
    raw_worker,
    report,
    template,
    time_at,
)
from operator_world.kube_strategies import mutated

SETTINGS = KubeSettings()
NOW = EPOCH + 30
IDENTITY = ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp")
Objects = tuple[tuple[Resource, Raw], ...]


def objects_of(name: str) -> Objects:
    """Return a job that trains with an extra worker: itself, its pods and its report."""
    spec = {
        "maxReplicas": 3,
        "priorityClassName": "p",
        "template": template({"env": [{"name": "A", "value": "b"}]}, nodeSelector={"a": "b"}),
    }
    uid = f"uid-of-{name}"
    job = kube_job(name, spec, uid=uid)
    state = JobState(
        submitted_at=EPOCH,
        admitted_at=EPOCH,
        gpu_type="",
        attempts=(0,),
        incarnations=(f"uid-of-{name}-base-0-0",),
        extra=1,
        extra_generation=2,
        granted_at=EPOCH + 1,
        counted_until=EPOCH + 20,
        grant=Grant(generation=2, replicas=2, gpus=2, reason="ExtraGPUsGranted"),
    )
    status = memory_of(state, job.terms).model_dump(mode="json", by_alias=True, exclude_none=True)
    leader = raw_worker(job, node=f"node-of-{name}")
    document = {"allocation": {"generation": 2, "replicas": 2}, "job": f"ns/{name}"}
    leader["metadata"]["annotations"] = {"espalier.dev/allocation": json.dumps(document)}
    leader["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "reason": "", "message": "m"}]
    extra = raw_worker(job, 0, 2, role=WorkerRole.EXTRA, node=f"node-of-{name}")
    told = report(
        f"uid-of-{name}-base-0-0",
        at=EPOCH + 10,
        step=5,
        epoch=1,
        used_seconds=10,
        metrics=(Metric(name="loss", value=0.5),),
        adaptations=(adaptation(),),
    )
    written = raw_report(job, told.model_copy(update={"job": f"ns/{name}"}))
    written["metadata"]["managedFields"] = [{"manager": "m", "time": time_at(EPOCH + 10)}]
    made = {**raw_job(name, spec, uid=uid), "status": status}
    return ((resources.JOBS, made), (resources.PODS, leader), (resources.PODS, extra), (resources.CONFIG_MAPS, written))


GOOD, BAD = objects_of("good"), objects_of("bad")
NODES: Objects = tuple((resources.NODES, raw_node(f"node-of-{name}", 2)) for name in ("good", "bad"))


@st.composite
def strange(draw: st.DrawFn, whole: Objects) -> Objects:
    """Some of the objects with a few parts missing, null, of another kind, or doubled, but for who they are."""
    made = []
    for resource, raw in whole:
        if draw(st.booleans()):
            made.append((resource, raw))
            continue
        found = draw(mutated(raw))
        if resource is resources.CONFIG_MAPS and draw(st.booleans()):
            document = draw(mutated(json.loads(raw["data"]["report.json"])))
            found = {**copy.deepcopy(raw), "data": {"report.json": json.dumps(document)}}
        own = raw["metadata"]
        metadata = found.get("metadata") if isinstance(found.get("metadata"), dict) else {}
        identity = {key: own[key] for key in IDENTITY if key in own}
        made.append((resource, {**found, "metadata": {**cast("Raw", metadata), **identity}}))
    return tuple(made)


def lists_of(*objects: Objects) -> dict[Resource, Listing]:
    kinds = (
        *(resources.NODES, resources.PODS, resources.JOBS, resources.CONFIG_MAPS),
        *(resources.PRIORITY_CLASSES, resources.QUEUES),
    )
    found = [(resource, at(1, raw)) for group in objects for resource, raw in group]
    found.append((resources.PRIORITY_CLASSES, priority_class(1)))
    return {kind: Listing([raw for of, raw in found if of is kind], 1) for kind in kinds}


def priority_class(version: int) -> Raw:
    return {"metadata": {"name": "p", "resourceVersion": str(version)}, "value": version}


def facts_of_good(jobs: tuple[JobFacts, ...]) -> list[JobFacts]:
    return [facts for facts in jobs if facts.key == "ns/good"]


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """What is left out is logged, hundreds of times here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


ALONE = seen_by_operator(lists_of(NODES, GOOD), NOW, SETTINGS).snapshot


def test_the_good_job_trains() -> None:
    """Otherwise the tests below would show nothing."""
    (facts,) = facts_of_good(ALONE.jobs)
    assert facts.training
    assert [worker.name for worker in ALONE.workers] == ["ns/good-base-0-0", "ns/good-extra-0-2"]
    assert len(seen_by_operator(lists_of(NODES, GOOD, BAD), NOW, SETTINGS).snapshot.jobs) == 2


@settings(max_examples=sweeps.examples(150))
@given(strange(BAD))
def test_an_operator_that_starts_plans_with_any_objects_of_a_tenant(bad: Objects) -> None:
    seen = seen_by_operator(lists_of(NODES, GOOD, bad), NOW, SETTINGS)
    plan(seen.snapshot, configured(SETTINGS.policy), NOW)
    assert facts_of_good(seen.snapshot.jobs) == list(ALONE.jobs)
    assert [worker for worker in seen.snapshot.workers if worker.job == "ns/good"] == list(ALONE.workers)
    assert "ns/good" not in seen.left_out


@settings(max_examples=sweeps.examples(100))
@given(st.lists(st.tuples(strange(BAD), st.sampled_from(("MODIFIED", "MODIFIED", "MODIFIED", "DELETED"))), max_size=3))
def test_an_operator_that_runs_sees_plans_and_measures_whatever_changes(turns: list[tuple[Objects, str]]) -> None:
    """Each turn changes all objects of the bad job; all that is decided, written and measured follows from it."""
    asyncio.run(_live(turns))


async def _live(turns: list[tuple[Objects, str]]) -> None:
    clock, metrics = Clock(NOW), OperatorMetrics(lambda: NOW)
    store = Store(SETTINGS, clock.now)
    for resource, listed in lists_of(NODES, GOOD, BAD).items():
        store.replace(resource, listed.items, 1)
    backend = KubeBackend(
        store, cast("Any", None), SETTINGS, clock, SETTINGS.rules, metrics.signals, lambda: None, RecentUse(3600.0)
    )
    for version, (bad, event) in enumerate([((), "MODIFIED"), *turns], start=2):
        clock.time += 5
        for resource, raw in bad:
            later = at(version, raw)
            later["metadata"]["generation"] = version
            store.take(resource, event, later)
        store.take(resources.PRIORITY_CLASSES, "MODIFIED", priority_class(version))
        store.all_listed()
        snapshot = await backend.observe()
        planned = plan(snapshot, configured(SETTINGS.policy), clock.time)
        assert [facts.training for facts in facts_of_good(snapshot.jobs)] == [True]
        for action in planned.actions:
            # Another job may need a GPU that is lent to it.
            assert action.job != "ns/good" or isinstance(action, NoticeReclaim), action
            await backend.apply(action)
        for job in backend.jobs.values():
            status, before = job.status(clock.time), job.written
            json.dumps(status.model_dump(mode="json", by_alias=True, exclude_none=True), allow_nan=False)
            happened = [*measurements(before, status, owner(job))]
            metrics.add(happened)
            events(before, status)
            if job.job is not None:
                steps(job.job, job.state, job.pods, job.placement, status, clock.time, SETTINGS)
            job.plan_ahead(status, clock.time)
            job.wrote(status, None, clock.time)
        metrics.look(backend.live(), snapshot, store.received_at, store.misattributed(), store.reports.unread())
        assert metrics.text(leads=True)
    await backend.close(0.0)


@given(mutated(json.loads(dumps(report("uid", TrainerPhase.TRAINING, adaptations=(adaptation(),))))))
def test_a_report_of_any_content_is_read_or_its_problem_is_named(document: Any) -> None:
    store = Store(SETTINGS, lambda: NOW)
    store.take(resources.JOBS, "ADDED", at(1, GOOD[0][1]))
    written = GOOD[3][1]
    store.take(resources.CONFIG_MAPS, "ADDED", at(2, {**written, "data": {"report.json": json.dumps(document)}}))
    found = store.reports.of(store.job("uid-of-good").ref)
    assert (found.report is None) == bool(found.problem)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 20_000, "9" * 100_000, '"\\ud800"', "\x00", "NaN", "1e999"])
def test_texts_that_break_parsers_are_no_reports_and_no_allocations(text: str) -> None:
    job, leader, extra, written = (copy.deepcopy(raw) for _, raw in BAD)
    leader["metadata"]["annotations"] = {"espalier.dev/allocation": text}
    written["data"] = {"report.json": text}
    kinds = (resource for resource, _ in BAD)
    bad = tuple(zip(kinds, (job, leader, extra, written), strict=True))
    seen = seen_by_operator(lists_of(NODES, GOOD, bad), NOW, SETTINGS)
    plan(seen.snapshot, configured(SETTINGS.policy), NOW)
    assert facts_of_good(seen.snapshot.jobs) == list(ALONE.jobs)
    assert len(seen.snapshot.jobs) == 2
