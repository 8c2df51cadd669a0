"""Parses a job from the API server, or returns its problems."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.validation.reading import JobFileError, parse_jobs
from espalier_operator.kube.objects import nodes, template
from espalier_operator.kube.objects.devices import DeviceRequest, claimed_by_job, with_claimed
from espalier_operator.kube.objects.limits import Defaults, scopes_of, with_defaults
from espalier_operator.kube.objects.names import QUEUE_NAME_LABEL, JobRef
from espalier_operator.kube.objects.nodes import Terms as VolumeTerms
from espalier_operator.kube.objects.nodes import claims_of, constraints_of, request_of, requests_gpus, resource_of
from espalier_operator.kube.reading import is_deeper, mapping, text, time, whole
from espalier_operator.kube.settings import DEVICE_CLASS, KubeSettings
from espalier_operator.model import JobTerms, grace_of
from espalier_operator.model.constraints import Amounts
from espalier_operator.model.queues import EXTERNAL

MAX_DEPTH: Final = 100
"""Maximum nesting of lists and mappings in a specification. In fields without a schema (options of a model, a pod
template) the API server accepts ten thousand levels, far more than any reader of jobs."""
MAX_DOCUMENT_BYTES: Final = 250_000
"""Maximum size of the job's document. All annotations of a pod may have 256 KiB; the rest is for the allocation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeJob:
    """One job of the cluster with a valid specification, without its status."""

    job: AdaptiveTrainingJob
    terms: JobTerms
    uid: str
    generation: int
    """`metadata.generation`."""
    created_at: float
    is_remnant: bool = False
    """It is known only from its status (`state.remnants`): no pod can be made for it."""
    local_queue: str = ""
    """The LocalQueue of Kueue that has its quota; empty: none."""
    assigned: Assignment | None = None
    """Kueue's additions to its pods, which the terms include too."""
    has_lower_class: bool = False
    """The PriorityClass of its base workers is below the class of extra workers, which then must have the same."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return self.job.key

    @property
    def ref(self) -> JobRef:
        """The reference by which its objects name their owner."""
        return JobRef(self.namespace, self.name, self.uid)

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.job.metadata.name

    @property
    def namespace(self) -> str:
        """`metadata.namespace`."""
        return self.job.metadata.namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidJob:
    """A job that the API server accepted but that cannot be run."""

    key: str
    uid: str
    generation: int
    problems: tuple[str, ...]
    """Problems as `field: fault, remedy`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Kueue's additions to the pods of a job."""

    node_labels: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def assigned_to(job: KubeJob, assigned: Assignment | None, settings: KubeSettings) -> KubeJob:
    """Return a job without an assignment with Kueue's `assigned`."""
    if assigned is None:
        return job
    terms, labels = job.terms, assigned.node_labels
    given, gpu_type = terms.constraints, labels.get(settings.gpu_type_label)
    constraints = replace(
        given,
        node_selector=tuple(sorted({**dict(given.node_selector), **labels}.items())),
        tolerations=(*given.tolerations, *map(nodes.toleration_of, assigned.tolerations)),
    )
    if gpu_type:
        terms = replace(terms, gpu_type=nodes.type_of(gpu_type, terms.gpu_resource, settings))
    return replace(job, assigned=assigned, terms=replace(terms, constraints=constraints))


def parse_job(
    raw: Mapping[str, Any],
    settings: KubeSettings,
    priorities: Mapping[str, int] | None = None,
    affinity: Callable[[str], VolumeTerms | None] = lambda claim: None,
    claim_template: Callable[[str], DeviceRequest | None] = lambda template: None,
    defaults: Defaults | None = None,
) -> KubeJob | InvalidJob:
    """Parse an object of the API server; `priorities` are the values of the PriorityClasses by name, None: unknown.

    `affinity` returns the node affinity of the volume of a claim, `claim_template` the request of a
    ResourceClaimTemplate, both by `namespace/name`; `defaults` come from the namespace's LimitRanges. Never raises.
    """
    metadata = mapping(raw, "metadata")
    key = f"{text(metadata, 'namespace') or 'default'}/{text(metadata, 'name')}"
    uid, generation = text(metadata, "uid"), max(0, whole(metadata, "generation") or 0)
    if is_deeper(raw.get("spec"), MAX_DEPTH):
        problem = f"spec: lists and mappings are nested more than {MAX_DEPTH} deep; make it flatter"
        return InvalidJob(key=key, uid=uid, generation=generation, problems=(problem,))
    body = json.dumps({key: value for key, value in raw.items() if key != "status"})
    try:
        job = AdaptiveTrainingJob.model_validate_json(body, strict=True)
    except ValidationError:
        problems = _all_problems(body, None if settings.other_gpu_resources else settings.gpu_resource)
    else:
        claimed, unclear = _claimed(job, settings, claim_template)
        shape = _template_problems(job, settings, claimed, unclear)
        problems = (*shape, *_size_problems(job), *_class_problems(job, priorities))
    if problems:
        return InvalidJob(key=key, uid=uid, generation=generation, problems=problems)
    priority = (priorities or {}).get(job.spec.priority_class_name or "", job.spec.priority)
    lower = _has_lower_class(raw, settings, priorities or {})
    terms = _terms(job, settings, priority, affinity, claimed, defaults or {}, has_lower_class=lower)
    local_queue = text(metadata, "labels", QUEUE_NAME_LABEL) if settings.kueue else ""
    return KubeJob(
        job=job,
        terms=replace(terms, queue=EXTERNAL) if local_queue else terms,
        uid=uid,
        generation=generation,
        created_at=time(metadata, "creationTimestamp") or 0.0,
        local_queue=local_queue,
        has_lower_class=lower,
    )


def class_of(raw: Mapping[str, Any]) -> str:
    """Return the PriorityClass of the base workers of a job of the API server; empty where it names none."""
    return text(raw, "spec", "priorityClassName") or text(raw, "spec", "template", "spec", "priorityClassName")


def _has_lower_class(raw: Mapping[str, Any], settings: KubeSettings, priorities: Mapping[str, int]) -> bool:
    name = class_of(raw)
    if not name:
        return False  # base workers have the cluster's default, to which the class of extra workers should be equal
    return priorities.get(name, 0) < priorities.get(settings.extra_priority_class or "", 0)


def trainer_document(job: AdaptiveTrainingJob) -> dict[str, Any]:
    """Return the job as its trainer reads it: name and specification, without the API server's additions.

    The template is left out: only the operator needs it, and large parts of it must not fill an annotation.
    """
    document = job.to_json()
    spec: dict[str, Any] = job.spec.to_json()
    spec.pop("template", None)
    return {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "metadata": {"name": job.metadata.name, "namespace": job.metadata.namespace},
        "spec": spec,
    }


def _terms(
    job: AdaptiveTrainingJob,
    settings: KubeSettings,
    priority: int,
    affinity: Callable[[str], VolumeTerms | None],
    claimed: Amounts,
    defaults: Defaults,
    *,
    has_lower_class: bool,
) -> JobTerms:
    given = {} if job.spec.template is None else job.spec.template.spec.to_json()
    pod_spec = with_claimed(with_defaults(given, defaults), claimed)
    resource, selected = resource_of(pod_spec, settings), text(pod_spec, "nodeSelector", settings.gpu_type_label)
    bound = (affinity(f"{job.metadata.namespace}/{claim}") for claim in sorted(set(claims_of(pod_spec))))
    name = job.spec.priority_class_name or text(pod_spec, "priorityClassName") or None
    extra_name = name if has_lower_class else settings.extra_priority_class or name
    terms = JobTerms.of(
        job,
        grace_seconds=grace_of(job, settings.grace_seconds),
        gpu_type=nodes.type_of(selected, resource, settings) if selected else None,
        constraints=replace(
            nodes.restricted(constraints_of(pod_spec, resource, settings.tolerated_taints), resource, settings),
            volumes=tuple(terms for terms in bound if terms is not None),
        ),
        resource=resource,
    )
    deadline = terms.pre_running_deadline_seconds or settings.pre_running_deadline_seconds
    return replace(
        terms,
        priority=priority,
        quota_scopes=scopes_of(pod_spec, name),
        extra_quota_scopes=scopes_of(pod_spec, extra_name),
        gpus_per_worker=max(terms.gpus_per_worker, request_of(pod_spec, resource)),
        pre_running_deadline_seconds=deadline,
    )


def _claimed(
    job: AdaptiveTrainingJob, settings: KubeSettings, claim_template: Callable[[str], DeviceRequest | None]
) -> tuple[Amounts, tuple[str, ...]]:
    """Return the devices that a worker of the job claims, by resource, and the problems of its claims."""
    if job.spec.template is None or not settings.device_classes:
        return (), ()
    namespace, pod_spec = job.metadata.namespace, job.spec.template.spec.to_json()
    needed = not requests_gpus(pod_spec, settings)
    found = lambda name: claim_template(f"{namespace}/{name}")  # noqa: E731
    return claimed_by_job(pod_spec, settings.device_classes, found, needed=needed)


def _template_problems(
    job: AdaptiveTrainingJob, settings: KubeSettings, claimed: Amounts, unclear: tuple[str, ...]
) -> tuple[str, ...]:
    if job.spec.template is None:
        return ()
    place, known = "spec.template.spec.containers", settings.gpu_resources
    shape = tuple(template.problems(job.spec.template.model_dump(mode="json", by_alias=True, exclude_unset=True)))
    if unclear:
        return (*shape, *unclear)
    try:
        requested = [each for each in known if job.spec.gpus_per_worker(each) or each in dict(claimed)]
    except ValueError as error:
        return (*shape, f"{place}: {error}")
    if len(requested) == 1:
        return shape
    if requested:
        reclaim_requests = "has limits of" if not claimed else "has limits of, or claims,"
        return (*shape, f"{place}: {reclaim_requests} {' and '.join(requested)}; a worker can use one of them")
    missing = f"no container has a limit of {' or '.join(known)}{_hint(job, settings)}"
    return (*shape, f"{place}: {missing}; a worker needs one")


def _hint(job: AdaptiveTrainingJob, settings: KubeSettings) -> str:
    """Return a hint why the job's claims are not the missing GPUs."""
    spec = job.spec.template.spec if job.spec.template is not None else None
    if spec is None or not spec.resource_claims:
        return ""
    if not settings.device_classes:
        return f", and the operator counts no claimed devices (--other-gpu-resources {DEVICE_CLASS}CLASS)"
    return f", and no ResourceClaimTemplate that it names asks for devices of {' or '.join(settings.device_classes)}"


def _size_problems(job: AdaptiveTrainingJob) -> tuple[str, ...]:
    """Return the problem of a job too large for its pods' annotations: the API server would refuse every pod."""
    metadata = None if job.spec.template is None else job.spec.template.metadata
    given = (metadata.annotations if metadata is not None else None) or {}
    theirs = sum(len(key.encode()) + len(value.encode()) for key, value in given.items())
    size = len(json.dumps(trainer_document(job))) + theirs
    if size <= MAX_DOCUMENT_BYTES:
        return ()
    return (
        f"spec: has {size} bytes with the template's annotations and without the rest of the template; at most "
        f"{MAX_DOCUMENT_BYTES} fit into a pod's annotations; shorten it",
    )


def _class_problems(job: AdaptiveTrainingJob, priorities: Mapping[str, int] | None) -> tuple[str, ...]:
    name = job.spec.priority_class_name
    if name is None or priorities is None or name in priorities:
        return ()
    return (f"spec.priorityClassName: there is no PriorityClass {name!r}; create it or name another",)


def _all_problems(body: str, resource: str | None) -> tuple[str, ...]:
    """Return the messages of all problems; slow, so only for a job that has one."""
    try:
        parse_jobs(body, "job", resource)
    except JobFileError as error:
        return tuple(f"{problem.field}: {problem.message}".lstrip(": ") for problem in error.problems)
    return ("spec: cannot be parsed",)
