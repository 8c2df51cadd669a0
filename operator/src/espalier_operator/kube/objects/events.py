"""Kubernetes Events about a job: written ones, and read ones about pods that do not start.

Pure; reasons come from the one enum. The status of a pod names neither a volume that cannot be mounted nor a sandbox
that cannot be made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from espalier_core.k8s.resources import Raw
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.report import AdaptationResult
from espalier_core.types.status import Condition, ConditionStatus, ConditionType, JobStatus
from espalier_operator.kube.objects.pod_status import MAX_MESSAGE
from espalier_operator.kube.objects.pods import Pod
from espalier_operator.kube.reading import text, time

LONGEST_MESSAGE = 1024
"""Maximum length of a message, in characters; the API server refuses more."""

_WARNINGS = frozenset(
    {
        Reason.GPU_LOST,
        Reason.NODES_AVOIDED,
        Reason.RECLAIM_FORCED,
        Reason.AGENT_UNAVAILABLE,
        Reason.ILLEGAL_ADVICE,
        Reason.IMAGE_PULL_FAILED,
        Reason.UNSCHEDULABLE,
        Reason.POD_REJECTED,
        Reason.VOLUME_UNAVAILABLE,
        Reason.PREEMPTED,
        Reason.NODE_LOST,
        Reason.PRE_RUNNING_DEADLINE_EXCEEDED,
        Reason.CRASH_LOOP,
        Reason.TOO_MANY_PREEMPTIONS,
        Reason.TRAINER_FAILED,
        Reason.LOSS_NOT_FINITE,
        Reason.NOTHING_TRAINED,
        Reason.CHECKPOINT_NOT_WRITTEN,
        Reason.INVALID_SPEC,
        Reason.BUDGET_ENFORCED,
        Reason.TOO_LARGE,
        Reason.NO_REPORT,
    }
)
_OF_VOLUMES: Final = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
_OF_NODE: Final = (
    "FailedCreatePodSandBox",
    "FailedCreatePodContainer",
    "FailedPrepareDynamicResources",
    "NetworkNotReady",
)
_PASSED: Final = ("SuccessfulAttachVolume", "Pulling", "Pulled", "Created", "Started")
"""Reasons of Events after which an earlier trouble has passed."""
_ONLY_THERE: Final = ("not found in the list of registered CSI drivers", "hostPath type check failed")
"""Parts of the kubelet's messages on volumes that another node may be able to mount."""
_NO_OBJECT: Final = re.compile(
    r'\b(secret|configmap|serviceaccount|persistentvolumeclaim)s? "[^"]*" not found|references non-existent \w+ key'
)
_SUMMARY: Final = "Unable to attach or mount volumes: "
"""Beginning of a kubelet's Event that names only the volumes, and comes about as often as those with the cause."""
_RETRIED_SECONDS: Final = 150.0
"""Maximum interval in seconds at which the kubelet mounts again and reports the cause of a failure."""
_IDS: Final = re.compile(r"\b[0-9a-f]{64}\b")
"""Ids of sandboxes, which change with each try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventObject:
    """One Event."""

    reason: str
    message: str
    warning: bool = False


def events(before: JobStatus | None, after: JobStatus) -> tuple[EventObject, ...]:
    """Return Events for the changes in `after`, oldest cause first."""
    was = before or JobStatus()
    found = [event for condition in after.conditions if (event := _of_condition(was, condition))]
    granted = _of_allocation(was, after)
    # The Event of an allocation has more details than that of the accompanying condition.
    found = [event for event in found if event.reason not in {each.reason for each in granted}]
    found += granted
    found += _of_reclaim(was, after)
    found += _of_adaptations(was, after)
    if after.restarts > was.restarts:
        failed = after.scheduling.failures > was.scheduling.failures
        reason = Reason.TRAINER_FAILED if failed else Reason.PREEMPTED
        found.append(
            _event(reason, f"start {after.restarts + 1}: {after.scheduling.last_failure or SENTENCES[reason]}")
        )
    known = {(each.node, each.last_time) for each in was.scheduling.avoided_nodes}
    for each in after.scheduling.avoided_nodes:
        if (each.node, each.last_time) not in known:
            found.append(_event(Reason.NODES_AVOIDED, f"node {each.node} is avoided for a while: {each.message}"))
    unique: dict[tuple[str, str], EventObject] = {(event.reason, event.message): event for event in found}
    return tuple(unique.values())


def _of_condition(was: JobStatus, condition: Condition) -> EventObject | None:
    known = was.condition(condition.type)
    if known is not None and (known.status, known.reason) == (condition.status, condition.reason):
        return None
    ended = condition.type in (ConditionType.COMPLETE, ConditionType.FAILED)
    if condition.status is not ConditionStatus.TRUE and condition.type not in (
        ConditionType.ADMITTED,
        ConditionType.RUNNING,
    ):
        return None  # the opposite is shown by another condition or the allocation
    if any(e.type in (ConditionType.COMPLETE, ConditionType.FAILED) for e in was.conditions) and not ended:
        return None
    return _event(condition.reason, condition.message)


def _of_allocation(was: JobStatus, after: JobStatus) -> list[EventObject]:
    if after.allocation.generation == was.allocation.generation or not after.allocation.reason:
        return []
    if after.completion_time is not None:
        return []  # the condition has the end and its reason
    allocation = after.allocation
    reason = Reason(allocation.reason) if allocation.reason in set(Reason) else None
    if reason is None:
        return []
    by = f", by {allocation.deadline:%H:%M:%S} UTC" if allocation.deadline is not None else ""
    text = f"{SENTENCES[reason]}: {allocation.replicas} workers, {allocation.gpus} GPUs{by}"
    return [_event(reason, text)]


def reclaim_ended(was: JobStatus, after: JobStatus) -> Reason | None:
    """Return the end of a reclaim; None: there was none, it is still pending, or the job has ended.

    It was acknowledged, or carried out by force, which counts as a preemption; or a GPU was lost meanwhile.
    """
    pending = was.scheduling.reclaim is not None and after.scheduling.reclaim is None
    if not pending or after.completion_time is not None:
        return None
    changed = after.allocation.generation != was.allocation.generation  # a notice may have the same reason
    if changed and after.allocation.reason == Reason.GPU_LOST:
        return Reason.GPU_LOST
    forced = after.preemptions - was.preemptions > after.restarts - was.restarts
    return Reason.RECLAIM_FORCED if forced else Reason.RECLAIM_ACKNOWLEDGED


def _of_reclaim(was: JobStatus, after: JobStatus) -> list[EventObject]:
    ended = reclaim_ended(was, after)
    if ended in (None, Reason.GPU_LOST) or after.scheduling.admitted_at is None:
        return []  # the event of the allocation says the same
    return [_event(ended, "")]


def _of_adaptations(was: JobStatus, after: JobStatus) -> list[EventObject]:
    known = {adaptation.decision_id for adaptation in was.adaptations}
    found = []
    for adaptation in after.adaptations:
        if adaptation.decision_id in known:
            continue
        depth = f"depth {adaptation.depth_before} -> {adaptation.depth_after}"
        came = adaptation.timed or depth
        text = f"{adaptation.action} by {adaptation.source} {adaptation.policy}: {came} {adaptation.message}".strip()
        failed = adaptation.result is AdaptationResult.FAILED
        found.append(
            EventObject(reason=f"Adaptation{adaptation.result}", message=text[:LONGEST_MESSAGE], warning=failed)
        )
        if adaptation.reason is not None:
            found.append(_event(adaptation.reason, f"{SENTENCES[adaptation.reason]}: {adaptation.message}"))
    return found


def _event(reason: Reason, message: str) -> EventObject:
    text = (message or SENTENCES[reason])[:LONGEST_MESSAGE]
    return EventObject(reason=str(reason), message=text, warning=reason in _WARNINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrouble:
    """The obstacle for which a node cannot start the containers of a pod."""

    reason: Reason
    message: str
    refused: bool = False
    """An object that the pod names does not exist."""
    by_node: bool = False
    """Another node may do better."""
    since: float = 0.0
    """Time since which the pod was seen to wait."""


def trouble_in(events: Iterable[Raw]) -> StartTrouble | None:
    """Return the trouble named by the newest of the Events about a pod, if any. Never raises."""
    found = [each for each in events if text(each, "reason") in (*_OF_VOLUMES, *_OF_NODE, *_PASSED)]
    newest = max(found, key=_order, default=None)
    if newest is None or (reason := text(newest, "reason")) in _PASSED:
        return None
    said = _IDS.sub("...", " ".join(text(newest, "message").split()))
    return StartTrouble(
        reason=Reason.VOLUME_UNAVAILABLE if reason in _OF_VOLUMES else Reason.POD_REJECTED,
        message=f"{reason}: {said.removeprefix('(combined from similar events): ')}"[:MAX_MESSAGE],
        refused=_NO_OBJECT.search(said) is not None,
        by_node=reason in _OF_NODE or any(part in said for part in _ONLY_THERE),
    )


def trouble_without_events(pod: Pod) -> StartTrouble | None:
    """Return the trouble by the conditions of a pod, for lack of Events."""
    if pod.prepared is not False:
        return None
    message = f"node {pod.node} has not mounted the volumes of pod {pod.name}, or not made its network and sandbox"
    return StartTrouble(reason=Reason.STARTING, message=f"{message} (PodReadyToStartContainers is False)")


def told(pod: Pod, trouble: StartTrouble) -> Pod:
    """Return a pod that waits for its node, with the trouble of its start."""
    return replace(
        pod,
        trouble=trouble.reason,
        message=trouble.message,
        refused=trouble.refused,
        by_node=trouble.by_node,
        stuck_since=trouble.since if trouble.by_node else None,
    )


def _order(event: Raw) -> tuple[float, bool]:
    paths = (("series", "lastObservedTime"), ("lastTimestamp",), ("eventTime",), ("metadata", "creationTimestamp"))
    at = max((at for path in paths if (at := time(event, *path)) is not None), default=0.0)
    vague = text(event, "message").startswith(_SUMMARY)
    return at - (_RETRIED_SECONDS if vague else 0.0), text(event, "reason") not in _PASSED
