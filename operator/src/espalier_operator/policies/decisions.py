"""A policy's view of a snapshot, and the meaning of its decision: the order of jobs, and moves of lent GPUs.

Lent GPUs go first to jobs that have fewer workers than their share, in the order of shares. The rest is divided by
progressive filling (Bertsekas and Gallager, Data Networks, 2nd edition, 6.5.2), in whole workers: each further worker
goes to the job with the fewest spare GPUs per weight; among equals to the larger weight, then to the earlier share.
So no job has two while another that wants one has none. A loan moves to another job if its holder has more than its
share and the other less; or if both have theirs and the holder is left with more per weight than the taker had, or
with as much and a smaller weight. The order is strict, so no move is ever reversed, and among equals a holder keeps
its loan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Final, NamedTuple

from espalier_operator.model import JobFacts, Node, Snapshot, Worker, WorkerRole, WorkerState
from espalier_operator.policies import Policy
from espalier_operator.policies.speed_models import MeasuredSpeeds, speed_models_of
from espalier_operator.policies.view import ONE, Candidate, Decision, Share, View

Rank = tuple[float, ...]
"""Sort key; smaller goes first."""
_BELOW, _SPARE = 0, 1
_NO_SHARE: Final = Share(job="", workers=0)


def decided(policy: Policy, snapshot: Snapshot, jobs: Sequence[JobFacts], now: float) -> Decision:
    """Return the feasible part of the decision of `policy` for `jobs`, unfinished jobs of the snapshot."""
    view = view_of(snapshot, jobs, now)
    return possible(policy.decide(view), view)


def view_of(snapshot: Snapshot, jobs: Sequence[JobFacts], now: float) -> View:
    """Return the view of a policy, without GPUs held by foreign pods."""
    nodes = {node.name: node.offered for node in snapshot.nodes if node.takes_pods}
    foreign = WorkerRole.FOREIGN
    for worker in snapshot.workers:
        if worker.role is foreign and (place := worker.node or worker.pinned_to) in nodes:
            nodes[place] = max(0, nodes[place] - worker.gpus)
    typed = _by_type(snapshot.nodes, nodes)
    return View(
        now=now,
        gpus=sum(nodes.values()),
        nodes=nodes,
        jobs=tuple(candidate_of(job, now) for job in jobs),
        held=_WorkerNodes(snapshot.workers),
        speed_models=speed_models_of(snapshot, jobs, now),
        bids={job.key: job.bids for job in jobs if job.bids},
        gpu_types=typed,
        speeds=MeasuredSpeeds(snapshot, jobs, [*typed]) if typed else None,
        continuous=True,
        ended={job.key: job.gpu_seconds_at(now) for job in snapshot.jobs if job.finished},
        memory=snapshot.policy_memory,
    )


def _by_type(nodes: Sequence[Node], gpus: Mapping[str, int]) -> dict[str, int]:
    """Return the GPUs of each type that has some, in order of name; empty where all are of one type."""
    if len({node.gpu_type for node in nodes}) < 2:
        return {}
    found: dict[str, int] = defaultdict(int)
    for node in nodes:
        found[node.gpu_type] += gpus.get(node.name, 0)
    typed = {name: gpus for name, gpus in sorted(found.items()) if gpus}
    return typed if len(typed) > 1 else {}


class _WorkerNodes(Mapping[str, tuple[str, ...]]):
    """The nodes of the workers of each job, base workers first, in the order of their indices.

    Built on first access, as few policies read it.
    """

    def __init__(self, workers: Iterable[Worker]) -> None:
        self._workers = workers

    def __getitem__(self, job: str) -> tuple[str, ...]:
        return self._nodes[job]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    @cached_property
    def _nodes(self) -> dict[str, tuple[str, ...]]:
        found: defaultdict[str, list[tuple[bool, int, str]]] = defaultdict(list)
        for worker in self._workers:
            node = worker.node or worker.pinned_to
            if worker.job is not None and node is not None and worker.state is not WorkerState.TERMINATING:
                found[worker.job].append((worker.role is WorkerRole.EXTRA, worker.index, node))
        return {job: tuple(node for _, _, node in sorted(places)) for job, places in found.items()}


def candidate_of(job: JobFacts, now: float) -> Candidate:
    """Return a job as policies see it at `now`."""
    terms, waits = job.terms, job.admitted_at is None
    return Candidate(
        key=job.key,
        submitted_at=job.submitted_at,
        min_workers=terms.min_replicas,
        max_workers=terms.max_replicas,
        gpus_per_worker=terms.gpus_per_worker,
        priority=terms.priority,
        aged=job.aged if waits else 0,
        recent_use=job.recent_use if waits else 0.0,
        workers=0 if waits else terms.min_replicas + job.extra,
        service=job.gpu_seconds_at(now),
        done=job.done,
        gpu_type=job.gpu_type if job.admitted_at is not None else None,
        yields=job.terms.base_preemptible,
    )


def possible(decision: Decision, view: View) -> Decision:
    """Return the feasible part of the decision, with the rest in `ignored`: foreign policies may return anything."""
    jobs, shares, ignored = {job.key: job for job in view.jobs}, dict[str, Share](), list[str]()
    for share in decision.shares:
        job = jobs.get(share.job)
        if job is None:
            ignored.append(f"{share.job}: there is no such job")
        elif share.job in shares:
            ignored.append(f"{share.job}: it has a share already")
        elif not _is_count(share.workers) or not _is_count(share.spare):
            ignored.append(f"{share.job}: it cannot have {share.workers} workers and {share.spare} spare ones")
        elif share.weight is ONE and share.gpu_type is None and share.beside is None and not share.nodes:
            shares[share.job] = share  # nothing in it can be wrong
        else:
            faults = dict(_faults(share, job, view))
            ignored += [f"{share.job}: {fault}" for fault, _ in faults.values()]
            whole = {name: instead for name, (_, instead) in faults.items()}
            shares[share.job] = replace(share, **whole) if whole else share  # type: ignore[arg-type]
    if not ignored:
        return decision
    return replace(decision, shares=tuple(shares.values()), ignored=tuple(ignored))


def _is_count(number: object) -> bool:
    return isinstance(number, int) and number >= 0


def _faults(share: Share, job: Candidate, view: View) -> Iterator[tuple[str, tuple[str, object]]]:
    """Yield (field, (fault, replacement)) for the invalid fields of a share."""
    if not isinstance(share.weight, Fraction) or share.weight <= 0:
        yield "weight", (f"its weight cannot be {share.weight}", ONE)
    if share.gpu_type is not None and share.gpu_type not in view.gpu_types:
        yield "gpu_type", (f"there are no GPUs of type {share.gpu_type!r} to choose", None)
    if share.beside is not None:
        yield "beside", (f"it cannot use the GPUs of {share.beside} too", None)
    if share.nodes:
        unknown = next((node for node in share.nodes if node not in view.nodes), None)
        if unknown is not None:
            yield "nodes", (f"there is no node {unknown} that takes workers", ())
        elif not job.min_workers <= len(share.nodes) <= job.max_workers:
            yield "nodes", (f"it has {job.min_workers} to {job.max_workers} workers, not {len(share.nodes)}", ())


class WeightedOrder(NamedTuple):
    """Compares jobs by their spare GPUs per weight."""

    gpus: int
    """GPUs of a worker per weight, before division by `divisor`, so that equal shares are equal floats."""
    divisor: int
    weight: float

    @classmethod
    def of(cls, share: Share, gpus_per_worker: int) -> WeightedOrder:
        """Return the order of a job by its share."""
        if share.weight is ONE:  # nearly all are; fractions are slow
            return cls(gpus_per_worker, 1, 1.0)
        return cls(gpus_per_worker * share.weight.denominator, share.weight.numerator, float(share.weight))

    def level(self, spare: int) -> tuple[float, float]:
        """Return the sort key of a job with `spare` spare workers, smallest first."""
        return spare * self.gpus / self.divisor, -self.weight


class _RankedShare(NamedTuple):
    """A share in a form for comparison."""

    place: int
    workers: int
    target: int
    """Number of extra workers that the share includes."""
    most: int
    """Number of extra workers that the share allows."""
    is_shared: bool
    """The job has a share; without one, it keeps its holdings."""
    weighing: WeightedOrder
    nodes: tuple[str, ...]
    """Preferred nodes of its workers, base workers first."""
    gpu_type: str | None


class LendingOrder:
    """The order of jobs, and of loans to them, by one decision."""

    def __init__(self, decision: Decision, jobs: Iterable[JobFacts]) -> None:
        shares = {share.job: (place, share) for place, share in enumerate(decision.shares)}
        none = (len(shares), _NO_SHARE)
        self.preempts = decision.preempts
        """Running jobs yield their base GPUs to earlier jobs, if their terms allow it."""
        self._standings = {job.key: _standing(job, *shares.get(job.key, none)) for job in jobs}
        self._staying = set[str]()

    def sorted(self, jobs: Iterable[JobFacts]) -> list[JobFacts]:
        """Return `jobs` in the order in which they are served; jobs without a share come last, the oldest first."""
        return sorted(jobs, key=lambda job: (self._standings[job.key].place, job.submitted_at, job.key))

    def is_before(self, job: JobFacts, holder: JobFacts) -> bool:
        """Return whether the waiting `job` is served before the running `holder`.

        A holder without workers in its share, or with a share of another type of GPU, comes last.
        """
        return self.waits(holder) or self.is_elsewhere(holder) or self.is_earlier(job, holder)

    def is_earlier(self, job: JobFacts, other: JobFacts) -> bool:
        """Return whether the share of `job` comes before that of `other`."""
        return self._standings[job.key].place < self._standings[other.key].place

    def waits(self, job: JobFacts) -> bool:
        """Return whether the decision gives the job no workers."""
        return self._standings[job.key].workers < job.terms.min_replicas

    def most_extra(self, job: JobFacts) -> int:
        """Return the maximum number of extra workers for the job."""
        return self._standings[job.key].most

    def kept_extra(self, job: JobFacts) -> int:
        """Return the number of extra workers that the job keeps: no more than its share allows."""
        standing = self._standings[job.key]
        return min(job.extra, standing.most) if standing.is_shared else job.extra

    def gpu_type(self, job: JobFacts) -> str | None:
        """Return the decided GPU type of the job; None: any."""
        return self._standings[job.key].gpu_type

    def is_elsewhere(self, holder: JobFacts) -> bool:
        """Return whether a running job must move to another type of GPU, on which it could run."""
        return holder.key not in self._staying and self.gpu_type(holder) not in (None, holder.gpu_type)

    def let_stay(self, holder: JobFacts) -> None:
        """Keep a running job on its type, as it could never run on the decided one."""
        self._staying.add(holder.key)

    def wished_nodes(self, job: JobFacts) -> tuple[str, ...]:
        """Return the policy's preferred nodes of the job's workers, base workers first; empty: any."""
        return self._standings[job.key].nodes

    def lending_rank(self, job: JobFacts, extra: int) -> Rank:
        """Return the rank of `job`, if it had `extra` extra workers, in the queue for one more.

        The rank does not fall as `extra` rises: loans are reclaimed in the reverse of this order.
        """
        return *self.levels(job, (extra,))[0], self._standings[job.key].place

    def levels(self, job: JobFacts, extras: Iterable[int]) -> list[Rank]:
        """Return `lending_rank` for each of `extras` without its last part, which orders all jobs (`last_first`)."""
        standing = self._standings[job.key]
        weighing, target = standing.weighing, standing.target
        gpus, divisor, lighter = weighing.gpus, weighing.divisor, -weighing.weight
        spares = (extra - target for extra in extras)
        return [(_SPARE, spare * gpus / divisor, lighter) if spare >= 0 else (_BELOW,) for spare in spares]

    @staticmethod
    def is_spare(level: Rank) -> bool:
        """Return whether the workers of one of `levels` are beyond the shares of their jobs."""
        return level[0] == _SPARE

    def last_first(self, jobs: Iterable[JobFacts]) -> list[JobFacts]:
        """Return `jobs` in the reverse of their order at one level; jobs without a share stay in the given order."""
        return sorted(jobs, key=lambda job: self._standings[job.key].place, reverse=True)

    def may_take(self, taker: JobFacts, has: int) -> Callable[[JobFacts, int], bool]:
        """Return a function of a holder and its remaining extra workers: whether `taker`, with `has`, may take one.

        It is monotone: a taker that may not take the first candidate for reclaim takes nothing, and no later request by
        `lending_rank` may take what `taker` may not. It never holds for both directions of a move.
        """
        standings, wants = self._standings, self._standings[taker.key]
        spare = has - wants.target
        level = wants.weighing.level(spare) if spare >= 0 else None

        def may(holder: JobFacts, keeps: int) -> bool:
            gives = standings[holder.key]
            left = keeps - gives.target
            return left >= 0 and (level is None or level < gives.weighing.level(left))

        return may


def _standing(job: JobFacts, place: int, share: Share) -> _RankedShare:
    base = job.terms.min_replicas
    return _RankedShare(
        place=place,
        workers=share.workers,
        target=max(0, share.workers - base),
        most=max(0, share.workers + share.spare - base),
        is_shared=share is not _NO_SHARE,
        weighing=WeightedOrder.of(share, job.terms.gpus_per_worker),
        nodes=share.nodes,
        gpu_type=share.gpu_type,
    )
