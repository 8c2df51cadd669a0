"""What must hold whatever happens, judged from the objects of the world alone.

A history checks these whenever the operator has come to rest, that is: has seen all and has nothing left to do.

1.  *No over-allocation.* No pod of a worker is created for a node on which its GPUs are not free, and none waits for a
    node that will not have them (`creating`, `_pins_have_room`). The invariants of each plan say the same of what is
    granted (`operator_world.invariants`, 1 to 3).
2.  *No quota exceeded.* What the jobs of a queue, and of a cohort, hold never rises above what they may (`quotas`),
    and no ResourceQuota ever refuses a pod that was created by an up-to-date view (`_refused`).
3.  *No GPU idle for more than a notice and a cooldown while somebody who fits waits.* A waiting job that fits beside
    all that is owed to others is started at once, unless that would delay one that was told by when it starts, or it
    gets within a notice and a cooldown what others give back (`waiting`). A running job that may be lent a GPU is
    lent a free one that fits, within a notice and a cooldown (`lending`).
4.  *No job waits without a true reason.* Each reason of `Admitted` is judged for itself (`waiting`).
5.  *What others need comes back*, within two notices and cooldowns: GPUs that are lent, where a job waits that would
    fit without them; a quota that others have borrowed, where jobs that hold it allow to be stopped (`waiting`); lent
    GPUs, and jobs that allow it, on a node that is about to go (`returns`).
6.  *Ends are in order.* No leader whose count of its time budget is about the operator's, and that was not started past
    its end, is ended because that is used up before its last evaluation is over; no job runs again whose leader has
    said that it is complete; a job that is deleted has no workers, though a finalizer holds it (`ends`).
7.  *A broken node swallows no job.* A worker of a job with one base worker is made for a node that has refused the job
    only where no other has GPUs for it (`creating`); GPUs that are away for less than a minute, while a device plugin
    restarts, are asked of nobody (`planned`).
8.  *Nobody holds what cannot be used.* A job whose workers are refused, by a webhook or because their image cannot be
    pulled, and whose leader does not run, gives its GPUs back within seconds; a denial ends no job (`refused`).
9.  *What has ended stays ended.* A worker of a program that was done is never made again, and no program waits again
    for want of its GPUs, though its pod is deleted, unless no operator could see or record that before. A program
    whose leader was done is over. Side-cars that outlive a worker, in any place, do not keep its GPUs. An operator that
    was frozen writes no status over one that it has not seen (`completed`).
10. *Statuses are true, whatever becomes of operators and calls.* Budgets, generations, attempts, restarts and
    preemptions never fall, and no budget runs faster than leaders do; only a decision changes what is granted or asked
    for; a job has one leader, whom its allocation has reached, and no pod that its status does not want; conditions
    have sentences, and those of an end are final (`kept`).

Devices of dynamic resource allocation are GPUs of a kind like others. A claim keeps its own for a while after its pod:
they count as being given back.

Of several operators each is judged by its own jobs (`controllerName`): queues, and what is lent, are its own. Nodes and
ResourceQuotas are shared, so 1 holds for all of them together.

With another policy than `fair`, who waits or is lent nothing may do so because the policy wants it. Then reasons are
judged, and what a job waits for is not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from espalier_core.types.reasons import Reason
from espalier_operator.model import Rules, Snapshot, host_of
from espalier_operator.model.actions import (
    Admit,
    Fail,
    Finish,
    GrantExtra,
    NoticeReclaim,
    Plan,
    ReleaseExtra,
    Requeue,
    Stop,
)
from operator_world.history.completed import Completed
from operator_world.history.demands import demand
from operator_world.history.ends import Ends
from operator_world.history.kept import Kept
from operator_world.history.lending import Lent
from operator_world.history.quotas import Quotas
from operator_world.history.refused import Refused
from operator_world.history.returns import Returns
from operator_world.history.room import Place, Room
from operator_world.history.seen import claimant, identity, times
from operator_world.history.waiting import Waiting
from operator_world.history.world import SharedCluster
from operator_world.kube_objects import GPU_RESOURCES, Raw
from operator_world.kube_scheduler import pinned_to, requests_of

AVOIDED_SECONDS = 1700.0
"""A job avoids a node for a little longer after it was refused there."""
_GIVE_BACK = (NoticeReclaim, ReleaseExtra, Stop, Requeue, Finish, Fail)


class Clauses:
    """Watches over one operator of a world."""

    def __init__(
        self, world: SharedCluster, kept: Kept, rules: Rules, patience: float, *, controller: str, is_fair: bool = True
    ) -> None:
        """Nothing has happened yet. `patience`: a notice and a cooldown, of those that jobs ask for the longest.

        `controller`: the operator's name. `is_fair`: its policy lets nobody wait who fits.
        """
        self._world, self._room, self._is_fair = world, Room(world, controller), is_fair
        self._quotas = Quotas(world, self._room)
        self._returns, self._ends = Returns(world, self._room, patience), Ends(world)
        self._completed = Completed(world)
        self.kept = kept
        self._waiting = Waiting(world, self._room, self._quotas, self._returns, rules, patience, is_fair=is_fair)
        self.refused = Refused(world, rules)
        self._lent = Lent(world, self._room, self._quotas, patience)
        self.plan = Plan(actions=(), refusals={}, wake_at=None)
        """The last one."""
        self.is_fresh = False
        """The operator has just seen all."""
        self._plans_by_that = False
        """And has planned since; what it did before followed from an earlier plan."""
        self.checked: Counter[str] = Counter()
        """How often each was judged."""
        self._granted: set[str] = set()
        """Jobs that were granted GPUs since the last rest, by an up-to-date view."""

    # ---- while it works

    def saw_all(self) -> None:
        """The operator sees all, and is about to work."""
        self.is_fresh, self._plans_by_that = True, False

    def planned(self, snapshot: Snapshot, plan: Plan, *, knows_quotas: bool) -> None:
        """Take note of a plan, and of the snapshot that it was made of.

        `knows_quotas`: that has the ResourceQuotas as they are. A pod that was made since it looked may be counted.
        """
        self.plan, self._plans_by_that = plan, self.is_fresh
        self._ends.planned(snapshot, plan, self.checked)
        self.kept.planned(plan)
        if self.is_fresh:
            self._ends.saw(plan, self.checked)
            self._completed.saw(plan, self.checked)
            self._judge_lost_gpus(snapshot, plan)
        if self.is_fresh and knows_quotas:
            self._granted |= {each.job for each in plan.actions if isinstance(each, Admit | GrantExtra)}

    def creating(self, manifest: Mapping[str, Any]) -> None:
        """Check a pod that is about to be created. 1 and 9."""
        self._completed.creating(manifest, self.checked)
        metadata = manifest["metadata"]
        pod = dict(manifest)
        node = pinned_to(pod) if manifest["kind"] == "Pod" else None
        if not self._plans_by_that or node is None or f"{metadata['namespace']}/{metadata['name']}" in self._world.pods:
            return
        if any(isinstance(each, _GIVE_BACK) for each in self.plan.actions):
            return  # it may get what others are about to give back: `_pins_have_room` judges that at rest
        self.checked["created for a node"] += 1
        self._judge_choice(pod, node)
        demand(self._world.is_open(node), 1, f"{metadata['name']} is created for {node}, which takes no new pods")
        leaving, pinned = self._room.leaving(), self._room.pinned()
        for resource, gpus in requests_of(pod).items():
            if resource in GPU_RESOURCES:
                free = self._world.free(node, resource) if node in self._world.nodes else 0
                free += leaving[node, resource] - pinned[node, resource]
                demand(free >= gpus, 1, f"{metadata['name']} is created for {node}, which has {free} x {resource}")

    def _judge_lost_gpus(self, snapshot: Snapshot, plan: Plan) -> None:
        for action in plan.actions:
            if isinstance(action, NoticeReclaim) and action.reason is Reason.GPU_LOST:
                places = {worker.node for worker in snapshot.workers if worker.job == action.job}
                nodes = {host_of(place) for place in places if place is not None} & self._world.nodes.keys()
                lost = [node for node in nodes if self._world.is_departing(node) or self._world.lacks(node)]
                self.checked["lost GPUs"] += 1
                demand(bool(lost), 7, f"{action.job} is asked for GPUs of {nodes}, which have lost none")

    def _judge_choice(self, pod: Raw, node: str) -> None:
        """Of a node that has refused other workers of a job; what others are owed is left to them."""
        job = next((job for job in self._room.jobs() if identity(job.raw) == claimant(pod)), None)
        if job is None or job.base != 1:
            return
        refusals, since = self._world.refusals, self._world.now - AVOIDED_SECONDS
        bad = {place for (job_of, place), at in refusals.items() if job_of == claimant(pod) and at[-1] > since}
        self.checked["made for a node"] += 1
        if node not in bad:
            return
        # One that has ever failed it may still be avoided: what has started there since may not have run for long.
        bad |= {place for (job_of, place) in self._world.failed_at if job_of == claimant(pod)}
        # One that has refused or failed several jobs may be avoided by all.
        known = set(map(identity, self._world.jobs.values()))
        blamed = self._world.failed_at | refusals.keys()
        failed = Counter(place for (job_of, place) in blamed if job_of in known)
        bad |= {place for place, jobs in failed.items() if jobs > 1}
        jobs = [*self._room.jobs()]
        # What jobs before it wait for is kept for them.
        for waiting in jobs:
            refusal = self.plan.refusals.get(waiting.key)
            if refusal is not None and refusal.reason is Reason.NO_FREE_GPU:
                bad |= {*self._room.nodes_of(waiting, self._world.type_of(node, job.resource))}
        wants, held = job.wants, self._world.held()
        owed = [*self._room.owed(jobs)]
        if wants in owed:
            owed.remove(wants)  # the pod itself
        for other in self._room.nodes_of(job, self._world.type_of(node, job.resource)):
            free = Counter(self._world.whole(other))
            free.subtract(sum(owed, held[other]))
            demand(other in bad or not times(free, wants), 7, f"{job.key} is sent to {node}, and {other} has {free}")

    def count_again(self) -> None:
        """Take what queues hold as given: what they may has just been changed."""
        self._quotas.count_again([*self._room.jobs()])

    def operator_ends(self) -> None:
        """The operator has ended, or another one takes its place: what it alone knew is lost."""
        self._completed.operator_ends()

    def woke(self, before: Mapping[str, Any], known: Mapping[str, str]) -> None:
        """Check that a former leader has changed nothing; `before` are the jobs as they were, `known` as for 9."""
        self._completed.woke(before, known, self.checked)
        self.kept.woke(before)

    def was_away(self, seconds: float) -> None:
        """Do not blame the operator for the last `seconds`: nobody was there."""
        for stopwatch in (self._returns.due, self._waiting.fitting, self._lent.idle):
            stopwatch.was_away(seconds)

    # ---- at rest

    def at_rest(self) -> None:
        """Check all that holds when the operator has seen and done all."""
        jobs = [*self._room.jobs()]
        self._pins_have_room()
        for key, held, limit, is_exceeded in self._quotas.exceeded(jobs):
            self.checked["quotas"] += 1
            demand(not is_exceeded, 2, f"{key} holds {held} GPUs of {limit}")
        self._refused()
        owed = [*self._room.owed(jobs)]
        self._waiting.judge(jobs, owed, self.plan, self.checked)
        if self._is_fair:
            self._lent.judge(jobs, owed, self.checked)
        self._returns.judge(jobs, self.checked)
        self._ends.judge(self.checked)
        self._completed.judge(jobs, self.checked)
        self.kept.judge(jobs)
        self.refused.judge(jobs, self.checked)

    def _pins_have_room(self) -> None:
        """Where two operators have chosen GPUs that are being given back in the same moment, kube-scheduler decides."""
        pinned = self._room.pinned(own=True)
        leaving = self._room.leaving() if pinned else Counter[Place]()
        for (node, resource), gpus in pinned.items():
            free, given = self._world.free(node, resource) if node in self._world.nodes else 0, leaving[node, resource]
            demand(gpus <= max(0, free) + given, 1, f"{gpus} {resource} of {node} are waited for: {free}, {given}")

    def _refused(self) -> None:
        """What was granted is not refused; what is made again may be, by a quota that has other uses by now."""
        refused = {re.sub(r"-(base|extra)-\d+(-\d+)?$", "", key) for key in self._world.over_quota}
        demand(not refused & self._granted, 2, f"a ResourceQuota refuses pods of {refused & self._granted}")
        self.checked["granted"] += len(self._granted)
        self._granted = set()
