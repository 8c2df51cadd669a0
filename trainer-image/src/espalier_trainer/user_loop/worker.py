"""A user's loop in a worker other than the leader: it takes the steps that the leader announces."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

from torch import Tensor

from espalier_core.types.environment import ExitCode
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.elastic.group import GroupBrokenError
from espalier_trainer.elastic.member import Member, StepRequest
from espalier_trainer.elastic.states import Code, StateCopy
from espalier_trainer.errors import CheckpointMismatchError, OwnLoopError
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.process.settings import Rendezvous, TermSignal
from espalier_trainer.user_loop.exit_detection import looping, was_left
from espalier_trainer.user_loop.feed import ONCE, Feed
from espalier_trainer.user_loop.loop import JobLoop, UserStep
from espalier_trainer.user_loop.state import UserState

logger = logging.getLogger(__name__)


class UserWorker(JobLoop):
    """A loop in a worker that does not lead."""

    leads = False

    def __init__(
        self,
        state: UserState,
        held: StateCopy,
        feed: Feed,
        member: Member,
        rendezvous: Rendezvous | None,
        term: TermSignal,
        *,
        sync_batch_norm: bool,
    ) -> None:
        """With `rendezvous` None, the job's workers do not train together: this one keeps its GPU and waits.

        `held` is the copy of the leader's state in `state`; `member` is its communication with the leader.
        """
        # Before the first step, the leader's script is at the beginning of the budget.
        super().__init__(state, feed, Moment(0.0, 1.0), sync_batch_norm=sync_batch_norm)
        self._held, self._term = held, term
        separate = "the job's workers do not train together (elasticBatch)"
        self._why_waiting = separate if rendezvous is None else "the job is done"
        self._requests: Iterator[StepRequest] = iter(()) if rendezvous is None else member.requests(rendezvous)
        self._request: StepRequest | None = None
        self._epoch: int | None = None
        self._alone: int | None = None
        """Number of the state whose copy the script trains by itself, for a trial; otherwise None."""
        self._in_body = self._through = self._stopped = False
        """Whether the script may loop over the batches; whether the leader has announced the end of the epoch; whether
        the script has called `stop` in this epoch."""
        self._left_early: int | None = None
        """Number of the state when the script left the epoch, if before the leader announced its end; else None."""
        self._before: Checkpoint | None = None
        """State that the script must not change while it ends an epoch that the leader has left; otherwise None."""

    # ---- what the script sees

    @property
    def workers(self) -> int:
        """Number of workers that train together now."""
        return 1 if self._request is None or self._request.group is None else self._request.group.world

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Yield the leader's epochs; never return, because only the leader runs the code after the loop."""
        self._term.takes_part = True
        while (request := self._due()) is not None:
            if request.command.epoch == self._epoch and self._left_early == self._held.taken:
                if request.command.code is Code.STEP:
                    raise OwnLoopError(
                        f"this worker left epoch {self._epoch} early and the leader did not; leave the loop over the "
                        "batches depending on values that all workers share, such as backward()'s result"
                    )
                self._request = self._left_early = None
                continue
            # Even if only the script's code after the batches remains of the epoch.
            self._epoch, self._in_body, self._through, self._left_early = request.command.epoch, True, False, None
            self._alone = self._held.taken if request.group is None else None
            if request.command.code is Code.STEP:
                self._moment = request.command.moment
            self._state.enter_epoch()
            loop = looping(sys._getframe(1))
            try:
                yield request.command.epoch
            except GeneratorExit:
                if self._stopped or was_left(sys._getframe(1), loop):
                    self._loop_left()
                raise
            self._stopped = False  # the leader's call counts
            self._epoch_left()
        self._wait_to_end()

    def stop(self) -> None:
        """Let the script leave its loop as the leader does; where the leader does not, this worker goes on or fails."""
        self._stopped = True

    def __iter__(self) -> Iterator[Any]:
        """Yield this worker's parts of the batches of an epoch."""
        if self._epoch is None:
            raise OwnLoopError("the batches belong to an epoch: loop over them within `for epoch in loop.epochs(...)`")
        if not self._in_body:
            raise OwnLoopError(ONCE)
        self._commit(left=True)
        self._state.enter_batches()
        while (request := self._due()) is not None and request.command.code is Code.STEP and self._is_within(request):
            group, command = request.group, request.command
            self._moment = command.moment
            rank, world = (0, 1) if group is None else (group.rank, group.world)
            part = self._feed.part(command.epoch, command.cursor, rank, world, command.portion)
            self._state.advance(command.moment.share)
            self._step = self._hooks.step = UserStep(
                self._state, part, group, sync_batch_norm=self._sync, measured=command.measured
            )
            for _ in part.pieces:
                self._step.enter_batch()
                yield part.load()
                if self._step is None or self._step.dropped:
                    break
        self._in_body = False
        if request is not None and self._is_within(request):
            self._request, self._through = None, True
        elif request is not None:
            # This worker was disconnected; the script's code after the batches belongs to an old state.
            self._before = self._held.capture().copied()

    def backward(self, loss: Tensor) -> float:
        """Compute `loss.backward()` over the batches of all workers; return their mean loss."""
        step, request = self._step, self._request
        if step is None or request is None:
            raise OwnLoopError("backward(loss) was called outside of the loop over the batches")
        try:
            return step.backward(loss)
        except GroupBrokenError as error:
            request.broken = error
            step.drop()
            return float(loss.detach())

    def report(self, **figures: float) -> None:
        """Do nothing: the leader reports."""

    def log_to(self, target: Any) -> None:
        """Do nothing: the leader writes."""

    # ---- within

    def _is_within(self, request: StepRequest) -> bool:
        """Return whether a request belongs to the script's epoch, and to the state with which it began that epoch.

        In a group, a state that comes in the middle of an epoch counts as the same one.
        """
        return request.command.epoch == self._epoch and self._alone == (
            self._held.taken if request.group is None else None
        )

    def _due(self) -> StepRequest | None:
        """Return the next request, after the one that the script has taken; None at the end."""
        self._commit()
        if self._request is None:
            try:
                self._request = next(self._requests, None)
            except CheckpointMismatchError as error:  # not the script's mistake, so without its traceback
                print(error, file=sys.stderr)
                raise SystemExit(int(ExitCode.INVALID)) from None
        if self._request is None and self._term():
            raise SystemExit(0)
        return self._request

    def _commit(self, *, left: bool = False) -> None:
        """Count the step that the script has taken, if it has not `left` its batches within it."""
        step, request = self._step, self._request
        if step is None or request is None:
            return
        self._step = self._hooks.step = self._request = None
        joint = request.joint = step.finish(left=left)
        if joint is not None:
            self._held.stepped(request.command, joint.loss, step.part.portion.batches)

    def _epoch_left(self) -> None:
        """Record that the script has run the code after its batches."""
        if self._before is not None:
            self._state.load(self._before)
            self._before = None
            return
        self._left_early = self._held.taken if self._in_body else None
        if self._in_body and self._request is not None and self._request.group is None:
            # No other worker is in this epoch: the next one follows.
            self._request.left, self._left_early = True, None
            self._commit(left=True)
            self._request = None
        if self._epoch is None or not (self._in_body or self._through):
            return
        self._commit(left=True)
        self._state.leave_epoch()
        self._held.epoch_finished(self._epoch)

    def _loop_left(self) -> NoReturn:
        """Wait to end, as only the leader runs the code after the loop; end at once if the leader goes on."""
        try:
            self._commit(left=True)
            request = self._request or next(self._requests, None)
            while request is not None and request.command.code is not Code.STEP:
                request = next(self._requests, None)
            if request is not None:
                raise OwnLoopError(
                    f"this worker left the loop over epochs in epoch {self._epoch} and the leader did not; leave it "
                    "depending on values that all workers share, such as backward()'s result"
                )
            if not self._term():
                self._wait_to_end()
        except BaseException:
            # While a generator is closed, the interpreter goes on after any exception.
            traceback.print_exc()
            _exit(ExitCode.ERROR)
        _exit(ExitCode.COMPLETE)

    def _wait_to_end(self) -> None:
        """Wait for the termination signal: a worker that ended by itself would be restarted."""
        self._term.takes_part = False  # from here on a signal ends it at once; an earlier one takes effect now
        if self._term():
            raise SystemExit(0)
        logger.info("%s; this worker waits for its termination", self._why_waiting)
        while True:
            signal.pause()


def _exit(code: ExitCode) -> NoReturn:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(int(code))
