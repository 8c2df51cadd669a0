"""Settings of the operator, a sentence under each field, and the command's options that are generated from them.

Times are in wall-clock seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final, TypeVar, get_type_hints

import click
from pydantic import TypeAdapter, ValidationError

from espalier_core.base import field_docs
from espalier_core.files.documents import first_fault
from espalier_core.types.job import DEFAULT_CONTROLLER
from espalier_core.types.pod_template import DEFAULT_GPU_RESOURCE
from espalier_operator.job.state import Timing
from espalier_operator.model import DEFAULT_POLICY, NodeGroup, Rules
from espalier_operator.policies.settings import configured

AS_RECORDED: Final = ""
"""Stands for the policy named in the status of the operator's jobs, for read-only callers."""

CORDONED: Final = "node.kubernetes.io/unschedulable"
"""The taint of nodes that are cordoned."""
FIGURES_A_SECOND: Final = 25.0
"""Maximum rate of writes of figures for all jobs, so that the API server has time for urgent requests: with 1,000 jobs
and figures every 8 s, each of its answers took 0.03 to 0.3 s."""
DEPARTING: Final = (
    CORDONED,
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "cloud.google.com/impending-node-termination",
    "cloud.google.com/active-node-maintenance=ONGOING",
    "PreemptScheduled",
    "TerminateScheduled",
    "RedeployScheduled",
)
"""Signs of nodes that are about to go: cluster-autoscaler, Karpenter, and the spot and maintenance notices of AWS (its
node termination handler), GKE, and AKS (conditions of its node problem detector)."""

DEVICE_CLASS: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of resources that stand for the devices of a DeviceClass, followed by the class. The prefix is Kubernetes'
(`ResourceDeviceClassPrefix` in k8s.io/api/resource/v1)."""
NONE = "none"
MAY_BE_NONE = ("tolerated_taints", "departing_nodes")
"""Options with a default, for which a single `none` means none."""
F = TypeVar("F", bound=Callable[..., Any])
_MAY_BE_ZERO = (
    "grace_seconds",
    "start_up_allowance_seconds",
    "persist_seconds",
    "fair_share_half_life_seconds",
    "aging_seconds",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeSettings:
    """An operator's settings."""

    policy: str = DEFAULT_POLICY
    """Scheduling policy, NAME[:KEY=VALUE,...]: which job gets which GPUs. An installed package may add others."""
    controller_name: str = DEFAULT_CONTROLLER
    """The operator manages jobs with this controllerName, and ignores others. Several operators in a cluster need a
    name each, or a list of namespaces each."""
    gpu_resource: str = DEFAULT_GPU_RESOURCE
    """The extended resource that is counted and lent."""
    other_gpu_resources: tuple[str, ...] = ()
    """Further extended resources that are counted and lent, each by itself: amd.com/gpu, nvidia.com/mig-1g.5gb. The
    template of a job requests one of them, or `gpu_resource`. The type of their GPUs begins with the resource.
    deviceclass.resource.kubernetes.io/CLASS stands for the devices of a DeviceClass, which templates claim."""
    gpu_type_label: str = "nvidia.com/gpu.product"
    """The node label that distinguishes types of GPUs; nodes without it have the type ''."""
    rack_label: str | None = None
    """The node label that names the rack of a node, or its part of the network. The workers of a job get nodes of as
    few racks as possible; without this label, of as few zones (topology.kubernetes.io/zone) as possible."""
    tolerated_taints: tuple[str, ...] = (DEFAULT_GPU_RESOURCE,)
    """Keys of taints that all workers tolerate, in addition to those that their templates tolerate. `none`: none."""
    departing_nodes: tuple[str, ...] = DEPARTING
    """Signs that a node is about to go: KEY or KEY=VALUE of a taint or label, or the type of a condition that is True.
    Nothing new is placed on such a node, and what runs there moves with notice. `none`: no signs.
    `node.kubernetes.io/unschedulable` stands for nodes that are cordoned."""
    eviction_requests: bool = False
    """Take an EvictionRequest (lifecycle.k8s.io, alpha in Kubernetes 1.37) for a worker's pod as a notice: it moves as
    from a node that is about to go. Needs the right to list and watch evictionrequests."""
    node_groups: tuple[str, ...] = ()
    """Nodes that an autoscaler adds when pods wait, as JSON: {"name": "a100", "labels": {"pool": "a100"}, "gpus": 8,
    "maxNodes": 4, "gpuType": "NVIDIA-A100", "taints": [{"key": "spot", "value": "", "effect": "NoSchedule"}]}. The pods
    of a job that fits nowhere else are made, and wait for such nodes, which have these labels, and no others."""
    trainer_image: str = "espalier-trainer:latest"
    """Image of jobs whose template names none."""
    image_pull_policy: str | None = None
    """Pull policy of the trainer image; None: Kubernetes' default for its tag."""
    image_pull_secrets: tuple[str, ...] = ()
    """Secrets with credentials for the registry of the trainer image, in the namespace of each job."""
    trainer_user: str | None = "65532"
    """User of pods with the trainer image, and group of their volumes, where their template has none. Empty: the
    platform chooses (OpenShift)."""
    agent_url: str | None = None
    """URL of the agent for jobs that name none."""
    progress_url: str | None = None
    """URL at which programs reach this operator to post their progress, in the protocol of Kubeflow Trainer, such as
    http://espalier-operator.espalier-system.svc:8082. It listens on the port of this URL. Needs the right to create
    tokenreviews."""
    extra_priority_class: str | None = "espalier-extra"
    """PriorityClass of extra workers' pods. Its value should not be below that of other pods, which would then evict
    extra workers before the scheduler can give notice."""
    traces_endpoint: str | None = None
    """URL to which traces of signals are exported by OTLP over HTTP, such as http://collector:4318/v1/traces. Needs the
    extra `otel` of the operator's package."""
    worker_network_policies: bool = False
    """Create a NetworkPolicy for each job whose workers train together (elasticBatch): only its own pods reach the
    ports on which they do, and all pods those that its template declares. Needs the right to create and patch them."""
    kueue: bool = False
    """Let Kueue admit jobs with its label kueue.x-k8s.io/queue-name, by a Workload each. Needs the rights to list and
    watch workloads and resourceflavors, and to create and delete workloads."""
    kueue_extra_workers: bool = False
    """With `kueue`: let it also admit the extra workers of such jobs, by a Workload each, of the lowest priority.
    Otherwise they use GPUs that no quota counts, and are given back for whatever waits."""
    kueue_priority_boost: bool = False
    """With `kueue`: have Kueue raise the priority of a running job by 0 to 9, the more work it would lose since
    its last checkpoint. Needs Kueue's feature gate PriorityBoost, and the right to patch workloads."""
    watch_namespaces: tuple[str, ...] = ()
    """Namespaces whose jobs are managed; empty: all."""
    grace_seconds: float = 10.0
    """A job is ended when it exceeds its budget by this time, or by a tenth of the budget if that is longer."""
    start_up_allowance_seconds: float = Timing().start_up_allowance
    """A leader that sends no report counts as training after this time."""
    promise_seconds: float = Timing().promise
    """Time within which granted extra workers must be bound to a node."""
    placement_seconds: float = Rules().placement_seconds
    """A job waits again if kube-scheduler finds no node for a base worker for this time, though GPUs are free."""
    node_wait_seconds: float = Rules().node_wait_seconds
    """A job waits again if nodes that were requested for it, of `node_groups`, have not come after this time."""
    fair_share_half_life_seconds: float = 86_400.0
    """Among waiting jobs of the same priority, those whose queue (or namespace) recently held the fewest base GPUs go
    first. Past GPUs count half as much after each such time. 0: the order is by priority and age."""
    aging_seconds: float = 0.0
    """The priority of a waiting job counts 1 more after each such time since its submission. 0: it does not rise."""
    pre_running_deadline_seconds: float = 900.0
    """Default of a job's preRunningDeadlineSeconds: how long it may hold GPUs without training."""
    restart_seconds: float = Timing().restart
    """Delay before the first restart of a failed leader. Doubles with each failure, up to `max_restart_seconds`."""
    max_restart_seconds: float = Timing().max_restart
    """Maximum delay before the restart of a failed leader."""
    persist_seconds: float = 8.0
    """Interval at which the figures of a running job are written to its status if nothing else changes; longer if very
    many jobs run."""
    resync_seconds: float = 300.0
    """Interval at which everything is listed again, in case an event was lost; of nodes and pods only the versions,
    and what is not known is read. With 5,000 nodes, the API server takes seconds to answer, and others wait for it."""

    @property
    def gpu_resources(self) -> tuple[str, ...]:
        """All resources that are counted and lent."""
        return (self.gpu_resource, *(each for each in self.other_gpu_resources if each != self.gpu_resource))

    @property
    def device_classes(self) -> Mapping[str, str]:
        """The resource of each DeviceClass whose devices are counted and lent, by the name of the class."""
        names = (each for each in self.other_gpu_resources if each.startswith(DEVICE_CLASS))
        return {each.removeprefix(DEVICE_CLASS): each for each in names}

    def labels_of(self, name: str) -> Mapping[str, str]:
        """Return the labels of the nodes of a group; none where it is not known."""
        return next((group.labels for group in map(node_group, self.node_groups) if group.name == name), {})

    @property
    def rules(self) -> Rules:
        """The settings for the planner."""
        return Rules(
            policy=self.policy,
            tolerated_taints=self.tolerated_taints,
            placement_seconds=self.placement_seconds,
            node_wait_seconds=self.node_wait_seconds,
            node_groups=tuple(map(node_group, self.node_groups)),
            rack_label=self.rack_label,
            fair_share_half_life_seconds=self.fair_share_half_life_seconds,
            aging_seconds=self.aging_seconds,
        )

    @property
    def timing(self) -> Timing:
        """The settings for the life cycle of a job."""
        return Timing(
            start_up_allowance=self.start_up_allowance_seconds,
            promise=self.promise_seconds,
            restart=self.restart_seconds,
            max_restart=self.max_restart_seconds,
        )


@cache
def node_group(text: str) -> NodeGroup:
    """Return a node group from JSON; `ValueError` where it is none."""
    return _NODE_GROUP.validate_json(text)


_NODE_GROUP: Final = TypeAdapter(NodeGroup)
ALL = tuple(field.name for field in fields(KubeSettings))


def settings_options(command: F, names: Collection[str] = ALL) -> F:
    """Give `command` one option for each field of `KubeSettings` in `names`, with the field's sentence as its help."""
    sentences = {name: " ".join(text.replace("`", "").split()) for name, text in field_docs(KubeSettings).items()}
    types = get_type_hints(KubeSettings)
    for field in reversed([field for field in fields(KubeSettings) if field.name in names]):
        many = types[field.name] == tuple[str, ...]
        command = click.option(
            f"--{field.name.replace('_', '-')}",
            field.name,
            multiple=many,
            is_flag=types[field.name] is bool,
            type=types[field.name] if types[field.name] in (float, bool) else str,
            default=field.default,
            show_default=field.default not in ((), None),
            help=sentences[field.name] + (" May be given several times." if many else ""),
            callback=_check,
        )(command)
    return command


def settings_of(given: Mapping[str, Any]) -> KubeSettings:
    """Return the settings among the values of a command's options."""
    found = {name: given[name] for name in ALL if name in given}
    return KubeSettings(**found | {name: () for name in MAY_BE_NONE if found.get(name) == (NONE,)})


def _is_name(resource: str) -> bool:
    domain, _, name = resource.partition("/")
    return bool(domain and name) and "/" not in name


def _check(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Refuse invalid values; return None for an empty text where an option may be unset."""
    name = str(parameter.name)
    if isinstance(value, float):
        least = "0 or more" if name in _MAY_BE_ZERO else "more than 0"
        if not math.isfinite(value) or value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
            raise click.BadParameter(f"{value:g} seconds is out of range; give {least}", context, parameter)
    elif value == "":
        if get_type_hints(KubeSettings)[name] is str:
            raise click.BadParameter("is empty; leave the option out for its default", context, parameter)
        return None
    elif isinstance(value, list | tuple) and "" in value:
        raise click.BadParameter("one of its values is empty; leave it out", context, parameter)
    elif name == "other_gpu_resources" and (wrong := [each for each in value if not _is_name(each)]):
        raise click.BadParameter(f"{wrong[0]!r} is not DOMAIN/NAME, as in amd.com/gpu", context, parameter)
    elif name == "gpu_resource" and str(value).startswith(DEVICE_CLASS):
        raise click.BadParameter(f"{value!r} is a DeviceClass; give it to --other-gpu-resources", context, parameter)
    elif (
        name in ("agent_url", "progress_url", "traces_endpoint")
        and value is not None
        and not str(value).startswith(("http://", "https://"))
    ):
        raise click.BadParameter(f"{value!r} is not a URL; write http://HOST:PORT", context, parameter)
    elif name in ("controller_name", "gpu_resource", "gpu_type_label") and "/" not in str(value):
        raise click.BadParameter(
            f"{value!r} has no domain; write DOMAIN/NAME, as in nvidia.com/gpu", context, parameter
        )
    elif name in ("policy", "node_groups"):
        try:
            configured(value) if name == "policy" else [*map(node_group, value)]
        except ValidationError as error:
            raise click.BadParameter(first_fault(error), context, parameter) from error
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from error
    elif name == "image_pull_policy" and value not in (None, "Always", "IfNotPresent", "Never"):
        raise click.BadParameter(f"{value!r} is unknown; give Always, IfNotPresent or Never", context, parameter)
    elif name == "trainer_user" and value is not None and not (str(value).isdecimal() and int(value)):
        raise click.BadParameter(f"{value!r} is not a user ID; give a number above 0, or nothing", context, parameter)
    return value
