"""Queues as the API server has them, for the planner. Pure."""

from __future__ import annotations

import json

from pydantic import ValidationError

from espalier_api.queue import Queue as QueueObject
from espalier_kube.resources import Raw, key_of
from espalier_operator.queues import Queue, Quota


def parse_queue(raw: Raw) -> Queue:
    """Return a queue; one that cannot be read takes no jobs with GPUs, so that a damaged quota is not a missing one."""
    try:
        spec = QueueObject.model_validate_json(json.dumps(raw), strict=True).spec
    except ValidationError:
        return Queue(name=key_of(raw), quotas=(Quota(nominal=0),))
    return Queue(
        name=key_of(raw),
        cohort=spec.cohort,
        namespaces=spec.namespaces,
        max_priority=spec.max_priority,
        weight=spec.weight,
        quotas=tuple(
            Quota(gpu_type=quota.gpu_type, nominal=quota.nominal, borrowing_limit=quota.borrowing_limit)
            for quota in spec.quotas
        ),
    )
