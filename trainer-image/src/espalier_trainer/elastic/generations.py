"""Generations of workers that train together: a new one is formed when a worker comes, leaves, or is gone.

`Arrivals` is the leader's view of workers outside its group: workers that wait for a place, leave, or carry out an
order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import torch

from espalier_core.types.job import Stragglers
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.elastic.group import FORM_SECONDS, Group, GroupBrokenError
from espalier_trainer.elastic.membership import (
    NEWCOMER,
    GenerationPlan,
    MemberSpeeds,
    Portion,
    WorkerArrival,
    chosen,
    observed,
    planned,
    straggler_message,
)
from espalier_trainer.elastic.rendezvous import RendezvousServer
from espalier_trainer.elastic.states import Code, Command, align, digest
from espalier_trainer.elastic.step import take_back
from espalier_trainer.process.settings import Rendezvous
from espalier_trainer.training.network import Network

logger = logging.getLogger(__name__)


class Arrivals:
    """Workers outside the group, as read from the leader's rendezvous, and the answers to them."""

    def __init__(self, rendezvous: Rendezvous, clock: Callable[[], float]) -> None:
        """Open the rendezvous; raises `RendezvousError`."""
        self.rendezvous, self._clock = RendezvousServer(rendezvous), clock
        self.waiting: dict[str, WorkerArrival] = {}
        self.listened = 0.0
        """Time of the last reading, by `clock`."""
        self._leaving: set[str] = set()
        self._on_trial: dict[str, str] = {}
        """Results of workers that carry out an order, '' until known: they take no part in a generation."""

    def listen(self) -> None:
        """Read the messages of workers."""
        self.listened = self._clock()
        for arrival in self.rendezvous.listen():
            if arrival.leaving:
                self._leaving.add(arrival.worker)
                self.waiting.pop(arrival.worker, None)
                self._on_trial.pop(arrival.worker, None)
                logger.info("%s leaves", arrival.name)
            else:
                self.waiting[arrival.worker] = arrival
                if arrival.worker in self._on_trial:
                    self._on_trial[arrival.worker] = arrival.result

    def chosen(
        self, candidates: Iterable[WorkerArrival], replicas: int, out: Collection[str]
    ) -> tuple[WorkerArrival, ...]:
        """Return the members for a job of `replicas` workers, without workers in `out`."""
        gone = self._leaving | self.rendezvous.silent() | self._on_trial.keys() | set(out)
        present = {each.worker: each for each in candidates if each.worker not in gone}
        return chosen(present.values(), replicas)

    def gather(self, expected: set[str], seconds: float) -> None:
        """Wait until all `expected` workers that neither leave nor hung up have arrived, for at most `seconds`."""
        deadline = self._clock() + seconds
        expected = expected - self._leaving
        while not expected <= self.waiting.keys() and self._clock() < deadline:
            time.sleep(0.001)
            self.listen()
            expected = {each for each in expected - self._leaving if not self.rendezvous.hung_up(each)}

    def answer(self, plan: GenerationPlan, before: Iterable[str]) -> None:
        """Send a plan to its members, and to members of the generation `before` that get no place in it."""
        let_go = [name for name in before if name in self.waiting and name not in plan.members]
        for name in (*plan.members[1:], *let_go):
            self.waiting.pop(name, None)
            self.rendezvous.answer(name, plan)
        self._leaving.clear()

    # ---- orders

    def begin_orders(self, workers: Iterable[str]) -> None:
        """Clear the channels of these workers for reports on their orders."""
        for worker in workers:
            self.rendezvous.begin_order(worker)

    def ordered(self, workers: Iterable[str]) -> None:
        """Record that each of these workers carries out an order."""
        self._on_trial = dict.fromkeys(workers, "")

    def results(self) -> dict[str, str]:
        """Return the results of finished orders, by worker."""
        self.listen()
        return {worker: result for worker, result in self._on_trial.items() if result}

    def reported(self) -> dict[str, str]:
        """Return the last progress report of each unfinished order that has one, by worker."""
        found = {worker: self.rendezvous.reported(worker) for worker, result in self._on_trial.items() if not result}
        return {worker: text for worker, text in found.items() if text}

    def dismiss(self, worker: str) -> None:
        """Cancel a worker's order."""
        if self._on_trial.pop(worker, None) == "":
            self.rendezvous.dismiss(worker)

    def dismiss_all(self) -> None:
        """Cancel the orders of all workers."""
        for worker in list(self._on_trial):
            self.dismiss(worker)


LISTEN_SECONDS: Final = 0.05
"""Minimum interval of reading arrivals: the store is in the process, so a read takes some µs."""
GRACE_SECONDS: Final = 1.0
"""Seconds to wait for members whose connection stands after a group broke; live ones arrive again within some ms."""
REUNION_SECONDS: Final = 5.0
"""Seconds that a restarted leader waits for workers that may hold a newer state than its checkpoint."""
_LEADER: Final = "leader"
_MAX_BROKEN: Final = 5
"""Number of consecutive generations that broke before a step, after which the leader trains alone for a while."""
_ALONE_SECONDS: Final = 30.0

Capture = Callable[[], Checkpoint]
StepPlace = tuple[int, int, Portion]
"""Epoch, cursor and portion of a step."""
Restore = Callable[[Checkpoint], Network]
"""Function that loads a newer state and returns the resulting network."""


class Generations:
    """The leader and the members of its generation; at first only the leader. `Team` adds the steps taken together."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        device: torch.device,
        warn: Callable[[str, str], None],
        on_change: Callable[[int, float], None],
        *,
        node: str = "",
        stragglers: Stragglers = Stragglers.REPORT,
        hashed: Callable[[Network], int] = digest,
        clock: Callable[[], float] = time.monotonic,
        listen_seconds: float = LISTEN_SECONDS,
    ) -> None:
        """Open the rendezvous; raises `RendezvousError`.

        `warn` is called with problems that do not stop training, `on_change` after a change of members with their new
        number and the seconds for which training paused. `hashed` returns the value that must be equal in all members,
        `node` is the leader's node, `listen_seconds` the minimum interval of reading arrivals at step boundaries.
        """
        self._arrivals = Arrivals(rendezvous, clock)
        self._device, self._warn, self._clock = device, warn, clock
        self._node, self._listen_seconds = node, listen_seconds
        self._on_change = on_change
        self._stragglers, self._hashed = stragglers, hashed
        self._members: tuple[WorkerArrival, ...] = ()
        """Members without the leader."""
        self._group: Group | None = None
        self._generation = 0
        self._stale = self._state_changed = False
        self._patience = GRACE_SECONDS
        self._reported_world = 1
        self._broken = 0
        self._broken_once = self._reuniting = False
        self._alone_until = 0.0
        self._spoke = 0.0
        self._speeds = MemberSpeeds()
        self._announced: StepPlace | None = None
        """Step that all members take next without a command; None if they wait for one."""
        self._winner: str | None = None
        """Worker whose state all members of the next generation take; None for the usual source."""

    @property
    def world(self) -> int:
        """Number of members, the leader included."""
        return 1 if self._group is None else self._group.world

    @property
    def nodes(self) -> int:
        """Number of nodes that the members run on."""
        return 1 if self._group is None else len({self._node, *(member.node for member in self._members)})

    @property
    def waiting(self) -> int:
        """Number of workers known to wait for a place."""
        self._arrivals.listen()
        return len(self._arrivals.waiting)

    @property
    def broken(self) -> bool:
        """Whether the generation broke and `update_members` has not formed a new one yet."""
        return self._broken_once

    def wait_for_members(self, step: int) -> bool:
        """Wait for workers that may hold a state newer than `step`; return whether one does.

        They arrive soon after the store opens; a job that has just begun has none.
        """
        deadline = self._clock() + REUNION_SECONDS
        while self._clock() < deadline:
            self._arrivals.listen()
            if any(arrival.step > step for arrival in self._arrivals.waiting.values()):
                time.sleep(GRACE_SECONDS)  # the others will arrive soon, too
                self._arrivals.listen()
                self._reuniting = True
                return True
            time.sleep(LISTEN_SECONDS)
        return False

    def update_members(self, replicas: int, network: Network, step: int, capture: Capture, restore: Restore) -> None:
        """Admit waiting workers, up to `replicas`, and release workers that leave. Called at each step boundary."""
        now = self._clock()
        urgent = self._broken_once or self._reuniting or self.world > replicas
        if not urgent and now - self._arrivals.listened < self._listen_seconds:
            return
        self._arrivals.listen()
        if now < self._alone_until:
            return
        wanted = self._wanted([*self._members, *self._arrivals.waiting.values()], replicas)
        if not self._broken_once and wanted == self._members:
            return
        self._form(replicas, network, step, capture, restore, now)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Leave the group if the block fails: then the step was not taken, or the change not announced."""
        try:
            yield
        except GroupBrokenError as error:
            self._break(str(error))
            raise
        except BaseException:
            self._break("the leader failed")
            raise

    # ---- within

    def _take_back(self) -> None:
        """Revoke the announced step, because something else comes first. Raises `GroupBrokenError`."""
        announced, self._announced = self._announced, None
        if announced is not None and self._group is not None:
            take_back(self._group)

    def _wanted(self, candidates: Sequence[WorkerArrival], replicas: int) -> tuple[WorkerArrival, ...]:
        return self._arrivals.chosen(candidates, replicas, self._speeds.out(self._clock()))

    def _form(
        self, replicas: int, network: Network, step: int, capture: Capture, restore: Restore, began: float
    ) -> None:
        before = {arrival.worker for arrival in self._members}
        # Do not wait for a newcomer that may be dead: its state is not needed.
        holders = {arrival.worker for arrival in self._members if arrival.step != NEWCOMER}
        if self._group is not None:
            try:
                self._take_back()
                Command(Code.FORM).send(self._group)
            except GroupBrokenError as error:
                self._break(str(error))
        self._drop()
        self._arrivals.gather(holders, self._patience)
        self._patience = GRACE_SECONDS
        self._broken_once = False
        wanted = self._wanted(list(self._arrivals.waiting.values()), replicas)
        self._generation += 1
        own = WorkerArrival(worker=_LEADER, base=True, index=0, step=step)
        plan = planned(self._generation, own, wanted, newest=self._reuniting, winner=self._winner)
        self._winner = None
        self._arrivals.answer(plan, before)
        self._members = wanted
        if wanted:
            try:
                host = self._arrivals.rendezvous
                self._group = Group(
                    host.store,
                    plan.generation,
                    0,
                    len(plan.members),
                    self._device,
                    host.address,
                    host.port,
                    plan.key(host.key),
                )
                if not align(self._group, plan.source, network, capture, restore, self._hashed):
                    warning = f"members of generation {plan.generation} differ after the state was sent"
                    self._warn("MembersDiffer", warning)
                    raise GroupBrokenError("members differ")
                # A newcomer receives everything with the state. A member that held one may have missed a note, or a
                # change outside the parameters, such as the end of a trial.
                self._stale = self._stale and any(each.step != NEWCOMER for each in wanted)
                self._state_changed = True
            except GroupBrokenError as error:
                self._break(str(error))
                # The others may notice only when their time to form is over.
                self._patience = FORM_SECONDS + GRACE_SECONDS
                return
        # From now on they hold the state, and are expected to return.
        self._members = tuple(replace(each, step=step) for each in wanted)
        # Not before: until a generation has formed, a member may still hold state that the checkpoint lacks.
        self._reuniting = False
        self._spoke = self._clock()
        self._speeds = self._speeds.changed()
        paused = self._clock() - began
        if self.world != self._reported_world:
            self._reported_world = self.world
            self._on_change(self.world, paused)
        logger.info("generation %d: %d members, after a pause of %.3f s", plan.generation, self.world, paused)

    def _break(self, message: str) -> None:
        logger.info("generation %d broke: %s", self._generation, message)
        self._drop()
        self._broken_once = True
        self._broken += 1
        if self._broken >= _MAX_BROKEN:
            self._warn(
                "WorkersUnreachable",
                f"{self._broken} generations in a row broke ({message}); training continues alone for "
                f"{_ALONE_SECONDS:.0f} s",
            )
            # The state trained alone from here on is newer than that of any other worker.
            self._broken, self._broken_once, self._reuniting = 0, False, False
            self._members = ()
            self._alone_until = self._clock() + _ALONE_SECONDS

    def _drop(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = self._announced = None

    def _look_for_straggler(self, seconds: Sequence[float]) -> None:
        workers = [_LEADER, *(member.worker for member in self._members)]
        self._speeds, slow = observed(self._speeds, workers, seconds)
        if slow is None:
            return
        rank = workers.index(slow)
        name, pause = self._members[rank - 1].name if rank else "the leader", 0.0
        if rank and self._stragglers is Stragglers.DROP:
            now = self._clock()
            self._speeds = self._speeds.dropping(slow, now)
            pause = self._speeds.dropped[slow].until - now
        self._warn("StragglerDetected", straggler_message(name, rank, seconds, pause, self._speeds.drops(slow)))
