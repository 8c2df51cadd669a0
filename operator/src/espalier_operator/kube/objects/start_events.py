"""Why a node does not start the containers of a worker: what the Events about its pod say. Pure.

The status of a pod names neither a volume that cannot be mounted nor a sandbox that cannot be made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from espalier_core.k8s.resources import Raw
from espalier_core.types.reasons import Reason
from espalier_operator.kube.objects.pod_status import MAX_MESSAGE
from espalier_operator.kube.objects.pods import Pod
from espalier_operator.kube.reading import text, time

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
"""How the kubelet's Event begins that names only the volumes, and comes about as often as those with the cause."""
_RETRIED_SECONDS: Final = 150.0
"""The kubelet mounts again, and says what fails, at least this often."""
_IDS: Final = re.compile(r"\b[0-9a-f]{64}\b")
"""Of sandboxes: another one in each try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrouble:
    """What keeps a node from starting the containers of a pod."""

    reason: Reason
    message: str
    refused: bool = False
    """An object that the pod names is not there."""
    by_node: bool = False
    """Another node may do better."""
    since: float = 0.0
    """Since when the pod was seen to wait."""


def trouble_in(events: Iterable[Raw]) -> StartTrouble | None:
    """Return what the newest of the Events about a pod names; None where it names no trouble. Never raises."""
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
    """Return what the conditions of a pod say where no Event does."""
    if pod.prepared is not False:
        return None
    message = f"node {pod.node} has not mounted the volumes of pod {pod.name}, or not made its network and sandbox"
    return StartTrouble(reason=Reason.STARTING, message=f"{message} (PodReadyToStartContainers is False)")


def told(pod: Pod, trouble: StartTrouble) -> Pod:
    """Return a pod that waits for its node, with what keeps that from starting it."""
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
