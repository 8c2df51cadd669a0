"""The operator's readers of API server objects, for other packages: no I/O, no kopf."""

from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.events import events
from espalier_operator.kube.objects.names import JobRef
from espalier_operator.kube.objects.nodes import parse_node
from espalier_operator.kube.objects.pods import Pod, parse_pod
from espalier_operator.kube.reports import parse_report
from espalier_operator.kube.settings import AS_RECORDED, KubeSettings
from espalier_operator.kube.snapshot import seen_by_operator
from espalier_operator.kube.watch.store import optional_kinds

__all__ = [
    "AS_RECORDED",
    "JobRef",
    "KubeSettings",
    "Pod",
    "events",
    "names",
    "optional_kinds",
    "parse_node",
    "parse_pod",
    "parse_report",
    "seen_by_operator",
]
