"""Extra workers that are granted and not bound to a node yet."""

from __future__ import annotations

from collections.abc import Sequence

from espalier_operator.capacity import Capacity
from espalier_operator.facts import JobFacts, Promise, Role, Worker, WorkerState


def hold_promised(
    capacity: Capacity, job: JobFacts, promise: Promise | None, seen: Sequence[Worker], kept: int, now: float
) -> list[Worker]:
    """Keep GPUs in `capacity` for what `job` was granted and is not bound; return that as workers of where it will be.

    Those are the unbound ones of `seen` (the job's live extra workers), and while `promise` holds those that are not
    to be seen at all. Workers from index `kept` up are being given back: they are counted until they are gone, and
    are not in the answer. Where there is no room for one it is left to be bound, or its promise to expire.
    """
    bound = {worker.index for worker in seen if worker.node is not None}
    due = job.extra if promise is not None and now < promise.expires_at else len(seen)
    unbound = [index for index in range(job.extra) if index not in bound][: max(0, due - len(bound))]
    promised = []
    for index in unbound:
        keep = capacity.hold if index < kept else capacity.occupy
        node = keep(job.gpu_type or "", job.terms.gpus_per_worker)
        if node is not None and index < kept:
            promised.append(
                Worker(
                    name=f"{job.key} extra {index}, promised",
                    job=job.key,
                    role=Role.EXTRA,
                    index=index,
                    node=node,
                    gpus=job.terms.gpus_per_worker,
                    state=WorkerState.PENDING,
                )
            )
    return promised
