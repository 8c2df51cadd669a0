"""A running job with an invalid specification, reconstructed from its status.

An operator that sees a specification become invalid continues with the last good one. An operator that starts has
none: a PriorityClass may be gone, or a newer version may be stricter. The job's grants are in its status, which the
operator wrote itself. By these its workers hold their GPUs, its budget runs, and it can be stopped. It gives back its
loans, because its limits are unknown, and no pod is made for it, because its template is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from espalier_core.k8s.resources import Raw
from espalier_core.types.job import API_VERSION, KIND, AdaptiveTrainingJob
from espalier_core.types.pod_template import DEFAULT_GRACE_SECONDS
from espalier_core.types.status import JobStatus
from espalier_operator.job.state import JobState
from espalier_operator.kube.objects.jobs import InvalidJob, KubeJob
from espalier_operator.kube.objects.nodes import resource_of_type
from espalier_operator.kube.reading import mapping
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import JobTerms, grace_of

_KEPT: Final = (
    "suspend",
    "priority",
    "queue",
    "preemption",
    "gpuSecondsBudget",
    "backoffLimit",
    "maxPreemptions",
    "ttlSecondsAfterFinished",
)


def remnant_of(
    invalid: InvalidJob, raw: Raw, status: JobStatus, state: JobState, created_at: float, settings: KubeSettings
) -> KubeJob | None:
    """Return the job of `status`, which runs or is over, without its specification; None if `status` is inconsistent.

    The fields in `_KEPT` are still read from `raw`, each if it is valid by itself. For a job that is over, nothing else
    matters.
    """
    workers = status.replicas - state.extra
    if state.outcome is not None:
        workers = max(1, workers)
    elif not 0 < workers <= len(state.attempts) or not state.grant.replicas:
        return None
    namespace, _, name = invalid.key.partition("/")
    budget = status.time_budget
    known: dict[str, Any] = {
        "timeBudgetSeconds": budget.used_seconds + budget.remaining_seconds,
        "minReplicas": workers,
        "maxReplicas": workers,
    }
    job = _parsed(namespace, name, known)
    for field in _KEPT:
        given = mapping(raw, "spec").get(field)
        if job is not None and given is not None and (more := _parsed(namespace, name, {**known, field: given})):
            job, known = more, {**known, field: given}
    if job is None:
        return None
    terms = JobTerms.of(
        job,
        grace_seconds=grace_of(job, settings.grace_seconds),
        resource=resource_of_type(state.gpu_type or "", settings),
    )
    if state.grant.replicas:
        terms = replace(terms, gpus_per_worker=state.grant.gpus // state.grant.replicas)
    if isinstance(mapping(raw, "spec").get("program"), Mapping):
        terms = replace(terms, program=True, grace_seconds=DEFAULT_GRACE_SECONDS, adapts=False)
    return KubeJob(
        job=job, terms=terms, uid=invalid.uid, generation=invalid.generation, created_at=created_at, is_remnant=True
    )


def suspended_as_asked(job: KubeJob, raw: Raw) -> KubeJob:
    """Return a job that continues by an earlier specification, with `suspend` from the invalid one, `raw`.

    So its owner can stop it before finding the other mistake.
    """
    suspend = mapping(raw, "spec").get("suspend") is True
    return job if suspend == job.terms.suspend else replace(job, terms=replace(job.terms, suspend=suspend))


def _parsed(namespace: str, name: str, spec: dict[str, Any]) -> AdaptiveTrainingJob | None:
    metadata = {"name": name, "namespace": namespace}
    whole = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    try:
        return AdaptiveTrainingJob.model_validate_json(json.dumps(whole), strict=True)
    except (ValidationError, RecursionError):
        return None
