"""A user's loop in the leader, the only worker that reads allocations, consults the agent, saves and reports."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final, NoReturn

from torch import Tensor

from espalier_core.types.environment import ExitCode
from espalier_core.types.reasons import Reason
from espalier_core.types.report import TrainerPhase
from espalier_core.types.task import score_in
from espalier_trainer.data.objective import Evaluation
from espalier_trainer.elastic.group import GroupBrokenError
from espalier_trainer.elastic.step import StepPlan, StepResult
from espalier_trainer.errors import LossNotFiniteError, OwnLoopError, SupersededError
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.process.settings import StopSignal
from espalier_trainer.run.run import Run
from espalier_trainer.run.steps import usable
from espalier_trainer.training.progress import Ending, exit_code_of, sentence
from espalier_trainer.user_loop.exit_detection import looping, was_left
from espalier_trainer.user_loop.feed import ONCE, Feed
from espalier_trainer.user_loop.loop import JobLoop, UserStep
from espalier_trainer.user_loop.state import UserState

LEFT: Final = "the script left the loop"


class UserLeader(JobLoop):
    """The loop of the leader under a job's time budget."""

    leads = True

    def __init__(self, run: Run, state: UserState, feed: Feed, stop: StopSignal, closing: ExitStack) -> None:
        """Resume from the newest checkpoint. Raises `CheckpointMismatchError` if it belongs to another run.

        `closing` is closed at the end of the process.
        """
        super().__init__(state, feed, run.moment(), sync_batch_norm=bool(run.job.spec.training.sync_batch_norm))
        self._run, self._stop, self._closing = run, stop, closing
        self._due: StepPlan | None = None
        self._inside = self._epoch_end_sent = self._stopped = self._closed = False
        """Whether the script is in an epoch; whether the other workers know that its batches are over; whether the
        script has called `stop`; whether the loop over epochs has ended."""
        self._entered = False
        """Whether no step of the epoch has been announced yet."""
        self._gave_way = False
        """Whether a later leader has taken over."""
        self._pid = os.getpid()
        run.resume()
        atexit.register(self._exit)

    @property
    def workers(self) -> int:
        """Number of workers that train together now."""
        return 1 if self._run.team is None else self._run.team.world

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Yield the epochs from the current one to the end of the budget, at most `count` in all."""
        if self._closed:
            raise OwnLoopError("epochs() has ended, and the job with it; a script has one loop over epochs")
        self._stop.training, loop = True, None
        try:
            for epoch in self._run.epochs(0 if self._stopped else count):
                self._inside, self._moment, self._entered = True, self._run.moment(), True
                self._state.enter_epoch()
                loop = looping(sys._getframe(1))
                yield epoch
                self._inside = False
                self._commit(left=True)
                if self._run.ending is None:
                    self._batches_over()
                    self._epoch_end_sent = False
                    self._state.leave_epoch()
                    if self._stopped:
                        self._run.complete(LEFT)
                        self._run.end(done=False)
                        break
            self._ended()
        except LossNotFiniteError as error:
            self._fail(error)
        except SupersededError as error:
            self._give_way(error)
        except GeneratorExit:
            if not self._closed and os.getpid() == self._pid:
                self._left(on_purpose=self._stopped or was_left(sys._getframe(1), loop))

    def stop(self) -> None:
        """End the loop after the current epoch."""
        self._stopped = True

    def __iter__(self) -> Iterator[Any]:
        """Yield this worker's parts of the batches of an epoch."""
        if not self._inside:
            raise OwnLoopError("the batches belong to an epoch: loop over them within `for epoch in loop.epochs(...)`")
        if self._epoch_end_sent:
            raise OwnLoopError(ONCE)
        self._commit(left=True)  # the script may have left its batches, and returned to the rest
        self._state.enter_batches()
        run = self._run
        epoch = run.progress.epoch
        try:
            for due in run.steps(lambda: self._feed.batches(epoch, run.progress.cursor), moment=self._stamped):
                rank, world = (0, 1) if due.group is None else (due.group.rank, due.group.world)
                part = self._feed.part(run.progress.epoch, run.progress.cursor, rank, world, due.portion)
                step = UserStep(self._state, part, due.group, sync_batch_norm=self._sync, measured=due.measured)
                self._step, self._due, self._hooks.step = step, due, step
                for _ in part.pieces:
                    step.enter_batch()
                    yield part.load()
                    if step.dropped:
                        break
                self._commit()
            if run.ending is None:
                self._batches_over()
            elif run.ending.phase is TrainerPhase.STOPPED:
                run.end()
                self._ended()
        except LossNotFiniteError as error:
            self._fail(error)
        except SupersededError as error:
            self._give_way(error)

    def backward(self, loss: Tensor) -> float:
        """Compute `loss.backward()` over the batches of all workers; return their mean loss."""
        step, due = self._step, self._due
        if step is None or due is None:
            raise OwnLoopError("backward(loss) was called outside of the loop over the batches")
        try:
            if not step.last:
                return self._run.compute_part(due, lambda: step.backward(loss))
            value = self._run.compute_step(due, lambda: _joint(step, loss)).loss
            usable(self._run, value)
        except GroupBrokenError:
            step.drop()
            return float(loss.detach())
        except LossNotFiniteError as error:
            self._fail(error)
        return value

    def report(self, **figures: float) -> None:
        """Add figures to the job's report."""
        run, found = self._run, {name: _number(name, value) for name, value in figures.items()}
        for name in ("validation_accuracy", "test_accuracy"):
            if not 0 <= found.get(name, 0.0) <= 1:
                said = f"{name} is {found.pop(name):g}; an accuracy is a share from 0 to 1, so it is left out"
                run.journal.warn("FigureLeftOut", said)
        run.progress.metrics |= found
        score = score_in(found, "validation")
        if score is not None and "validation_loss" in found:
            run.validated(Evaluation(score, found["validation_loss"]))
        run.journal.report(urgent=True)

    def log_to(self, target: Any) -> None:
        """Also write the run's figures to `target`."""
        self._run.services.log_to(target)
        # W&B registers its own exit handler, which must run after the last figures.
        atexit.unregister(self._exit)
        atexit.register(self._exit)

    # ---- within

    def _stamped(self) -> Moment:
        """Return the budget position of the next step: for an epoch's first, the position seen by code before it."""
        if not self._entered:
            self._moment = self._run.moment()
        self._entered = False
        return self._moment

    def _commit(self, *, left: bool = False) -> None:
        """Count the step that the script has taken, if it has not `left` its batches within it."""
        step, self._step, self._hooks.step = self._step, None, None
        joint = None if step is None else step.finish(left=left)
        if step is not None and joint is not None:
            self._run.progress.metrics["learning_rate"] = float(self._state.optimizer.param_groups[0]["lr"])
            self._run.stepped(joint.loss, step.part.portion)
            if self._run.progress.step == self._run.first_step + 1:
                self._state.check_optimizer()  # early, while nothing can be lost

    def _batches_over(self) -> None:
        """Let the other workers run the script's code after the batches at the same time as this worker."""
        if not self._epoch_end_sent:
            self._epoch_end_sent = True
            if self._run.team is not None:
                self._run.team.end_epoch(self._run.progress.epoch)

    def _ended(self) -> None:
        """End the process if the run was stopped; otherwise continue with the script's code after its loop."""
        self._closed, self._stop.training = True, False
        ending = self._run.ending
        if ending is not None and ending.phase is TrainerPhase.STOPPED:
            self._run.finish(ending)
            raise SystemExit(int(self._stop.exit_code()))
        if ending is not None and ending.reason is Reason.NOTHING_TRAINED and self._run.scheduler.time_left() <= 0:
            print(ending.message, file=sys.stderr)
            self._run.finish(ending)
            raise SystemExit(int(exit_code_of(ending.reason)))
        self._over()

    def _left(self, *, on_purpose: bool) -> None:
        """Save the run if the script left its loop on purpose; otherwise it has failed, unless it is being stopped.

        Nothing can be raised here: the interpreter would go on after any exception.
        """
        self._closed, run = True, self._run
        try:
            if on_purpose:
                self._commit(left=True)
                run.complete(LEFT)
                run.end(done=False)
                self._over()
            else:
                run.close(done=False)
        except SupersededError as error:
            print(error, file=sys.stderr)
            self._gave_way = True
        except Exception as error:
            traceback.print_exc()
            run.broken_by(error)
        self._stop.training = False

    def _over(self) -> None:
        """Report that all is trained and saved; the script's code after its loop has yet to run."""
        ending = self._run.ending
        if ending is not None and ending.phase is TrainerPhase.COMPLETED:
            self._run.journal.over(ending)

    def _fail(self, error: LossNotFiniteError) -> NoReturn:
        print(error, file=sys.stderr)
        self._close()
        self._run.finish(Ending(TrainerPhase.FAILED, Reason.LOSS_NOT_FINITE, str(error)))
        raise SystemExit(int(ExitCode.LOSS_NOT_FINITE))

    def _give_way(self, error: SupersededError) -> NoReturn:
        """End the process without a report: the job's reports belong to its next leader."""
        print(error, file=sys.stderr)
        self._gave_way = True
        self._close()
        raise SystemExit(int(ExitCode.SUPERSEDED))

    def _close(self) -> None:
        """Leave the other workers, which wait for a leader."""
        self._closed = True
        self._run.close(done=False)

    def _exit(self) -> None:
        """Report, at the end of the process, how the run ended.

        The exit code of the process is unknown here; a loop that the script has ended counts only with code 0.
        """
        if os.getpid() != self._pid:
            return  # a process forked by the script
        run, error = self._run, getattr(sys, "last_value", None)  # the interpreter has printed its traceback
        if not self._closed:
            self._left(on_purpose=self._stopped)
        ending = run.ending
        if self._gave_way or run.journal.phase in (TrainerPhase.STOPPED, TrainerPhase.FAILED):
            pass
        elif self._stop():
            run.finish(Ending(TrainerPhase.STOPPED, Reason.INTERRUPTED, "it was asked to stop"))
        elif error is not None and (ending is None or ending.reason is Reason.COMPLETED):
            run.broken_by(error)
        elif error is not None and ending is not None and ending.phase is TrainerPhase.COMPLETED:
            run.finish(replace(ending, message=f"its code after the loop failed: {sentence(error)}"))
        elif ending is not None:
            run.finish(ending)
        else:
            run.finish(Ending(TrainerPhase.FAILED, Reason.TRAINER_FAILED))  # its exit code and log have the details
        self._closing.close()


def _joint(step: UserStep, loss: Tensor) -> StepResult:
    value = step.backward(loss)
    if step.joint is None:
        raise OwnLoopError("the last batch of a step has no result")
    return replace(step.joint, loss=value)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise OwnLoopError(f"loop.report: {name} is {value!r}; give a number") from error
