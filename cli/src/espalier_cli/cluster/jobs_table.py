"""`espalier list`: one row a job. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from espalier_cli.cluster.output import Row
from espalier_cli.cluster.standing import Job, phase, standing
from espalier_cli.cluster.wording import short
from espalier_core.types.status import ConditionType
from espalier_core.types.task import Score, accuracy_of, other_than_accuracy, score_in

COLUMNS = ("NAME", "PHASE", "GPUS", "EXTRA", "DEPTH", "ADAPTATIONS", "BUDGET-LEFT", "AGE", "REASON")
WIDE_COLUMNS = (*COLUMNS, "QUEUE", "TYPE", "RESTARTS", "PREEMPTIONS", "EPOCH", "SCORE", "MESSAGE")
FIGURES = (*COLUMNS[2:-1], "RESTARTS", "PREEMPTIONS", "EPOCH", "SCORE")
"""Those that are flush right."""


def sorted_jobs(jobs: Iterable[Job]) -> list[Job]:
    """Return them by namespace and name."""
    return sorted(jobs, key=lambda job: (job.namespace, job.name))


def row_of(job: Job, now: float, *, wide: bool = False, namespaced: bool = False) -> Row:
    """Return the cells of a job under `COLUMNS` (`WIDE_COLUMNS`), with its namespace first if `namespaced`."""
    status, why = job.status, standing(job)
    reason = "" if why.reason is None else str(why.reason)
    cells = [
        job.name,
        phase(job),
        str(status.allocation.gpus),
        str(status.scheduling.extra),
        str(status.training.depth or ""),
        str(status.adaptation_count),
        short(job.remaining_seconds),
        short(now - job.created_at),
        reason or "not seen by an operator",
    ]
    if wide:
        score = score_of(job)
        cells += [
            str(job.spec.get("queue") or ""),
            status.scheduling.gpu_type or "",
            str(status.restarts),
            str(status.preemptions),
            str(status.training.epoch or ""),
            "" if score is None else str(score) if other_than_accuracy(score) else f"{score.value:.3f}",
            why.message,
        ]
    return [job.namespace, *cells] if namespaced else cells


def entry_of(job: Job) -> dict[str, Any]:
    """Return the row for programs."""
    status, why = job.status, standing(job)
    admitted = job.status.condition(ConditionType.ADMITTED)
    return {
        "namespace": job.namespace,
        "name": job.name,
        "phase": phase(job),
        "admitted": admitted is not None and admitted.status == "True",
        "gpus": status.allocation.gpus,
        "extraWorkers": status.scheduling.extra,
        "gpuType": status.scheduling.gpu_type,
        "depth": status.training.depth,
        "parameters": status.training.parameters,
        "epoch": status.training.epoch,
        "accuracy": accuracy_of(score_of(job)),
        "score": None if (score := score_of(job)) is None else score.to_json(),
        "adaptations": status.adaptation_count,
        "budgetSeconds": job.budget_seconds,
        "budgetRemainingSeconds": job.remaining_seconds,
        "restarts": status.restarts,
        "preemptions": status.preemptions,
        "createdAt": job.created_at,
        "reason": None if why.reason is None else str(why.reason),
        "message": why.message,
    }


def score_of(job: Job) -> Score | None:
    """Return the score on the test split, before the end that on the validation split, where it is reported."""
    metrics = {metric.name: metric.value for metric in job.status.training.metrics}
    return score_in(metrics, "test") or score_in(metrics, "validation")
