"""Whether GPUs come back that others need: what is lent, what is borrowed, and what is about to go. Clause 5."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from operator_world.history.demands import demand
from operator_world.history.room import Room
from operator_world.history.seen import Seen, claimant, identity
from operator_world.history.stopwatch import Stopwatch
from operator_world.history.world import SharedCluster
from operator_world.kube_api import is_over, node_of

NOTICES_IN_TURN = 2
"""A job with a pending notice gets no second one: what else it must give back, it is asked for after that."""

PLANS_SECONDS = 10.0
"""Within so long an operator plans more than once: what others are busy with in one plan, it does in the next."""


class Returns:
    """What the jobs of one world must give back."""

    def __init__(self, world: SharedCluster, room: Room, patience: float) -> None:
        """Nobody must give back anything yet."""
        self._world, self._room, self._patience = world, room, NOTICES_IN_TURN * patience
        self.due = Stopwatch(world)
        """What must be given back."""

    def expect(self, what: str, checked: Counter[str], kind: str, *, needs_notice: bool = True) -> None:
        """Demand that `what` does not stay so for longer than the notices take, or a few plans."""
        checked[kind] += 1
        waited = self.due.seconds(what)
        demand(waited <= (self._patience if needs_notice else PLANS_SECONDS), 5, f"{what} for {waited:g} s")

    def judge(self, jobs: list[Seen], checked: Counter[str]) -> None:
        """Nothing that may move stays on a node that is about to go. The last to be judged at a moment."""
        for job, pod, node in self._on_departing_nodes(jobs):
            is_extra = "-extra-" in pod
            if is_extra or job.spec["preemption"]["base"] == "Checkpoint":
                what = f"{pod} stays on {node}, which is about to go,"
                self.expect(what, checked, "leaves a node", needs_notice=is_extra)
        self.due.turn()

    def _on_departing_nodes(self, jobs: list[Seen]) -> Iterator[tuple[Seen, str, str]]:
        """Yield the workers of jobs that go on, with their node, if that reports and is about to go."""
        owners = {identity(job.raw): job for job in jobs if job.holds and job.status.scheduling.stopping is None}
        for key, pod in self._world.pods.items():
            node, owner = node_of(pod), owners.get(claimant(pod))
            stays = owner is not None and not is_over(pod) and "deletionTimestamp" not in pod["metadata"]
            if owner is not None and stays and node is not None and self._world.is_departing(node):
                yield owner, f"{key} ({pod['metadata']['uid']})", node
