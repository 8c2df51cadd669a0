"""Numbers of workers of jobs from a decision, if only the number of GPUs counts. Pure; one GPU per worker."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from espalier_operator.policies.decisions import WeightedOrder
from espalier_operator.policies.view import Share


def fill(shares: Iterable[Share], base: Mapping[str, int], gpus: int) -> dict[str, int]:
    """Return the workers of each job with a share, in the order of shares.

    Each in turn gets its share, or the rest, but not fewer than its base workers; then spare GPUs go to the job with
    the fewest workers relative to its weight (as in `espalier_operator.policies.decisions`).
    """
    workers: dict[str, int] = {}
    spare: list[tuple[tuple[float, float], int, int, Share]] = []
    for place, share in enumerate(shares):
        count = min(share.workers, gpus)
        workers[share.job] = count = count if count >= base[share.job] else 0
        gpus -= count
        if count and count == share.workers and share.spare:
            spare.append((WeightedOrder.of(share, 1).level(0), place, 1, share))
    heapq.heapify(spare)
    while gpus and spare:
        _, place, more, share = heapq.heappop(spare)
        workers[share.job] += 1
        gpus -= 1
        if more < share.spare:
            heapq.heappush(spare, (WeightedOrder.of(share, 1).level(more), place, more + 1, share))
    return workers
