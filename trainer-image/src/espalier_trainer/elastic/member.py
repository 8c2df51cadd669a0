"""A worker other than the leader: it arrives, receives the state and the leader's commands, and leaves.

The caller executes the commands: a `BuiltinWorker`, or a user's loop. While a worker carries out an order of a trial,
it reports to its leader over a `TrialChannel`, and reads there whether it may go on.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Final

import torch

from espalier_trainer.elastic.group import COLLECTIVE_SECONDS, FORM_SECONDS, Group, GroupBrokenError
from espalier_trainer.elastic.membership import NEWCOMER, GenerationPlan, WorkerArrival, WorkerIdentity
from espalier_trainer.elastic.rendezvous import LeaderAwayError, RendezvousClient, answered
from espalier_trainer.elastic.states import (
    Code,
    Command,
    StateCopy,
    align,
    digest,
    receive_note,
    receive_order,
    receive_state,
)
from espalier_trainer.elastic.step import StepResult
from espalier_trainer.process.settings import Rendezvous
from espalier_trainer.training.network import Network

logger = logging.getLogger(__name__)


ASK_SECONDS: Final = 0.2
"""Interval of requests whether the leader still wants the result; each is a message to the leader's process."""


class TrialChannel:
    """Progress and cancellation of a trial. Raises `LeaderAwayError` if the leader does not answer."""

    def __init__(self, client: RendezvousClient, worker: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._worker, self._clock = client, worker, clock
        self._asked = clock()
        self._dismissed = False

    def report(self, text: str) -> None:
        """Report the progress of the order."""
        self._client.report_progress(self._worker, text)

    def dismissed(self) -> bool:
        """Return whether the leader no longer waits for the result."""
        now = self._clock()
        if not self._dismissed and now - self._asked >= ASK_SECONDS:
            self._asked = now
            self._dismissed = self._client.dismissed(self._worker)
        return self._dismissed


AGAIN_SECONDS: Final = 0.2
"""Interval of attempts to find the leader."""
PATIENCE_SECONDS: Final = 600.0
"""Seconds to keep the state while the leader is away; more than the time after which a node is given up."""


@dataclass
class StepRequest:
    """A step in which this worker must take part; with `Code.EPOCH` the end of an epoch."""

    group: Group | None
    """Group of the step; None if this worker takes it alone, on a copy (`carry_out`)."""
    command: Command
    broken: GroupBrokenError | None = None
    """Error set by the caller if the group broke in the step."""
    follows: Command | None = None
    """Next step, if it needs no command of the leader; otherwise None."""
    joint: StepResult | None = None
    """Result, set by the caller, of a step that this worker has taken alone."""
    left: bool = False
    """Whether the caller's loop has left the epoch at such a step; set by the caller."""

    def taken(self, joint: StepResult) -> bool:
        """Record the result, in a loop that does the same in all steps of an epoch; return whether it was taken."""
        if joint.follows:
            cursor = self.command.cursor + self.command.portion.batches
            self.follows = replace(self.command, cursor=cursor, measured=False)
        return not (joint.out_of_memory or joint.void)


class Member:
    """A worker's communication with its leader. Not thread-safe."""

    def __init__(
        self,
        holder: StateCopy,
        seed: int,
        device: torch.device,
        identity: WorkerIdentity,
        *,
        stop: Callable[[], bool],
        hashed: Callable[[Network], int] = digest,
        carry_out: Callable[[str, TrialChannel], Generator[StepRequest, None, str]] | None = None,
    ) -> None:
        """`stop` returns whether to leave; `hashed` returns the value that must be equal in all members.

        `carry_out` takes an order of a trial and the channel to the leader, yields the steps that the caller must take,
        and returns the result.
        """
        self._holder, self._seed, self._device, self._hashed = holder, seed, device, hashed
        self._identity, self._stop = identity, stop
        self._worker = uuid.uuid4().hex
        self._carry_out, self._order, self._result = carry_out, "", ""
        self._said_leaving = False
        self._away_since: float | None = None
        self._attempt = 0
        """Latest attempt of a leader that this worker has followed."""
        self.ended = False
        """Whether the leader has announced the end of the job."""

    def requests(self, rendezvous: Rendezvous) -> Iterator[StepRequest]:
        """Yield the steps to take, until the job has `ended` or `stop` returns True."""
        client: RendezvousClient | None = None
        while not self._stop() and not self.ended:
            try:
                client = client or RendezvousClient(rendezvous, self._stop, self._attempt)
                self._attempt = client.attempt
                yield from self._arrive(client)
            except GroupBrokenError:
                pass  # The connection stays, by which a leader that lives tells this worker from one that is gone.
            except LeaderAwayError as error:
                client = None
                now = time.monotonic()
                if self._away_since is None:
                    self._away_since = now
                    logger.info("the leader is away: %s", error)
                elif now - self._away_since > PATIENCE_SECONDS and self._holder.network is not None:
                    away = now - self._away_since
                    logger.warning("the leader was away for %.0f s: this worker drops its state", away)
                    self._holder.forget()
                time.sleep(AGAIN_SECONDS)

    def _arrive(self, client: RendezvousClient) -> Generator[StepRequest, None, None]:
        """Arrive, and take part in a generation if there is a place.

        Raises `GroupBrokenError`, and `LeaderAwayError`.
        """
        if self._order and self._carry_out is not None:
            order, self._order = self._order, ""
            self._result = yield from self._carry_out(order, TrialChannel(client, self._worker))
        ticket = client.arrive(self._arrival())
        self._away_since = None
        plan = client.plan(ticket)
        if plan is None:
            client.arrive(self._arrival(leaving=True))  # so that the leader does not wait for it
        elif self._worker not in plan.members:
            logger.info("generation %d does not include this worker", plan.generation)
            self._result = ""
            self._holder.forget()
        else:
            try:
                self._result = ""
                yield from self._take_part(client, plan)
            except GroupBrokenError as error:
                logger.info("generation %d broke: %s", plan.generation, error)
                raise

    def _arrival(self, *, leaving: bool = False) -> WorkerArrival:
        # The result of a trial becomes the job's state only if the leader says so.
        step = NEWCOMER if self._result else self._holder.step
        own = self._identity
        return WorkerArrival(self._worker, own.base, own.index, step, leaving, own.node, self._result)

    def _take_part(self, client: RendezvousClient, plan: GenerationPlan) -> Generator[StepRequest, None, None]:
        rank = plan.members.index(self._worker)
        world, address, port, key = len(plan.members), client.address, client.port, plan.key(client.key)
        group = answered(  # a group is formed through the leader's store
            lambda: Group(client.store, plan.generation, rank, world, self._device, address, port, key),
            self._stop,
            FORM_SECONDS + COLLECTIVE_SECONDS,
        )
        try:
            # If members still differ after this, the leader handles it.
            holder = self._holder
            align(group, plan.source, holder.network, holder.capture, holder.take, self._hashed, holder.spare)
            # Random numbers of layers (dropout) are independent between members.
            torch.manual_seed(hash((self._seed, plan.generation, rank)) % 2**63)
            logger.info("generation %d: rank %d of %d", plan.generation, rank, len(plan.members))
            yield from self._serve(group, client)
        finally:
            group.close()

    def _serve(self, group: Group, client: RendezvousClient) -> Generator[StepRequest, None, None]:
        announced: Command | None = None
        while True:
            command, announced = announced or Command.receive(group), None
            if command.code is Code.END:
                self.ended = True
                return
            if command.code is Code.FORM:
                return
            if command.code is Code.TRIAL:
                self._order = receive_order(group) or ""
                return
            if command.code is Code.STATE:
                held = None if self._holder.network is None else self._holder.capture()
                state = receive_state(group, held)
                del held  # frees tensors that the new state does not share
                self._holder.take(state)
            elif command.code is Code.NOTE:
                self._holder.note(receive_note(group))
            elif command.code in (Code.STEP, Code.EPOCH):
                if self._holder.network is None:
                    raise GroupBrokenError("the leader took a step before it sent its state")
                request = StepRequest(group, command)
                yield request
                if request.broken is not None:
                    raise request.broken
                announced = request.follows
            if self._stop() and not self._said_leaving:
                self._said_leaving = True
                client.arrive(self._arrival(leaving=True))
