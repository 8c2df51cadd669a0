"""Hands out workers: base workers in an order, then each further one to the job to which it is worth the most. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from espalier_operator.policies.view import Candidate, Share

Worth = Callable[[Candidate, int], float]
"""What one more worker is worth to a job, by the number that it has."""


def hand_out(order: Iterable[Candidate], known: Iterable[str], gpus: int, worth: Worth) -> dict[str, int]:
    """Return the workers of each job, in `order`. In it they get their base workers; one that needs too many waits.

    Of the jobs of which more is `known`, each further worker goes where it is worth the most, and more than 0. Of equal
    ones, the first in `order` comes first. A job whose next worker does not fit gets no more.
    """
    workers, free = dict[str, int](), gpus
    jobs = list(order)
    for job in jobs:
        needs = job.min_workers * job.gpus_per_worker
        workers[job.key] = job.min_workers if needs <= free else 0
        free -= needs if needs <= free else 0
    growing = set(known)
    heap = [
        (-worth(job, workers[job.key]), place, job)
        for place, job in enumerate(jobs)
        if job.key in growing and 0 < workers[job.key] < job.max_workers
    ]
    heapq.heapify(heap)
    while heap and heap[0][0] < 0:
        _, place, job = heap[0]
        if job.gpus_per_worker > free:
            heapq.heappop(heap)
            continue
        free -= job.gpus_per_worker
        workers[job.key] += 1
        if workers[job.key] == job.max_workers:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (-worth(job, workers[job.key]), place, job))
    return workers


def share_of(job: Candidate, workers: int, *, known: bool) -> Share:
    """Return a share of `workers`, and of spare ones for a job of which no more is known, while nobody needs them."""
    return Share(job=job.key, workers=workers, spare=0 if known or not workers else job.max_workers - workers)
