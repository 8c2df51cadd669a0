"""What Events about a pod say of why its node does not start it, and when they are asked for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.k8s.errors import Status
from espalier_core.k8s.resources import Listing
from espalier_core.types.reasons import Reason
from espalier_operator.job.state import JobState
from espalier_operator.kube.client import ApiRefusalError
from espalier_operator.kube.objects.events import StartTrouble, told, trouble_in, trouble_without_events
from espalier_operator.kube.objects.pods import Pod, parse_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.start_events import AFTER, AT_ONCE, EVERY, FORBIDDEN_SECONDS, StartEvents
from espalier_operator.kube.state.workers import JobPods, extra_runs_by
from espalier_operator.model import JobFacts
from espalier_operator.planner.lifecycle import ending
from operator_world.kube_looks import facts_of, look, observed
from operator_world.kube_objects import EPOCH, kube_job, raw_worker, time_at

SETTINGS = KubeSettings()
JOB = kube_job("one", {"minReplicas": 1, "maxReplicas": 2, "preRunningDeadlineSeconds": 60})
NOT_PREPARED = {"type": "PodReadyToStartContainers", "status": "False"}
CREATING = {"waiting": {"reason": "ContainerCreating"}}
SECRET = 'MountVolume.SetUp failed for volume "keys" : secret "keys" not found'
SUMMARY = "Unable to attach or mount volumes: unmounted volumes=[keys]: timed out waiting for the condition"


def event(reason: str, message: str = "", at: float = EPOCH, **more: Any) -> dict[str, Any]:
    return {"reason": reason, "message": message, "lastTimestamp": time_at(at), **more}


def waiting(**changes: Any) -> Pod:
    given: dict[str, Any] = {"conditions": [NOT_PREPARED], "state": CREATING, "phase": "Pending", "uid": "leader"}
    return parse_pod(raw_worker(JOB, **{**given, **changes}), SETTINGS)


@pytest.mark.parametrize(
    ("reason", "message", "expected", "refused", "by_node"),
    [
        ("FailedMount", SECRET, Reason.VOLUME_UNAVAILABLE, True, False),
        ("FailedMount", '[configmap "a" not found, secret "b" not found]', Reason.VOLUME_UNAVAILABLE, True, False),
        ("FailedMount", "references non-existent config key: c.json", Reason.VOLUME_UNAVAILABLE, True, False),
        ("FailedMount", "mount failed: exit status 32: Connection timed out", Reason.VOLUME_UNAVAILABLE, False, False),
        (
            "FailedMount",
            "driver name nfs.csi.k8s.io not found in the list of registered CSI drivers",
            *(Reason.VOLUME_UNAVAILABLE, False, True),
        ),
        ("FailedAttachVolume", "Multi-Attach error for volume", Reason.VOLUME_UNAVAILABLE, False, False),
        ("FailedCreatePodSandBox", "plugin type=calico failed", Reason.POD_REJECTED, False, True),
        ("FailedPrepareDynamicResources", "no driver", Reason.POD_REJECTED, False, True),
    ],
)
def test_the_reason_and_the_message_of_an_event(
    reason: str, message: str, expected: Reason, refused: bool, by_node: bool
) -> None:
    said = StartTrouble(reason=expected, message=f"{reason}: {message}", refused=refused, by_node=by_node)
    assert trouble_in([event("Scheduled", "on n1", EPOCH + 9), event(reason, message)]) == said


def test_the_newest_event_counts_and_one_with_a_cause_before_a_summary() -> None:
    secret, summary = event("FailedMount", SECRET), event("FailedMount", SUMMARY, EPOCH + 100)
    for events in ([secret, summary], [summary, secret]):
        found = trouble_in(events)
        assert found.message == f"FailedMount: {SECRET}"
    late = trouble_in([secret, event("FailedMount", SUMMARY, EPOCH + 500)])
    assert SUMMARY in late.message, "the other one has passed"
    assert trouble_in([event("FailedAttachVolume"), event("SuccessfulAttachVolume", at=EPOCH + 1)]) is None
    assert trouble_in([event("Pulling", at=EPOCH + 5), event("FailedCreatePodSandBox")]) is None
    series = {"lastTimestamp": None, "series": {"lastObservedTime": time_at(EPOCH + 9)}}
    assert trouble_in([event("Pulling", at=EPOCH + 5), event("FailedMount", SECRET, **series)]) is not None
    assert trouble_in([]) is trouble_in([event("BackOff")]) is None


def test_the_message_does_not_change_with_each_try() -> None:
    text = "Failed to create pod sandbox: setup network for sandbox {}: no route"
    tries = [trouble_in([event("FailedCreatePodSandBox", text.format(each * 64))]) for each in "ab"]
    combined = trouble_in([event("FailedCreatePodSandBox", "(combined from similar events): " + text.format("c" * 64))])
    assert tries[0] == tries[1] == combined is not None


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(("reason", "message", "lastTimestamp", "series", "eventTime", "metadata")),
            st.sampled_from(("FailedMount", "Pulled", "now", time_at(EPOCH), None, 3, {}, {"lastObservedTime": "x"})),
        )
    )
)
def test_strange_events_are_read(events: list[Any]) -> None:
    found = trouble_in(events)
    assert found is None or found.reason is Reason.VOLUME_UNAVAILABLE


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"conditions": []}, True),
        ({"conditions": [{**NOT_PREPARED, "status": "True"}]}, False),
        ({"node": None}, False),
        ({"phase": "Running", "state": None}, False),
        ({"state": {"waiting": {"reason": "ErrImagePull"}}}, False),
        ({"state": {"terminated": {"exitCode": 1}}, "phase": "Failed"}, False),
    ],
)
def test_a_pod_awaits_its_node_until_that_has_prepared_it_or_says_what_is_amiss(changes: Any, expected: bool) -> None:
    """A kubelet without the condition does not say when it has: it may also pull an image."""
    assert waiting(**changes).awaits_node is expected


def test_without_events_the_conditions_of_the_pod_are_told() -> None:
    found = trouble_without_events(waiting())
    assert found.reason is Reason.STARTING
    assert found.message.startswith("node node has not mounted the volumes of pod one-base-0-0")
    assert trouble_without_events(waiting(conditions=[])) is None


# ---- what follows


def after_deadline(trouble: StartTrouble, *, trained: bool = False) -> Any:
    """What ends a job, and the facts by which."""
    state = JobState(admitted_at=EPOCH, attempts=(0,), incarnations=("leader",), trained=trained, down_since=EPOCH)
    pods = JobPods(base=(told(waiting(), trouble),))
    facts = replace(facts_of(JOB, state, EPOCH + 61, SETTINGS, pods), terms=JOB.terms)
    return ending(facts, EPOCH + 61, SETTINGS.rules), facts


def test_the_end_of_a_job_names_what_its_node_could_not_do() -> None:
    mount = StartTrouble(reason=Reason.VOLUME_UNAVAILABLE, message=f"FailedMount: {SECRET}")
    end, facts = after_deadline(mount)
    assert (end.reason, end.message) == (Reason.VOLUME_UNAVAILABLE, f"61 s after admission: FailedMount: {SECRET}")
    assert isinstance(facts, JobFacts)
    assert facts.trouble is Reason.VOLUME_UNAVAILABLE
    again, _ = after_deadline(mount, trained=True)
    assert (type(again).__name__, again.reason) == ("Requeue", Reason.VOLUME_UNAVAILABLE)
    unknown, _ = after_deadline(StartTrouble(reason=Reason.STARTING, message="node n has not"))
    assert unknown.reason is Reason.PRE_RUNNING_DEADLINE_EXCEEDED
    assert unknown.message == "61 s after admission: node n has not"


@pytest.mark.parametrize("refused", [False, True])
def test_a_job_gives_its_gpus_back_for_a_missing_object_and_waits_for_a_volume(refused: bool) -> None:
    state = JobState(admitted_at=EPOCH, attempts=(0,), incarnations=("leader",))
    pod = told(waiting(), StartTrouble(reason=Reason.VOLUME_UNAVAILABLE, message="m", refused=refused))
    after = look(JOB, state, observed(JOB, state, [pod]), EPOCH + 9, SETTINGS)
    assert after.refused_since == (EPOCH + 9 if refused else None)


def test_a_node_that_cannot_make_a_sandbox_is_blamed_and_another_tried_and_nothing_counted() -> None:
    state = JobState(admitted_at=EPOCH, attempts=(0,), incarnations=("leader",), failures=1, preemptions=1)
    trouble = StartTrouble(reason=Reason.POD_REJECTED, message="FailedCreatePodSandBox: x", by_node=True, since=EPOCH)
    seen = observed(JOB, state, [told(waiting(), trouble)])
    early = look(JOB, state, seen, EPOCH + 119, SETTINGS)
    assert (early.attempts, early.refused_since, early.blames) == ((0,), None, ())
    late = look(JOB, early, seen, EPOCH + 120, SETTINGS)
    assert (late.attempts, late.failures, late.preemptions) == ((1,), 1, 1)
    assert late.last_failure == "node node refused it: FailedCreatePodSandBox: x"
    assert [(blame.node, blame.refused) for blame in late.blames] == [("node", True)]


def test_a_lent_worker_that_cannot_start_is_given_back_soon_and_one_that_may_is_waited_for() -> None:
    state = JobState(admitted_at=EPOCH, granted_at=EPOCH, extra=1)
    for reason, seconds in ((Reason.VOLUME_UNAVAILABLE, 20.0), (Reason.STARTING, 60.0)):
        pod = told(waiting(), StartTrouble(reason=reason, message="m"))
        assert extra_runs_by(pod, JOB, state, SETTINGS.timing) == EPOCH + seconds


# ---- when they are asked for


class Asked:
    """A client and a clock; `answer` is what the client returns or raises."""

    def __init__(self) -> None:
        self.time, self.fields = EPOCH, list[str]()
        self.answer: Any = []
        self.pods = [waiting()]
        self.taken: list[tuple[str, str, StartTrouble | None]] = []
        self.reads = StartEvents(self, self, lambda: [("job", pod) for pod in self.pods], self._take)

    def now(self) -> float:
        return self.time

    async def list(self, kind: Any, namespace: str | None, *, fields: str = "") -> Listing:
        self.fields.append(fields)
        if isinstance(self.answer, Exception):
            raise self.answer
        return Listing(tuple(self.answer), 1)

    def _take(self, *given: Any) -> None:
        self.taken.append(given)

    def at(self, seconds: float) -> int:
        """Read what is due then; return of how many pods."""
        self.time, before = EPOCH + seconds, len(self.fields)
        asyncio.run(self.reads.read_due())
        return len(self.fields) - before


def test_events_are_read_of_pods_that_have_waited_for_a_while_and_of_few_at_a_time() -> None:
    asked = Asked()
    asked.answer = [event("FailedMount", SECRET)]
    assert [asked.at(each) for each in (0, AFTER - 1, AFTER, AFTER + 1, AFTER + EVERY)] == [0, 0, 1, 0, 1]
    assert asked.fields == ["involvedObject.uid=leader"] * 2
    expected = replace(trouble_in(asked.answer) or StartTrouble(reason=Reason.STARTING, message=""), since=EPOCH)
    assert asked.taken == [("job", "leader", expected)] * 2
    asked.pods = []
    assert asked.at(100) == 0
    asked.pods = [replace(waiting(), uid=str(each)) for each in range(AT_ONCE + 1)]
    assert [asked.at(each) for each in (200, 200 + AFTER, 201 + AFTER, 202 + AFTER)] == [0, AT_ONCE, 1, 0]


def test_where_events_may_not_be_read_the_conditions_are_told_and_nothing_is_asked_for_long() -> None:
    asked = Asked()
    asked.at(0)
    asked.answer = ApiRefusalError("list", Status(403, "Forbidden", "no"))
    assert asked.at(AFTER) == 1
    assert asked.at(AFTER + EVERY) == 0
    assert {trouble and trouble.reason for _, _, trouble in asked.taken} == {Reason.STARTING}
    assert len(asked.taken) == 2
    assert asked.at(AFTER + FORBIDDEN_SECONDS) == 1


def test_what_was_told_stays_while_the_api_server_does_not_answer() -> None:
    asked = Asked()
    asked.at(0)
    asked.answer = ApiRefusalError("list", Status(500, "", "no"))
    assert asked.at(AFTER) == 1
    assert asked.taken == []
