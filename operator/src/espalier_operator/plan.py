"""The planner: a snapshot in, actions and reasons out. Pure: no clock, no I/O, no state between calls.

Invariants, whatever the policy; `tests/unit/operator/test_plan_properties.py` checks each by its number.

1.  Never more GPUs than exist: what is granted fits into what ready, schedulable nodes have free, node by node, on
    nodes that the job's constraints admit, whatever nodes the policy wishes.
2.  A GPU is held while its worker is pending, running or terminating; only a worker's absence frees it.
3.  A promise (extra workers granted, not yet seen) is counted until they are seen or it expires. The base workers
    of an admitted job are always counted.
4.  Base GPUs are granted all at once or not at all, on one type of GPU, and are never taken from a running job.
    Where they are physically gone and no lent GPU can replace them, or kube-scheduler finds no node for a worker
    though they are free, the whole job waits again with its budget kept; the latter with back-off. Only a job that
    allows it is stopped, with notice and not before `minRuntimeSeconds`: where its queue has borrowed its GPUs and a
    job waits for their quota, or where the policy preempts and an earlier job waits for them (`preemption`), or its own
    share is of another type of GPU and there is room for it there, or it has no share and makes that room (`moves`), or
    its node is about to go.
5.  Every lent GPU has a holder that has reported, trains and may grow; what it may no longer hold, by its terms or by
    its share, is reclaimed. A GPU is reclaimed by a notice, followed by the holder's acknowledgement or the deadline.
    Only GPUs that no longer exist are released without a notice.
6.  Lent GPUs never delay base GPUs or other people's pods by more than one notice, or the stop of their holder.
    Other people's pods count only on nodes that their constraints admit: one that fits on no node delays nobody.
7.  The extra workers of an allocation do not increase within `cooldownSeconds` of their last change. To give extra
    GPUs to another job, or for a smaller share, they are not reduced within `minRuntimeSeconds` of their last change;
    where they must be reduced anyway, not within `minRuntimeSeconds` of their last increase.
8.  Every unfinished job is named by an action or a refusal with its reason.
9.  Planning is idempotent: once grants and notices are applied, the next plan is empty. Ends and releases free GPUs,
    so the next plan may use these GPUs, and nothing else. Workers of several GPUs may need one more reclaim if they
    are bound to other nodes.

Queue: in the policy's order, with EASY backfilling (`reservations`). A job that must wait keeps the GPUs on which it
starts at the latest, when those that run have used up their budgets; jobs after it start before it where they do not
delay it. GPUs that are idle meanwhile are lent as extra GPUs, which can be reclaimed within one notice. A job that
would not fit even if all our jobs had ended keeps none: it is too large, or waits for pods of others, which may never
leave.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

from espalier_api.reasons import Reason
from espalier_operator.actions import (
    Action,
    Admit,
    GrantExtra,
    NoticeReclaim,
    Plan,
    Refusal,
    ReleaseExtra,
    Replace,
    Requeue,
    Stop,
)
from espalier_operator.capacity import Capacity, Supply
from espalier_operator.constraints import Constraints
from espalier_operator.facts import NOWHERE, JobFacts, Placement, Role, Snapshot, Worker, WorkerState
from espalier_operator.goods import Goods
from espalier_operator.lifecycle import (
    ending,
    ends_by,
    is_held_back,
    lendable,
    lendable_at,
    most_extra,
    stop_seconds,
    turning_points,
)
from espalier_operator.moves import Moves
from espalier_operator.namespaces import NamespaceLedger
from espalier_operator.order import Order, Rank
from espalier_operator.policies import Policy
from espalier_operator.policy_view import decided
from espalier_operator.pool import Pool, hold_promised
from espalier_operator.preemption import Preemption
from espalier_operator.queues import Ledger
from espalier_operator.reclaims import ReclaimQueue
from espalier_operator.reservations import Holding, Reservations
from espalier_operator.sites import Site
from espalier_operator.strangers import served

_Attempt = tuple[tuple[Site, ...], int, int, tuple[int, ...]]
"""Where a gang was to start, its workers' GPUs, its workers, and what it must not touch."""


def plan(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
    """Return what to do at `now`, with the reason for everything done and everything refused."""
    tick = _Tick(snapshot, policy, now)
    tick.leave_departing_gpus()
    tick.place_claims()
    tick.admit()
    tick.lend()
    return tick.result()


class _Tick:
    """One call of `plan`, in steps; each step works with the GPUs that the earlier ones left."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self._now, self._rules = now, snapshot.rules
        self._actions: list[Action] = []
        self._refusals: dict[str, Refusal] = {}
        self._wake_at: float | None = None
        self._touched: set[str] = set()
        """Jobs that already have an action in this tick: nothing is lent to them or reclaimed from them."""
        self._bound: dict[str | None, dict[int, str]] = defaultdict(dict)
        """By job: the nodes of its live base workers that are bound to one."""
        self._pinned: dict[str | None, dict[int, tuple[Supply, str]]] = defaultdict(dict)
        """By job: its base workers that wait for the node that was chosen for them; when they get its GPUs, and it."""
        self._moved: dict[str, list[Worker]] = defaultdict(list)
        """By job: its workers that are not bound, and whose node has no room for them."""
        self._base_nodes: dict[str, dict[int, str | None]] = defaultdict(dict)
        self._extra_nodes: dict[str, list[str | None]] = defaultdict(list)
        """By job: where its workers that are still to be made will run."""
        self._extras: dict[str | None, list[Worker]] = defaultdict(list)
        """By job: its live extra workers."""
        self._foreign: list[Worker] = []
        """Pods of others that wait for GPUs."""
        self._rivals = {worker.node or worker.pinned_to for worker in snapshot.workers if worker.is_rival}
        """Nodes where workers of another Espalier are, or will be."""
        self._machines = {node.name: node for node in snapshot.nodes} if self._rivals else {}
        waiting: list[Worker] = []
        """Workers that wait for the node that was chosen for them."""
        for worker in snapshot.workers:
            if worker.state is not WorkerState.TERMINATING:
                if worker.pinned_to is not None and worker.node is None:
                    waiting.append(worker)
                if worker.role is Role.EXTRA:
                    self._extras[worker.job].append(worker)
                elif worker.role is Role.BASE:
                    if worker.node is not None:
                        self._bound[worker.job][worker.index] = worker.node
                elif worker.node is None and worker.pinned_to is None:
                    self._foreign.append(worker)
        self._foreign = served(self._foreign)
        self._promises = {promise.job: promise for promise in snapshot.promises}
        self._ledger = Ledger(snapshot.queues, snapshot.held_claims())
        unfinished = [self._within_limits(job) for job in snapshot.jobs if not job.finished]
        open_jobs = [job for job in unfinished if not self._ends(job)]
        # One that goes back to the queue in this tick keeps what the policy remembers of it.
        over = {action.job for action in self._actions if not isinstance(action, Requeue | Stop)}
        self._decision = decided(policy, snapshot, [job for job in unfinished if job.key not in over], now)
        if self._decision.until is not None:
            self._wake(self._decision.until)
        back = {action.job for action in self._actions if isinstance(action, Requeue)}
        self._requeued = [job for job in unfinished if job.key in back]
        self._order = Order(self._decision, [*open_jobs, *self._requeued])
        open_jobs = self._order.sorted(open_jobs)
        self._waiting = [job for job in open_jobs if job.admitted_at is None]
        self._running = [job for job in open_jobs if job.admitted_at is not None]
        self._preemptible = sorted(
            (job for job in self._running if job.terms.base_preemptible),
            key=lambda job: (job.terms.priority, -(job.admitted_at or 0.0), job.key),
        )
        self._kept = {job.key: self._settle_extra(job) for job in self._running}
        """By running job: its extra workers less those that it gives back."""
        leaving = self._leaving(snapshot)
        asked = {job.terms.constraints for job in snapshot.jobs} | {worker.constraints for worker in self._foreign}
        others = [*self._foreign, *(worker for worker in waiting if worker.is_rival)]
        self._capacity = Capacity(
            snapshot.nodes, snapshot.workers, leaving, asked, snapshot.jobs, snapshot.rules.rack_label, others
        )
        self._prior = snapshot.placements
        for job in snapshot.jobs:
            if job.stopping is not None and job.admitted_at is not None and not job.finished:
                self._ledger.give_back(job.claim, job.gpu_type or "")
        self._hold_pinned(waiting, {job.key: job for job in snapshot.jobs}, leaving)
        # Includes jobs that end in this tick: their workers may be binding at this moment.
        for job in self._choosiest_first(job for job in snapshot.jobs if job.extra):
            own, kept = self._extras[job.key], self._kept.get(job.key, 0)
            chosen = _less(self._prior.get(job.key, NOWHERE).extra, (worker.node for worker in own))
            promise = self._promises.get(job.key)
            promised = hold_promised(self._capacity, job, promise, own, kept, now, chosen)
            self._extra_nodes[job.key] += [worker.node if job.pinned else None for worker in promised]
            own += promised
        self._reclaims = ReclaimQueue(self._running, self._extras, leaving, self._order, now)
        self._namespaces = NamespaceLedger(
            snapshot.namespace_limits, snapshot.jobs, snapshot.workers, leaving, self._kept
        )
        self._pool = Pool(self._capacity, self._reclaims)
        self._reservations = Reservations(
            self._capacity, snapshot.rules.reservations, self._running_until, self._reclaims.loans
        )
        self._preemption = Preemption(
            running=self._yielding() if self._order.preempts else (),
            order=self._order,
            capacity=self._capacity,
            pool=self._pool,
            holding=self._base_holding,
            now=now,
            wake=self._wake,
        )
        self._moves = Moves(
            preemption=self._preemption,
            order=self._order,
            capacity=self._capacity,
            pool=self._pool,
            is_busy=self._is_busy,
            site_on=self._site_on,
            kept=self._relied_on,
        )
        self._vain: dict[_Attempt, Reason] = {}
        """Which gangs found no GPUs, and why: nor do others like them."""
        self._known_sites: dict[tuple[str | None, Constraints, int, int, str | None], list[Site]] = {}
        self._tried: Counter[tuple[str, ...]] = Counter()
        """By types of GPUs: how many found none."""
        self._nodes: dict[str, set[str]] = {}
        """By job: where its workers are, or will be."""
        self._lent_nodes: dict[str, list[str]] = defaultdict(list)
        """By job: the nodes of the workers that this plan lends it."""
        self._departures = {node.name: node.departs_at for node in snapshot.nodes if node.departing}

    def leave_departing_gpus(self) -> None:
        """Reclaim lent workers on nodes that have, or will have, fewer GPUs than are held there.

        Where that is not enough on a node whose GPUs are announced to go, jobs that allow it are moved.
        """
        for node, gpus in self._capacity.overdrawn():
            self._reclaims.leave_node(self._capacity, node, gpus, by=self._departures.get(node))
        left = {node for node, _ in self._capacity.overdrawn() if node in self._departures}
        moves = (job for job in self._preemptible if left.intersection(self._bound[job.key].values())) if left else ()
        self._stop([job for job in moves if job.stopping is None and not self._is_busy(job)], Reason.NODE_DEPARTING)

    def place_claims(self) -> None:
        """Reclaim GPUs for workers that are already owed them: base workers of running jobs, pods of others."""
        for job in self._choosiest_first(self._running):
            if job.stopping is not None:
                continue
            if len(self._bound[job.key]) >= job.terms.min_replicas and job.key not in self._moved:
                continue
            supply = self._claim(job)
            moved = tuple(worker.index for worker in self._moved[job.key] if worker.role is Role.BASE)
            if supply is Supply.NEVER:
                self._act(self._give_up(job))
            elif moved:
                self._act(Replace(job=job.key, workers=moved, pinned=job.pinned, reason=Reason.GPU_LOST))
            elif len(self._bound[job.key]) < job.terms.min_replicas and supply is Supply.NOW:
                self._doubt(job)
        hopeless: set[tuple[str | None, int, Constraints]] = set()
        for foreign in self._foreign:
            kind = (foreign.gpu_type, foreign.gpus, foreign.constraints)
            if kind in hopeless:
                continue
            sites = self._sites(foreign.gpu_type, foreign.constraints)
            if self._pool.obtain(sites, foreign.gpus) is Supply.NEVER:
                hopeless.add(kind)

    def admit(self) -> None:
        """Start waiting jobs in order; one that must wait is not delayed by those after it.

        Those whose queue must borrow for them come after all others.
        """
        borrowers: list[JobFacts] = []
        for job in self._order.sorted([*self._waiting, *self._between_types()]):
            if job.admitted_at is not None:
                self._moves.keep(job)
            elif not self._admit_in_turn(job, borrowing=False):
                borrowers.append(job)
        for job in borrowers:
            self._admit_in_turn(job, borrowing=True)
        self._stop(self._moves.stopping(), Reason.PREEMPTED_BY_POLICY)
        self._reservations.end()

    def _between_types(self) -> list[JobFacts]:
        """Return the jobs that save their checkpoints, or just have, to start again on another type of GPU."""
        return [
            job
            for job in [*self._running, *self._requeued]
            if job.stopping is not None
            and job.stopping.reason is Reason.PREEMPTED_BY_POLICY
            and self._order.is_elsewhere(job)
            and not self._order.waits(job)
        ]

    def _relied_on(self, jobs: Iterable[JobFacts]) -> set[str]:
        """Return the nodes on which earlier jobs count that `jobs`, wherever they run, could delay."""
        return self._reservations.relied_on(max(ends_by(job, self._now, self._rules) for job in jobs))

    def _admit_in_turn(self, job: JobFacts, *, borrowing: bool) -> bool:
        """Start a waiting job, or refuse it; return False where its queue must borrow for it, which is done later."""
        terms, gpus, workers = job.terms, job.terms.gpus_per_worker, job.terms.min_replicas
        wished, claim = self._order.gpu_type(job), job.claim
        sites = self._wished_sites(terms.gpu_type, terms.constraints, gpus, workers, wished)
        not_taken = self._ledger.refusal(claim)
        if job.terms.suspend:
            self._refuse(job, Reason.SUSPENDED)
        elif not_taken is not None:
            self._refuse(job, not_taken)
        elif self._order.waits(job):
            self._refuse(job, Reason.HELD_BY_POLICY)
        elif gpus == 0:
            self._base_nodes[job.key].update(dict.fromkeys(range(workers)))
            self._act(Admit(job=job.key, gpu_type=None))
        elif is_held_back(job, self._now):
            self._refuse(job, _obstacle(job))
            self._wake(job.hold_until or 0.0)
        elif not sites:
            fits_elsewhere = self._large_enough(terms.gpu_type, None, gpus, workers)
            self._refuse(job, Reason.UNSCHEDULABLE if fits_elsewhere else Reason.TOO_LARGE)
        elif not (allowed := self._allowed(job, sites, borrowing=borrowing)):
            types = [site.gpu_type for site in sites]
            if not borrowing and self._allowed(job, sites, borrowing=True):
                self._ledger.defer(claim, types)
                return False
            self._refuse(job, Reason.QUOTA_EXCEEDED)
            self._reclaim_quota(job, types)
            self._ledger.wait(claim, types)
        elif not self._has_room_in_namespace(job):
            self._refuse(job, Reason.RESOURCE_QUOTA_EXCEEDED)
        else:
            self._start_or_wait(job, allowed)
        return True

    def _has_room_in_namespace(self, job: JobFacts) -> bool:
        """Return whether the ResourceQuotas of its namespace have room for all base workers of a waiting job.

        Where they would have it without extra workers that are lent in the namespace, these are reclaimed.
        """
        workers = job.terms.min_replicas
        if self._namespaces.is_closed(job):
            return False
        if self._namespaces.fits(job, workers):
            return True
        if self._namespaces.could_ever_fit(job, workers):
            lacks = self._namespaces.lacks(job, workers)
            if self._reclaims.leave_namespace(self._capacity, job.key, lacks):
                self._namespaces.hold(job, workers)
            self._namespaces.wait(job)
        return False

    def _reclaim_quota(self, job: JobFacts, gpu_types: Iterable[str]) -> None:
        """Stop jobs that hold the quota that `job` needs, as few as free enough of one type.

        Where it is that of other queues they have borrowed it; where it is its own the policy must preempt.
        """
        for gpu_type in gpu_types:
            exceeds = self._ledger.exceeds(job.claim, gpu_type) if self._order.preempts else None
            if exceeds is not None:
                yielding = self._preemption.of_queue(job, gpu_type, exceeds, self._is_busy)
                if yielding is None:
                    continue
                self._stop(yielding, Reason.PREEMPTED_BY_POLICY)
                self._ledger.promise(job.claim, gpu_type)
                return
            lacks = self._ledger.lacks(job.claim, gpu_type)
            if lacks is None:
                continue
            stopped = self._borrowers(job, gpu_type, lacks)
            if lacks > sum(holder.claim.gpus for holder in stopped):
                continue
            self._stop(stopped, Reason.QUOTA_RECLAIMED)
            self._ledger.promise(job.claim, gpu_type)
            return

    def _stop(self, jobs: Iterable[JobFacts], reason: Reason) -> None:
        """Stop running jobs, with time for a checkpoint."""
        for job in jobs:
            self._ledger.give_back(job.claim, job.gpu_type or "")
            grace = max(stop_seconds(job.terms, self._rules), 0.0 if job.terms.program else job.terms.notice_seconds)
            self._act(Stop(job=job.key, reason=reason, deadline=self._now + grace))
            self._wake(self._now + grace)

    def _borrowers(self, job: JobFacts, gpu_type: str, lacks: int) -> list[JobFacts]:
        """Return running jobs that would give back `lacks` borrowed GPUs, the least important and youngest first."""
        found: list[JobFacts] = []
        given: Counter[str] = Counter()
        for holder in self._preemptible:
            if lacks <= sum(given.values()):
                break
            candidate = holder.gpu_type == gpu_type and holder.stopping is None
            borrowed = self._ledger.borrowed(holder.claim, gpu_type, lender=job.claim) - given[holder.terms.queue]
            if not candidate or holder.key in self._touched or borrowed <= 0:
                continue
            spared_until = (holder.admitted_at or 0.0) + holder.terms.min_runtime_seconds
            if self._now < spared_until:
                self._wake(spared_until)
                continue
            found.append(holder)
            given[holder.terms.queue] += holder.claim.gpus
        return found

    def _allowed(self, job: JobFacts, sites: Iterable[Site], *, borrowing: bool) -> list[Site]:
        """Return those of `sites` on whose GPUs the job's queue may run it."""
        if not self._ledger.limits:
            return [*sites]
        claim = job.claim
        return [site for site in sites if self._ledger.allows(claim, site.gpu_type, borrowing=borrowing)]

    def lend(self) -> None:
        """Lend the GPUs that are left, one worker at a time, to the first job in the policy's order."""
        wishes: list[tuple[Rank, int, int]] = []
        for place, job in enumerate(self._running):
            if job.key in self._touched:
                continue
            asked = self._reclaims.is_asked(job.key)
            most = Reason.RECLAIM_PENDING if asked else lendable(job, self._now, self._rules)
            if not isinstance(most, Reason):
                allowed = self._order.most_extra(job) - job.extra
                most = min(most, allowed) if allowed > 0 else Reason.HELD_BY_POLICY
            if isinstance(most, Reason):
                self._refuse(job, most)
                if (again := lendable_at(job, most)) is not None:
                    self._wake(again)
            else:
                wishes.append((self._order.lending_rank(job, job.extra), place, most))
        heapq.heapify(wishes)
        granted: dict[str, int] = {}
        hoped: dict[str, int] = {}
        """By job: its extra workers, including those granted now and those it gets after a reclaim from others."""
        while wishes:
            _, place, most = heapq.heappop(wishes)
            job = self._running[place]
            if self._reclaims.is_asked(job.key):
                continue
            if not self._namespaces.fits(job, 1):
                if job.key not in hoped and job.key not in granted:
                    self._refuse(job, Reason.RESOURCE_QUOTA_EXCEEDED)
                continue
            extra, mark = hoped.get(job.key, job.extra), self._capacity.mark()
            supply = self._supply_extra(job, extra, granted)
            if supply is Supply.NOW:
                self._extra_nodes[job.key] += self._placed(job, mark)[-1:]
                lent = self._capacity.placed_since(mark)[-1:]
                self._near(job).update(lent)
                self._lent_nodes[job.key] += lent
                granted[job.key] = granted.get(job.key, job.extra) + 1
                self._namespaces.hold(job, 1)
            elif job.key not in hoped and job.key not in granted:
                self._refuse(job, Reason.NO_FREE_GPU)
            if supply is not Supply.NEVER and most > 1:
                hoped[job.key] = extra + 1
                rank = self._order.lending_rank(job, extra + 1)
                heapq.heappush(wishes, (rank, place, most - 1))
        self._actions += [GrantExtra(job=key, extra=extra) for key, extra in granted.items()]
        for key in granted:
            self._refusals.pop(key, None)

    def result(self) -> Plan:
        """Return the plan, with a notice for each job that is asked to give something back."""
        for notice in self._reclaims.notices():
            if notice.job not in self._touched:
                self._actions.append(notice)
                self._refusals.pop(notice.job, None)
                self._wake(notice.deadline)
        return Plan(
            actions=tuple(self._actions),
            refusals=self._refusals,
            placements=self._placements(),
            shares=self._decision.shares,
            ignored=self._decision.ignored,
            wake_at=self._wake_at,
            policy_memory=self._decision.memory,
        )

    def _placements(self) -> dict[str, Placement]:
        found = {}
        for key in self._base_nodes.keys() | self._extra_nodes.keys() | self._moved.keys():
            moved = frozenset(worker.name for worker in self._moved[key] if worker.role is Role.EXTRA)
            placement = Placement(base=self._base_nodes[key], extra=tuple(self._extra_nodes[key]), moved=moved)
            if placement != NOWHERE:
                found[key] = placement
        return found

    def _hold_pinned(self, waiting: Iterable[Worker], jobs: Mapping[str, JobFacts], leaving: set[str]) -> None:
        """Keep GPUs for workers that are not bound, on the nodes that were chosen for them.

        Our own first: where another Espalier has chosen the same node, kube-scheduler decides who is bound.
        """
        for worker in sorted(waiting, key=lambda worker: worker.is_rival):
            job = jobs.get(worker.job or "")
            if job is None:
                chosen = self._machines.get(worker.pinned_to or "")
                if chosen is not None and chosen.admits(worker.constraints):
                    self._capacity.reserve(chosen.name, worker.gpus, worker.constraints.requests)
                continue
            stays = worker.name not in leaving
            supply = self._capacity.hold_at(self._site(job), worker.pinned_to, worker.gpus, stays=stays)
            if supply is Supply.NEVER or worker.pinned_to is None:
                self._moved[job.key].append(worker)
            elif worker.role is Role.BASE:
                self._pinned[job.key][worker.index] = supply, worker.pinned_to
            else:
                own = self._extras[job.key]
                own[own.index(worker)] = replace(worker, node=worker.pinned_to)

    def _within_limits(self, job: JobFacts) -> JobFacts:
        """Return a job with the priority that its queue allows once it runs; a waiting one would be refused."""
        if job.admitted_at is None or not self._ledger.limits:
            return job
        priority = self._ledger.priority(job.claim)
        if priority == job.terms.priority:
            return job
        return replace(job, terms=replace(job.terms, priority=priority))

    def _ends(self, job: JobFacts) -> bool:
        """Plan the job's end or stop; return True where nothing else is to be planned for it."""
        action = ending(job, self._now, self._rules)
        for time in turning_points(job, self._now, self._rules):
            self._wake(time)
        if action is None:
            return False
        self._act(action)
        return not isinstance(action, Stop)

    def _settle_extra(self, job: JobFacts) -> int:
        """Release what was given back, is overdue or is gone, and ask for what the job may no longer hold.

        Return the extra workers that remain for good.
        """
        if job.reclaim is not None:
            acknowledged = job.acknowledged_generation >= job.generation
            if acknowledged or self._now >= job.reclaim.deadline:
                reason = Reason.RECLAIM_ACKNOWLEDGED if acknowledged else Reason.RECLAIM_FORCED
                self._act(ReleaseExtra(job=job.key, extra=job.reclaim.extra, forced=not acknowledged, reason=reason))
            else:
                self._wake(job.reclaim.deadline)
            return job.reclaim.extra
        allowed, limit = most_extra(job.terms)
        if job.extra > allowed and job.stopping is None:
            deadline = self._now + job.terms.notice_seconds
            self._act(NoticeReclaim(job=job.key, extra=allowed, deadline=deadline, reason=limit))
            self._wake(deadline)
            return allowed
        kept = self._order.kept_extra(job)
        if job.extra > kept and job.stopping is None and not self._is_quiet(job):
            deadline = self._now + job.terms.notice_seconds
            self._act(NoticeReclaim(job=job.key, extra=kept, deadline=deadline, reason=Reason.HELD_BY_POLICY))
            self._wake(deadline)
            return kept
        promise = self._promises.get(job.key)
        if promise is not None and self._now < promise.expires_at:
            self._wake(promise.expires_at)
            return job.extra
        seen = len(self._extras[job.key])
        if seen < job.extra:
            reason = Reason.GPU_LOST if promise is None else Reason.UNSCHEDULABLE
            self._act(ReleaseExtra(job=job.key, extra=seen, forced=True, reason=reason))
        return min(seen, job.extra)

    def _leaving(self, snapshot: Snapshot) -> set[str]:
        """Return the workers whose GPUs become free without another action."""
        leaving = set()
        for worker in snapshot.workers:
            if worker.state is WorkerState.TERMINATING:
                begin, end = worker.leaves_between()
                if begin <= self._now < end:
                    leaving.add(worker.name)
                for time in (begin, end):
                    if self._now < time < math.inf:
                        self._wake(time)
        stays = {job.key for job in self._running if job.stopping is None}
        over = {job.key for job in snapshot.jobs} - stays
        if over:
            leaving |= {worker.name for worker in snapshot.workers if worker.job in over}
        for key, kept in self._kept.items():
            leaving |= {worker.name for worker in self._extras[key] if worker.index >= kept}
        return leaving

    def _start_or_wait(self, job: JobFacts, sites: Sequence[Site]) -> None:
        """Start a job on one of `sites` without touching what is kept for others when it still runs, or let it wait."""
        gpus, workers, until = job.terms.gpus_per_worker, job.terms.min_replicas, ends_by(job, self._now, self._rules)
        attempt = tuple(sites), gpus, workers, self._reservations.kept_from(until)
        reason, types = self._vain.get(attempt), tuple(site.gpu_type for site in sites)
        if reason is None and self._tried[types] >= self._rules.backfill_depth:
            reason = Reason.NO_FREE_GPU
        if reason is None:
            self._reservations.lift(until)
            started = self._start(job, sites)
            self._reservations.restore(until, started if isinstance(started, Holding) else None)
            if not isinstance(started, Reason):
                return
            reason = self._vain[attempt] = started
            self._tried[types] += 1
        if self._preempt(job, sites, until, reason):
            return
        # Where it fits only once others' pods have left, it keeps nothing from those who fit before.
        fitting = (site for site in sites if self._capacity.could_hold_without_jobs(site, gpus, workers))
        reserved = self._reservations.reserve(fitting, gpus, workers, self._now, until - self._now)
        if reserved is not None:
            self._hold_quota(job, reserved[1])
        self._refuse(job, reason, starts_by=None if reserved is None else reserved[0])

    def _start(self, job: JobFacts, sites: Sequence[Site]) -> Holding | Reason | None:
        """Start a job on the first of `sites` where all its workers can start now; return what they hold.

        They go to the nodes that the policy wishes, if these have room for all of them. If there is no such site, let
        lent GPUs be reclaimed for the job, and return None; or return why that is not enough either.
        """
        gpus, workers = job.terms.gpus_per_worker, job.terms.min_replicas
        wished = self._order.wished_nodes(job)[:workers] if job.pinned else ()
        for site in sites if wished else ():
            mark = self._capacity.mark()
            if self._pool.take_gang_at(site, gpus, wished):
                return self._admit(job, site, mark)
        for site in sites:
            mark = self._capacity.mark()
            if self._pool.take_gang(site, gpus, workers):
                return self._admit(job, site, mark)
        surplus = self._reclaims.surplus
        # Where they request nothing but GPUs, it was tried just now.
        free = (site.requests and self._pool.has_gang(replace(site, requests=()), gpus, workers) for site in sites)
        reason = Reason.UNSCHEDULABLE if any(free) else Reason.NO_FREE_GPU
        for site in sites:
            mark = self._capacity.mark()
            supply = self._pool.await_gang(site, gpus, workers)
            if supply is Supply.NOW:
                return self._admit(job, site, mark)
            if supply is Supply.LATER:
                if self._reclaims.surplus > surplus:
                    self._vain.clear()
                self._hold_quota(job, site)
                self._refuse(job, reason)
                return None
        return reason

    def _yielding(self) -> list[JobFacts]:
        """Return the running jobs that allow to be preempted, in order; those on another type than theirs last."""
        yielding = [job for job in self._running if job.terms.base_preemptible]
        return sorted(yielding, key=self._order.is_elsewhere)

    def _site_on(self, job: JobFacts, gpu_type: str) -> Site | None:
        """Return where a running job may run on another type of GPU, within its quota."""
        terms = job.terms
        if terms.gpu_type not in (None, gpu_type):
            return None
        sites = self._large_enough(gpu_type, terms.constraints, terms.gpus_per_worker, terms.min_replicas)
        return next(iter(self._allowed(job, sites, borrowing=False)), None)

    def _is_busy(self, job: JobFacts) -> bool:
        """Return whether a running job does not yield in this tick: others wait for what it gives back."""
        return job.key in self._touched or self._reclaims.is_asked(job.key)

    def _preempt(self, job: JobFacts, sites: Sequence[Site], until: float, reason: Reason) -> bool:
        """Let jobs yield their base GPUs to a job that would run until `until`, if that gives it all its workers."""
        mark = self._capacity.mark()
        room = self._preemption.make_room(job, sites, self._reservations.relied_on(until), self._is_busy)
        if room is None:
            return False
        site, yielding = room
        taken = Holding(self._capacity.placed_since(mark), Goods(job.terms.gpus_per_worker, site.requests))
        self._reservations.replace(map(self._base_holding, yielding), until, taken)
        self._stop(yielding, Reason.PREEMPTED_BY_POLICY)
        self._hold_quota(job, site)
        self._refuse(job, reason)
        return True

    def _admit(self, job: JobFacts, site: Site, mark: int) -> Holding:
        """Admit a job whose workers were placed on `site` since `mark`; return what they hold."""
        self._base_nodes[job.key].update(enumerate(self._placed(job, mark)))
        self._hold_quota(job, site)
        self._act(Admit(job=job.key, gpu_type=site.gpu_type))
        return Holding(self._capacity.placed_since(mark), Goods(job.terms.gpus_per_worker, site.requests))

    def _hold_quota(self, job: JobFacts, site: Site) -> None:
        """Count what a job was granted, or is to have, on `site`: for its queue, and for its namespace."""
        self._ledger.hold(job.claim, site.gpu_type)
        self._namespaces.hold(job, job.terms.min_replicas)

    def _running_until(self) -> Iterator[tuple[float, Holding]]:
        """Yield until when at the latest the jobs that run hold what."""
        for job in self._running:
            if job.stopping is None:
                yield ends_by(job, self._now, self._rules), self._base_holding(job)

    def _base_holding(self, job: JobFacts) -> Holding:
        """Return what the base workers of a running job hold."""
        waiting = (node for _, node in self._pinned[job.key].values())
        nodes = [*self._bound[job.key].values(), *waiting, *filter(None, self._base_nodes[job.key].values())]
        return Holding(nodes, Goods(job.terms.gpus_per_worker, job.terms.constraints.requests))

    def _placed(self, job: JobFacts, mark: int) -> list[str | None]:
        """Return the nodes that were chosen for workers of `job` since `mark`."""
        return [node if job.pinned else None for node in self._capacity.placed_since(mark)]

    def _give_up(self, job: JobFacts) -> Requeue:
        """Let a job wait again whose workers have lost their GPUs."""
        site = self._site(job)
        if job.trained or not any(self._capacity.is_in(site, node) for node in self._rivals):
            return Requeue(job=job.key, reason=Reason.GPU_LOST)
        wait = self._rules.rivalry_seconds * Random(f"{job.key} {job.generation}").random()
        message = "workers of another Espalier took GPUs of the nodes that were chosen for it"
        return Requeue(job=job.key, reason=Reason.GPU_LOST, message=message, hold_until=self._now + wait)

    def _doubt(self, job: JobFacts) -> None:
        """Act on base workers that kube-scheduler, or a ResourceQuota, has refused for long, though GPUs are free.

        kube-scheduler may know of more than this planner: volumes, other pods. So it chooses their nodes itself; where
        that does not help either, the job waits again.
        """
        if job.refused_since is None:
            return
        pinned = tuple(sorted(self._pinned[job.key]))
        patience = job.refused_since + (self._rules.pin_seconds if pinned else self._rules.placement_seconds)
        self._wake(patience)
        if self._now < patience:
            return
        if pinned:
            self._act(Replace(job=job.key, workers=pinned, pinned=False, reason=Reason.UNSCHEDULABLE))
        else:
            self._act(Requeue(job=job.key, reason=_obstacle(job), message=job.last_failure))

    def _choosiest_first(self, jobs: Iterable[JobFacts]) -> list[JobFacts]:
        """Return `jobs` ordered by how few nodes admit them: GPUs are not kept for others where they need them."""
        return sorted(jobs, key=lambda job: len(self._site(job).groups))

    def _claim(self, job: JobFacts) -> Supply:
        """Keep GPUs for base workers of a running job that are not bound; return when the last of them has its own."""
        site, gpus, pinned = self._site(job), job.terms.gpus_per_worker, self._pinned[job.key]
        supply = min((supply for supply, _ in pinned.values()), default=Supply.NOW)
        prior = self._prior.get(job.key, NOWHERE).base
        for index in range(job.terms.min_replicas):
            if index in self._bound[job.key] or index in pinned:
                continue
            mark = self._capacity.mark()
            kept = self._capacity.hold_at(site, prior.get(index), gpus)
            supply = min(supply, kept or self._pool.obtain([site], gpus, self._near(job)))
            if supply is Supply.NEVER:
                break
            self._base_nodes[job.key][index] = next(reversed(self._placed(job, mark)), None)
        return supply

    def _near(self, job: JobFacts) -> set[str]:
        """Return the nodes to which further workers of an admitted job should be close."""
        known = self._nodes.get(job.key)
        if known is None:
            extra = [worker.node for worker in self._extras[job.key]]
            nodes = {*self._bound[job.key].values(), *self._base_nodes[job.key].values(), *extra}
            known = self._nodes[job.key] = {node for node in nodes if node is not None}
        return known

    def _site(self, job: JobFacts) -> Site:
        """Return where the workers of an admitted job may run."""
        return self._capacity.site(job.gpu_type or "", job.terms.constraints)

    def _sites(self, gpu_type: str | None, constraints: Constraints | None) -> list[Site]:
        """Return where a pod may run that may wait for `gpu_type` alone, or for any; by type."""
        types = self._capacity.gpu_types if gpu_type is None else [gpu_type]
        return [site for name in types if (site := self._capacity.site(name, constraints)).groups]

    def _large_enough(
        self, gpu_type: str | None, constraints: Constraints | None, gpus: int, workers: int
    ) -> list[Site]:
        """Return the sites where `workers` of `gpus` each would fit if nobody else ran there."""
        return self._fitting(self._sites(gpu_type, constraints), gpus, workers)

    def _wished_sites(
        self, gpu_type: str | None, constraints: Constraints, gpus: int, workers: int, wished: str | None
    ) -> list[Site]:
        """Return the same, and of them only those of the type that the policy wishes, if there are any.

        Many jobs wait that are alike, so they are looked up once.
        """
        kind = gpu_type, constraints, gpus, workers, wished
        sites = self._known_sites.get(kind)
        if sites is None:
            sites = self._large_enough(gpu_type, constraints, gpus, workers)
            sites = self._known_sites[kind] = [site for site in sites if site.gpu_type == wished] or sites
        return sites

    def _fitting(self, sites: Iterable[Site], gpus: int, workers: int) -> list[Site]:
        return [site for site in sites if self._capacity.could_ever_hold(site, gpus, workers)]

    def _supply_extra(self, job: JobFacts, extra: int, granted: Container[str]) -> Supply:
        """Get GPUs for one more than `extra` workers: free ones, or reclaimed ones where the policy allows it.

        For a job that was granted some in this tick nothing is reclaimed: it would arrive during the job's cooldown.
        """
        site, gpus, near = self._site(job), job.terms.gpus_per_worker, self._near(job)
        if any(self._capacity.take_at(site, node, gpus) for node in self._wished_extra(job)):
            return Supply.NOW
        if job.key in granted and job.terms.cooldown_seconds > 0:
            return Supply.NOW if self._pool.take(site, gpus, near) else Supply.NEVER

        def may_take(holder: JobFacts, keeps: int) -> bool:
            return self._order.may_take(job, extra, holder, keeps)

        def spared(holder: JobFacts) -> bool:
            # A job that must give back in this tick is interrupted anyway: asking it for less would save nothing.
            quiet = self._is_quiet(holder, falls=self._reclaims.is_asked(holder.key))
            return quiet or holder.key in granted or holder.key == job.key

        return self._pool.await_one(site, gpus, may_take=may_take, spared=spared, near=near)

    def _is_quiet(self, holder: JobFacts, *, falls: bool = False) -> bool:
        """Return whether the extra workers of a job are not reduced for shares yet: they have just changed.

        Where they fall anyway, only the last time that they rose counts.
        """
        runtime = holder.terms.min_runtime_seconds
        risen, changed = (holder.granted_at or 0.0) + runtime, (holder.changed_at or 0.0) + runtime
        quiet_until = risen if falls else max(risen, changed)
        self._wake(quiet_until)
        return self._now < quiet_until

    def _wished_extra(self, job: JobFacts) -> list[str]:
        """Return the nodes that the policy wishes for further workers of a running job."""
        wished = self._order.wished_nodes(job) if job.pinned else ()
        if not wished:
            return []
        extra = (worker.node for worker in self._extras[job.key])
        held = [*self._base_holding(job).nodes, *filter(None, extra), *self._lent_nodes[job.key]]
        return [*(Counter(wished) - Counter(held)).elements()]

    def _act(self, action: Action) -> None:
        self._actions.append(action)
        self._touched.add(action.job)

    def _refuse(self, job: JobFacts, reason: Reason, *, starts_by: float | None = None) -> None:
        self._refusals[job.key] = Refusal(job=job.key, reason=reason, starts_by=starts_by)

    def _wake(self, time: float) -> None:
        if time > self._now and (self._wake_at is None or time < self._wake_at):
            self._wake_at = time


def _obstacle(job: JobFacts) -> Reason:
    """Return why a job's workers cannot be placed though GPUs are free for them."""
    return Reason.POD_REJECTED if job.trouble is Reason.POD_REJECTED else Reason.UNSCHEDULABLE


def _less(nodes: Iterable[str | None], made: Iterable[str | None]) -> list[str | None]:
    """Return `nodes` without those of workers that have been made, one for each."""
    return list((Counter(nodes) - Counter(made)).elements())
