"""The leader's side of elastic training: joint steps with the members, and messages about changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from espalier_trainer.elastic.generations import Capture, Generations, StepPlace
from espalier_trainer.elastic.group import Group, GroupBrokenError
from espalier_trainer.elastic.membership import ONE, Portion
from espalier_trainer.elastic.states import Code, Command, broadcast_note, broadcast_orders, broadcast_state
from espalier_trainer.elastic.step import StepResult
from espalier_trainer.optimizers.schedules import UNKNOWN, Moment

logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 1.0
"""Interval of the leader's keep-alive messages while it is busy: a leader that is silent for long counts as dead."""


class Team(Generations):
    """The members that train together. Used by the training loop only; not thread-safe."""

    _next: StepPlace | None = None
    """Step after the current one, if the current one announces it to all members."""

    @property
    def announced(self) -> bool:
        """Whether the members already compute the next step: it is not measured, and any other command revokes it."""
        return self._announced is not None

    @property
    def announces(self) -> bool:
        """Whether the current step announces another one to the members."""
        return self._next is not None

    @property
    def extra_members(self) -> tuple[str, ...]:
        """Members that are extra workers, in the order of their index: those that stay longest first."""
        extra = [each for each in self._members if not each.base]
        return tuple(each.worker for each in sorted(extra, key=lambda each: each.index))

    def send_trial_orders(self, orders: Mapping[str, str], capture: Capture) -> None:
        """Send each of these members an order of a trial, to carry out on the current state; the others go on.

        They take no part until `bring_back`. Raises `GroupBrokenError`: then no order was given.
        """
        self.share_news(capture)
        group, members = self._group, self._members
        if group is None:
            raise GroupBrokenError("there is no group")
        ranks = {rank: orders[each.worker] for rank, each in enumerate(members, 1) if each.worker in orders}
        self._arrivals.begin_orders(orders)
        with self.stepping():
            self._take_back()
            broadcast_orders(group, ranks)
        self._drop()
        self._arrivals.ordered(orders)
        self._members = tuple(each for each in members if each.worker not in orders)
        self._broken_once = True  # the others form the next generation

    def results(self) -> dict[str, str]:
        """Return the results of finished orders, by worker."""
        return self._arrivals.results()

    def reported(self) -> dict[str, str]:
        """Return the last progress report of each unfinished order that has one, by worker."""
        return self._arrivals.reported()

    def dismiss(self, worker: str) -> None:
        """Cancel a worker's order, so that it takes part again."""
        self._arrivals.dismiss(worker)

    def bring_back(self, winner: str | None = None) -> None:
        """Form a generation of all workers again, with the state of the worker `winner` if it is still there.

        Unfinished orders are cancelled.
        """
        self._arrivals.dismiss_all()
        self._winner = winner
        self._broken_once = self._broken_once or winner is not None

    def begin_step(
        self,
        epoch: int,
        cursor: int,
        *,
        portion: Portion = ONE,
        measured: bool = False,
        moment: Moment = UNKNOWN,
        then: Portion | None = None,
    ) -> Group:
        """Announce a step to all members; return the group to take it in. Raises `GroupBrokenError`.

        `portion` is the step's part of the epoch; with `measured` the members measure their gradient noise; `moment` is
        the loop's position in the budget. `then` is the portion of the step after this one, if that may do without a
        command; decisions of the leader before it still come first.
        """
        group = self._group
        if group is None:
            raise GroupBrokenError("there is no group")
        with self.stepping():
            if self._announced != (epoch, cursor, portion) or measured:
                self._take_back()
                # Not waited for: the leader computes meanwhile.
                Command(Code.STEP, epoch, cursor, measured=measured, portion=portion, moment=moment).sending(group)
        self._announced = None
        self._next = (epoch, cursor + portion.batches, portion) if then == portion else None
        self._spoke = self._clock()
        return group

    def stepped(self, joint: StepResult) -> None:
        """Record a step that was taken, and members that were slow in it."""
        self._broken = 0
        self._announced = self._next if joint.follows else None
        self._look_for_straggler(joint.seconds)

    def network_changed(self) -> None:
        """Record that the leader's network has changed: all members receive it before the next step."""
        self._stale = True

    def state_changed(self) -> None:
        """Record that non-tensor state has changed: all members receive it before the next step."""
        self._state_changed = True

    def share_news(self, capture: Capture) -> None:
        """Send all members the recorded changes of the network and the state. Raises `GroupBrokenError`."""
        group = self._group
        if group is not None and (self._stale or self._state_changed):
            checkpoint = capture()
            with self.stepping():  # all members receive the message, or none
                self._take_back()
                if self._stale:
                    broadcast_state(group, checkpoint)
                else:
                    broadcast_note(group, checkpoint.state)
        self._stale = self._state_changed = False

    def wait(self) -> None:
        """Send the members a keep-alive message; called repeatedly while the leader evaluates."""
        if self._clock() - self._spoke >= WAIT_SECONDS:
            self._send(Code.WAIT)

    def end_epoch(self, epoch: int) -> None:
        """Announce the end of `epoch` to members that run code of the user after it."""
        self._send(Code.EPOCH, epoch)

    def close(self, *, done: bool) -> None:
        """Leave the members: for good if the job is `done`; otherwise they wait for the next leader."""
        if self._group is not None and done:
            try:
                self._take_back()
                Command(Code.END).send(self._group)
            except GroupBrokenError as error:
                logger.info("a member was gone at the end: %s", error)
        self._drop()

    # ---- within

    def _send(self, code: Code, epoch: int = 0) -> None:
        if self._group is None:
            return
        self._spoke = self._clock()
        try:
            self._take_back()
            Command(code, epoch).send(self._group)
        except GroupBrokenError as error:
            self._break(str(error))
