"""The driver by plans: the cluster's own planner and job state machine, on simulated nodes.

In each round, and whenever a decision has taken effect, the planner is called until it changes nothing more. So without
latencies all consequences of a decision happen in its round; the nodes of jobs are then chosen as in published
simulators, not by the planner (`Latencies.restarts_move`). The policy sees the true speed of jobs if the trace has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from espalier_core.types.measurements import Bid
from espalier_lab.simulator.cluster_backend import ClusterBackend
from espalier_lab.simulator.idling import Idling
from espalier_lab.simulator.jobs import SimulatedJob
from espalier_lab.simulator.latencies import Latencies
from espalier_lab.simulator.planned_types import PlannedTypedJob, TrueSpeeds
from espalier_lab.simulator.rounds import ROUND_SECONDS, SimulatedNode, base_workers, check_sizes, submit
from espalier_operator.model.actions import Action, Admit, GrantExtra
from espalier_operator.planner import plan
from espalier_operator.policies import Policy
from espalier_operator.policies.view import Decision, SpeedModel, TypeSpeeds, View

MOST_PLANS: Final = 1000
"""Number of plans in a row at one moment from which they are considered to undo each other."""


class Planned:
    """One simulation by plans."""

    def __init__(
        self,
        jobs: Sequence[SimulatedJob],
        nodes: Sequence[SimulatedNode],
        policy: Policy,
        latencies: Latencies | None = None,
        *,
        preemptible: bool = True,
    ) -> None:
        """Prepare; `preemptible` jobs yield their base GPUs. Raise `TraceError`, as `Rounds` does."""
        check_sizes(jobs, policy, sum(node.gpus for node in nodes))
        self._jobs = sorted(jobs, key=lambda job: job.submitted_at)
        typed = {job.name: job for job in jobs if isinstance(job, PlannedTypedJob)}
        self._policy = _Informed(policy, TrueSpeeds(typed) if typed else None)
        self._latencies, self._node_gpus = latencies or Latencies(), [node.gpus for node in nodes]
        self._backend = ClusterBackend(nodes, self._latencies, preemptible=preemptible)
        self._memory: Mapping[str, Any] = {}
        self.now = 0.0

    def run(self, progress: Callable[[int], None] = lambda completed: None) -> None:
        """Run until all jobs are complete; `progress` is called with the number of complete jobs."""
        coming, active, completed, due = list(reversed(self._jobs)), self._backend.jobs, 0, 0.0
        boundary, idling = 0.0, Idling(self._policy.name, ROUND_SECONDS)
        while coming or active:
            if not active:
                ahead = coming[-1].submitted_at - boundary
                boundary += max(0, math.ceil(ahead / ROUND_SECONDS) - 1) * ROUND_SECONDS
                self.now = boundary
            moments = (job.next_moment(self.now) for job in active.values())
            then = min(boundary + ROUND_SECONDS, *moments, math.inf)
            changed = False
            for job in active.values():
                progressed = job.advance(self.now, then - self.now)
                changed |= progressed and (self._policy.follows_progress or job.job.completed_at is not None)
            if then < boundary + ROUND_SECONDS:
                self.now, changed = then, True
            else:
                self.now = boundary = then
                idling.count(() if any(job.state.active for job in active.values()) else active)
                while coming and coming[-1].submitted_at <= self.now:
                    job_of_trace = coming.pop()
                    submit(job_of_trace, self.now, self._node_gpus, self._latencies.start_seconds)
                    self._backend.submit(job_of_trace, base_workers(job_of_trace, self._policy.policy))
                    changed = True
            if changed or self.now >= due:
                due = self._plan()
                ended = self._backend.forget_ended()
                completed += len(ended)
                if ended:
                    progress(completed)

    def _plan(self) -> float:
        """Plan and carry out until nothing is left to do; return the time of the next plan without news."""
        jobs = self._backend.jobs
        speed_models = {key: job.job.speed_model for key, job in jobs.items()}
        self._policy.speed_models = {
            key: speed_model for key, speed_model in speed_models.items() if speed_model is not None
        }
        self._policy.bids = {key: bids for key, job in jobs.items() if (bids := job.job.bids)}
        for _ in range(MOST_PLANS):
            found = plan(self._backend.observe(self.now, self._memory), self._policy, self.now)
            self._memory = found.policy_memory
            self._backend.apply(found, self.now)
            if all(self._is_last(action) for action in found.actions):  # the next plan would be empty
                self._backend.settle(self.now, self._policy.order)
                return math.inf if found.wake_at is None else found.wake_at
        raise RuntimeError(f"policy {self._policy.name}: {MOST_PLANS} plans at {self.now:g} s undo each other")

    def _is_last(self, action: Action) -> bool:
        """Return whether an action has no immediate consequence: it is a grant, and the job can be lent no more.

        If base workers hold all GPUs, there is nothing to lend.
        """
        if isinstance(action, Admit):
            terms = self._backend.jobs[action.job].terms
            return terms.max_replicas == terms.min_replicas or self._backend.lends_nothing
        return isinstance(action, GrantExtra)


class _Informed:
    """A policy that sees the true speeds of jobs, and the dependencies of its last decision."""

    def __init__(self, policy: Policy, speeds: TypeSpeeds | None) -> None:
        """Take the true speeds by type of GPU, if jobs have them."""
        self._speeds = speeds
        self.policy, self.name, self.queue_order = policy, policy.name, policy.queue_order
        self.elasticity = policy.elasticity
        self.speed_models: Mapping[str, SpeedModel] = {}
        self.bids: Mapping[str, tuple[Bid, ...]] = {}
        self.follows_progress = False
        self.order: Sequence[str] = ()

    def decide(self, view: View) -> Decision:
        known = {job.key for job in view.jobs}
        speed_models = {key: speed_model for key, speed_model in self.speed_models.items() if key in known}
        bids = {key: bids for key, bids in self.bids.items() if key in known}
        speeds = view.speeds if self._speeds is None else self._speeds
        decision = self.policy.decide(
            replace(
                view,
                speed_models=speed_models,
                bids=bids,
                speeds=speeds if view.gpu_types else None,
            )
        )
        self.follows_progress, self.order = decision.follows_progress, [share.job for share in decision.shares]
        return decision
