"""What a pod takes of its node besides GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from sys import intern

from espalier_core.k8s.resources import Raw
from espalier_operator.kube.objects.owners import JobRef
from espalier_operator.kube.objects.pods import worker_of
from espalier_operator.kube.objects.requirements import requests_of, resource_of
from espalier_operator.kube.reading import mapping, text
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model.constraints import Amounts


@dataclass(frozen=True, slots=True)
class Load:
    """What a pod takes of its node, GPUs excluded."""

    node: str
    requests: Amounts
    owner: JobRef | None
    """As of `Pod`."""


def parse_load(raw: Raw, settings: KubeSettings) -> Load | None:
    """Return what a pod takes of its node; None where it takes nothing any more, or has no node yet.

    Devices that it claims are not part of that.
    """
    spec = mapping(raw, "spec")
    node = text(spec, "nodeName")
    if not node or text(raw, "status", "phase") in ("Succeeded", "Failed"):
        return None
    requests = _shared(requests_of(spec, resource_of(spec, settings)))
    return Load(intern(node), requests, worker_of(raw)[0])


@lru_cache(maxsize=4096)
def _shared(requests: Amounts) -> Amounts:
    """Return `requests`, the same tuple for equal ones: pods by the ten thousand request one of few things."""
    return requests
