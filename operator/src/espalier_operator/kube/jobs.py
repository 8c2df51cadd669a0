"""A job as the API server holds it, parsed; or what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from espalier_api.job import AdaptiveTrainingJob
from espalier_api.status import JobStatus
from espalier_api.validation import JobFileError, parse_jobs
from espalier_operator.facts import Terms
from espalier_operator.kube.settings import KubeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeJob:
    """One job of the cluster, its specification understood. Its status is not in it: that is the `Record`."""

    job: AdaptiveTrainingJob
    terms: Terms
    uid: str
    generation: int
    """`metadata.generation`."""
    created_at: float

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return self.job.key

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
    """A job that the API server took and that cannot be run."""

    key: str
    uid: str
    generation: int
    problems: tuple[str, ...]
    """`field: what is wrong, what is allowed`."""


def parse_job(
    raw: Mapping[str, Any], settings: KubeSettings, priorities: Mapping[str, int] | None = None
) -> KubeJob | InvalidJob:
    """Parse an object of the API server; `priorities` are the values of the PriorityClasses by name."""
    metadata = raw["metadata"]
    body = {key: value for key, value in raw.items() if key != "status"}
    key, uid = f"{metadata.get('namespace', 'default')}/{metadata['name']}", metadata["uid"]
    generation = int(metadata.get("generation", 0))
    known = priorities or {}
    text = json.dumps(body)
    try:
        job = AdaptiveTrainingJob.model_validate_json(text, strict=True)
        problems = _gpu_problems(job, settings.gpu_resource)
        class_name = job.spec.priority_class_name
        if class_name is not None and priorities is not None and class_name not in known:
            problems += (
                f"spec.priorityClassName: there is no PriorityClass {class_name!r}; create it or name another",
            )
    except ValidationError:
        problems = _all_problems(text, settings.gpu_resource)
    if problems:
        return InvalidJob(key=key, uid=uid, generation=generation, problems=problems)
    return KubeJob(
        job=job,
        terms=_terms(job, settings, known.get(job.spec.priority_class_name or "", job.spec.priority)),
        uid=uid,
        generation=generation,
        created_at=datetime.fromisoformat(metadata["creationTimestamp"]).timestamp(),
    )


def parse_status(raw: Mapping[str, Any]) -> JobStatus | None:
    """Return the status of an object of the API server, None where it has none; `ValueError` where it is damaged."""
    status = raw.get("status")
    return JobStatus.model_validate_json(json.dumps(status)) if status else None


def _terms(job: AdaptiveTrainingJob, settings: KubeSettings, priority: int) -> Terms:
    template = job.spec.template
    wanted = {} if template is None else (template.spec.model_extra or {}).get("nodeSelector") or {}
    terms = Terms.of(
        job,
        grace_seconds=max(settings.grace_seconds, 0.1 * job.spec.time_budget_seconds),
        gpu_type=wanted.get(settings.gpu_type_label),
        resource=settings.gpu_resource,
    )
    deadline = terms.pre_running_deadline_seconds or settings.pre_running_deadline_seconds
    return replace(terms, priority=priority, pre_running_deadline_seconds=deadline)


def _gpu_problems(job: AdaptiveTrainingJob, resource: str) -> tuple[str, ...]:
    place = "spec.template.spec.containers"
    try:
        gpus = job.spec.gpus_per_worker(resource)
    except ValueError as error:
        return (f"{place}: {error}",)
    return () if gpus else (f"{place}: no container has a limit of {resource}; a worker needs one",)


def _all_problems(text: str, resource: str) -> tuple[str, ...]:
    """Return every problem in words; slow, so only for a job that has one."""
    try:
        parse_jobs(text, "job", resource)
    except JobFileError as error:
        return tuple(f"{problem.field}: {problem.message}".lstrip(": ") for problem in error.problems)
    return ("spec: cannot be understood",)
