"""Spare GPUs where their best use is worth most: the jobs' bids, per GPU-second of a loan (docs/spare-gpu.md)."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from espalier_core.types.measurements import Bid, BidUse
from espalier_operator.policies.fair import served_before, weight_of
from espalier_operator.policies.view import Candidate, Decision, Elasticity, Share, View

AGAIN_SECONDS: Final = 60.0
"""Interval of comparisons while jobs wait for a loan: bids fall with the remaining time."""
_HOLDER: Final = 1.25
"""Factor on the bid for a GPU that a job has: estimates vary, and the cost of an interrupted loan is lost."""
_FASTER: Final = 1.05
"""Minimum speed-up by extra workers for which a job that bids for none gets spare ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuePolicy:
    """Each spare GPU goes to the job that gains most by its best use per GPU-second, times its weight by priority.

    A use is another worker, a growth or a trial of growths; for the latter two, one extra worker is enough. Another job
    takes a GPU over once its own bid is higher by a quarter. A job whose next GPU is worth nothing is lent none, and
    gives back what it has. Jobs without bids share, by weight, what is left: up to their fastest number of workers, or
    one more worker, by which a job whose agent forecasts nothing may still grow. Base GPUs go as under `fair`.
    """

    name: ClassVar[str] = "value"
    elasticity: ClassVar[Elasticity] = Elasticity.FIXED
    queue_order: ClassVar[str] = "by priority, recent use and age"

    predicts: bool = True
    """Jobs are compared by their bids. Otherwise the oldest goes first, and each keeps its loan until it can decide
    nothing more; the difference is the value of prediction."""

    def decide(self, view: View) -> Decision:
        """Return the base workers of each job, and extra workers where they are worth most."""
        order = sorted(view.jobs, key=served_before)
        may = [job for job in order if job.workers and job.max_workers > job.min_workers]
        worths = {job.key: self._worths(job, view) for job in may}
        extra, waits = _lent(order, worths, _left(view, order))
        first = sorted((job for job in order if job.key in extra), key=lambda job: -worths[job.key][0])
        rest = [job for job in order if job.key not in extra]
        return Decision(
            shares=tuple(_share(job, view, extra.get(job.key, 0), worths.get(job.key, [])) for job in (*first, *rest)),
            until=view.now + AGAIN_SECONDS if waits else None,
            follows_progress=True,
        )

    def _worths(self, job: Candidate, view: View) -> list[float]:
        """Return the worth of the first extra worker, the second, ..., up to the first that is worth nothing."""
        bids = view.bids.get(job.key, ())
        growths = [bid.rate if self.predicts else 1.0 for bid in bids if bid.use in (BidUse.GROWTH, BidUse.TRIAL)]
        if not self.predicts and not _tells(bids):
            growths = [1.0]
        rates = {bid.workers: bid.rate for bid in bids if bid.use is BidUse.WORKER and self.predicts}
        first = job.min_workers + 1
        rates[first] = max(rates.get(first, 0.0), *growths, 0.0)
        found: list[float] = []
        for workers in range(first, job.max_workers + 1):
            if (rate := rates.get(workers, 0.0)) <= 0:
                break
            held = _HOLDER if workers <= job.workers else 1.0
            found.append(worth_of(held * rate, job.priority if self.predicts else 0, job.gpus_per_worker))
        return found


def worth_of(rate: float, priority: int, gpus_per_worker: int) -> float:
    """Return the worth of a GPU to a job that bids `rate` for a worker, by the weight of its priority."""
    return rate * float(weight_of(priority)) / max(1, gpus_per_worker)


def growth(*, predicts: bool = True, untold: float = 0.0, untold_seconds: float = 0.0) -> ValuePolicy:
    """Return `value` by the name that it had while jobs bid for growths only, until 0.3. The others have no effect."""
    warnings.warn("the scheduling policy `growth` is `value` now; write value", FutureWarning, stacklevel=2)
    return ValuePolicy(predicts=predicts)


def _tells(bids: Sequence[Bid]) -> bool:
    """Return whether a job has told what growing gains, if only that it gains nothing."""
    return any(bid.use is not BidUse.WORKER for bid in bids)


def _lent(order: Sequence[Candidate], worths: Mapping[str, list[float]], left: int) -> tuple[dict[str, int], bool]:
    """Return the extra workers of jobs that are lent some, and whether others would gain by one.

    A job whose next worker does not fit gets no more.
    """
    heap = [(-values[0], place, job) for place, job in enumerate(order) if (values := worths.get(job.key))]
    heapq.heapify(heap)
    extra, waits = dict[str, int](), False
    while heap:
        _, place, job = heapq.heappop(heap)
        if job.gpus_per_worker > left:
            waits = True
            continue
        left -= job.gpus_per_worker
        count = extra[job.key] = extra.get(job.key, 0) + 1
        if count < len(worths[job.key]):
            heapq.heappush(heap, (-worths[job.key][count], place, job))
    return extra, waits


def _left(view: View, order: Sequence[Candidate]) -> int:
    """Return the GPUs that base workers leave: waiting jobs get free GPUs before anything is lent.

    A waiting job that does not fit leaves them to others.
    """
    # The planner keeps running jobs, as this policy does not preempt. In rounds, a waiting job gets its GPUs before a
    # later one that runs, so GPUs of later jobs cannot be lent.
    served = sorted(order, key=lambda job: not job.workers) if view.continuous else order
    left = view.gpus
    for job in served:
        needs = job.min_workers * job.gpus_per_worker
        if job.workers or needs <= left:
            left -= needs
    return left


def _share(job: Candidate, view: View, extra: int, worths: Sequence[float]) -> Share:
    """Return the base workers, those lent, and spare ones: as many as are worth something, or may be."""
    bids, speed_model = view.bids.get(job.key, ()), view.speed_models.get(job.key)
    most = job.min_workers + len(worths)
    if speed_model is None:
        most = max(most, min(job.max_workers, job.min_workers + (not _tells(bids))))
    elif not any(bid.use is BidUse.WORKER for bid in bids):
        fit = max(job.min_workers, min(job.max_workers, view.gpus // max(1, job.gpus_per_worker)))
        fastest = min(range(job.min_workers, fit + 1), key=speed_model.step_seconds)
        faster = speed_model.step_seconds(job.min_workers) >= _FASTER * speed_model.step_seconds(fastest)
        most = fastest if faster else most
    workers = job.min_workers + extra
    return Share(job=job.key, workers=workers, spare=max(0, most - workers), weight=weight_of(job.priority))
