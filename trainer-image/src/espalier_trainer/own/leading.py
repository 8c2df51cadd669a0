"""The loop in the worker that leads: it alone hears the scheduler, asks the agent, saves and reports."""

from __future__ import annotations

import atexit
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from torch import Tensor

from espalier_api.allocation import Allocation
from espalier_api.job import AdaptiveTrainingJob
from espalier_api.reasons import Reason
from espalier_api.report import TrainerPhase
from espalier_trainer import randomness, saving
from espalier_trainer.adapting import Adapter
from espalier_trainer.checkpoint import Checkpoint, CheckpointStore
from espalier_trainer.elastic.group import GroupBrokenError
from espalier_trainer.elastic.team import Team
from espalier_trainer.errors import CheckpointMismatchError, ExitCode, LossNotFiniteError
from espalier_trainer.evaluation import Evaluation
from espalier_trainer.narrator import Narrator
from espalier_trainer.network import Network
from espalier_trainer.own.errors import ONCE, OwnLoopError
from espalier_trainer.own.feed import Feed
from espalier_trainer.own.loop import Hooks, Step
from espalier_trainer.own.state import OwnState
from espalier_trainer.progress import Ending, Progress, StepGaps
from espalier_trainer.report import Reporter
from espalier_trainer.scheduler import Scheduler
from espalier_trainer.settings import StopSignal

logger = logging.getLogger(__name__)


class Leading:
    """A loop under a job's time budget."""

    leads = True

    def __init__(
        self,
        job: AdaptiveTrainingJob,
        state: OwnState,
        feed: Feed,
        scheduler: Scheduler,
        reporter: Reporter,
        checkpoints: CheckpointStore,
        *,
        seed: int,
        used_seconds: float,
        incarnation: str,
        stop: StopSignal,
        team: Callable[[Narrator], Team] | None,
        adapter: Adapter | None,
        cannot_grow: str,
        step_took: Callable[[float], None],
        closing: ExitStack,
    ) -> None:
        """Resume from the newest checkpoint. Raises `CheckpointMismatchError` where it is of another run."""
        self._job, self._state, self._feed, self._scheduler = job, state, feed, scheduler
        self._stop, self._adapter, self._closing, self._used = stop, adapter, closing, used_seconds
        self._hooks = Hooks(state.optimizer)
        network = state.network
        self._progress = Progress(network.depth, network.parameters)
        self._narrator = Narrator(job.key, scheduler, reporter, network, self._progress, incarnation)
        self._identity = state.identity(job.key, feed.examples, feed.batch_size, seed)
        self._saver = saving.Saver(
            checkpoints, self._identity, job.spec.checkpoint.interval_seconds, state, state.device, time.monotonic
        )
        self._gaps = StepGaps(time.monotonic, step_took)
        self._cannot_grow = cannot_grow
        self._allocation = Allocation()
        self._ending: Ending | None = None
        self._closed = False
        self._inside = self._told = False
        self._untried = False
        """Whether the model has grown, and no step was taken with it yet: until then it may turn out not to fit."""
        self._step: Step | None = None
        resumed = checkpoints.load_latest()
        self._resumed = resumed is not None
        if resumed is not None:
            self._used = max(self._used, resumed.state.used_seconds)
            self._take_over(resumed)
        self._warnings = tuple(checkpoints.warnings)
        self._team = None if team is None else team(self._narrator)
        atexit.register(self._exit)

    @property
    def workers(self) -> int:
        """Number of workers that train together now."""
        return 1 if self._team is None else self._team.world

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Yield the epochs from where training stands to the end of the budget, `count` in all at most."""
        self._begin()
        try:
            while not self._over() and (count is None or self._progress.epoch < count):
                if self._progress.cursor == 0:
                    self._adapt()
                self._inside = True
                self._state.enter_epoch()
                yield self._progress.epoch
                self._inside = False
                self._commit()
                if self._ending is None:
                    self._finish_epoch()
            self._end(self._ending or Ending(TrainerPhase.COMPLETED, Reason.COMPLETED, "all epochs are done"))
        except GeneratorExit:
            # The script left the loop: by a break, or by an error, which cannot be told from here. So nothing is saved,
            # and the other workers wait for a leader. At the end of the process nothing is left to be done here.
            if not self._closed:
                self._ending = Ending(TrainerPhase.COMPLETED, Reason.COMPLETED, "the script left the loop")
                self._close(done=False)
                self._narrator.enter(TrainerPhase.EVALUATING)
                self._stop.training = False

    def __iter__(self) -> Iterator[Any]:
        """Yield this worker's parts of the batches of an epoch."""
        if not self._inside:
            raise OwnLoopError("the batches belong to an epoch: loop over them within `for epoch in loop.epochs(...)`")
        if self._told:
            raise OwnLoopError(ONCE)
        self._state.enter_batches()
        batches = self._feed.batches(self._progress.epoch)
        while True:
            self._commit()
            # First: nobody is to come between an epoch's last step and what the script does behind its batches.
            if self._progress.cursor >= batches or self._over():
                break
            try:
                self._step = self._next_step()
            except GroupBrokenError:
                continue  # at its boundary the members are gathered anew
            yield self._step.part.batch
        if self._progress.cursor >= batches:
            self._progress.metrics["train_loss"] = self._progress.epoch_loss_sum / batches
            self._end_epoch()

    def backward(self, loss: Tensor) -> float:
        """Do what `loss.backward()` does, over the batches of all workers; returns their mean loss."""
        step = self._step
        if step is None:
            raise OwnLoopError("backward(loss) was called outside of the loop over the batches")
        try:
            if self._team is None or self._team.world == 1:
                joint = step.backward(loss)
            else:
                with self._team.stepping():
                    joint = step.backward(loss)
                self._team.stepped(joint)
        except GroupBrokenError:
            step.drop()
            return float(loss.detach())
        if not math.isfinite(joint.loss):
            rate = self._state.optimizer.param_groups[0]["lr"]
            self._fail(LossNotFiniteError(f"the loss of step {self._progress.step + 1} is {joint.loss}", rate))
        return joint.loss

    def report(self, **figures: float) -> None:
        """Put figures into the job's report."""
        progress = self._progress
        progress.metrics |= figures
        if {"validation_accuracy", "validation_loss"} <= figures.keys() and "train_loss" in progress.metrics:
            evaluation = Evaluation(figures["validation_accuracy"], figures["validation_loss"])
            progress.validated(evaluation.accuracy, evaluation.loss)
            self._narrator.epoch_finished(progress.metrics["train_loss"], evaluation, self._gaps.take())
        self._narrator.report(urgent=True)

    # ---- within

    def _begin(self) -> None:
        if self._closed:
            raise OwnLoopError("epochs() has ended, and with it the job; a script has one loop over epochs")
        scheduler, narrator = self._scheduler, self._narrator
        if self._team is not None and (self._resumed or self._used > 0):
            # The leader was started again; the other workers may have gone on for a while after its checkpoint.
            self._allocation = scheduler.allocation()
            if self._allocation.replicas > 1 and self._team.reunite(self._progress.step):
                self._meet()
                while self._team.broken:  # a handful of times at most
                    self._meet()
        scheduler.start(self._used)
        self._saver.begin(scheduler.used_seconds())
        narrator.started(self._resumed, str(self._state.device))
        self._stop.training = True
        for warning in self._warnings:
            narrator.warn("CheckpointDamaged", warning)
        if self._cannot_grow:
            narrator.warn("NotGrowable", f"the model will be trained as it is: {self._cannot_grow}")

    def _over(self) -> bool:
        """Take notice of allocation, deadline and demands; tell whether the loop ends here."""
        if self._ending is not None:
            return True
        scheduler = self._scheduler
        self._allocation = scheduler.allocation()
        self._meet()
        self._narrator.acknowledge(self._allocation.generation)
        reason = scheduler.stop_reason()
        if scheduler.time_left() <= 0:
            self._ending = Ending(TrainerPhase.COMPLETED, Reason.BUDGET_EXHAUSTED)
        elif reason is Reason.GPU_BUDGET_EXHAUSTED:
            self._ending = Ending(TrainerPhase.COMPLETED, reason)
        elif reason is not None or self._stop():
            self._end(Ending(TrainerPhase.STOPPED, reason or Reason.INTERRUPTED, "it was asked to stop"))
        else:
            for warning in scheduler.take_warnings():
                self._narrator.warn("AllocationUnreadable", warning)
            used = scheduler.used_seconds()
            if self._saver.is_due(used) and not self._untried:
                self._save(used)
                self._saver.begin(scheduler.used_seconds())
            self._narrator.report()
        return self._ending is not None

    def _meet(self) -> None:
        if self._team is not None:
            self._team.meet(
                self._allocation.replicas, self._state.network, self._progress.step, self._capture, self._take_over
            )

    def _next_step(self) -> Step:
        progress, team = self._progress, self._team
        if team is None or team.world == 1:
            group, rank, world = None, 0, 1
        else:
            team.share_news(self._capture)
            group = team.begin_step(progress.epoch, progress.cursor)
            rank, world = group.rank, group.world
        part = self._feed.part(progress.epoch, progress.cursor, rank, world)
        step = Step(self._state, part, group, sync_batch_norm=bool(self._job.spec.training.sync_batch_norm))
        self._hooks.step = step
        return step

    def _commit(self) -> None:
        """Count the step that the script has taken."""
        step, self._step, self._hooks.step = self._step, None, None
        joint = None if step is None else step.finish()
        if step is None or joint is None:
            return
        progress, batches = self._progress, step.part.batches
        progress.cursor += batches
        progress.step += 1
        progress.epoch_loss_sum += joint.loss * batches
        if self._untried:
            self._untried, self._saver.wanted = False, True
        progress.metrics["learning_rate"] = float(self._state.optimizer.param_groups[0]["lr"])
        self._gaps.step_finished(progress)
        self._scheduler.step_finished(self._state.architecture)

    def _end_epoch(self) -> None:
        """Let the others do what the script does behind its batches at the same time as this worker."""
        if not self._told:
            self._told = True
            if self._team is not None:
                self._team.end_epoch(self._progress.epoch)

    def _finish_epoch(self) -> None:
        """Go to the next epoch, also where the script left this one early."""
        self._end_epoch()
        progress = self._progress
        self._told = False
        self._state.leave_epoch()
        progress.epoch += 1
        progress.cursor, progress.epoch_loss_sum = 0, 0.0
        if self._team is not None:
            self._team.noted()

    def _adapt(self) -> None:
        """Ask, where there are extra workers, whether the model is to grow."""
        adapter, progress = self._adapter, self._progress
        if (
            adapter is None
            or self._state.architecture is None
            or self._allocation.replicas <= self._scheduler.base_replicas()
            or progress.consultations >= self._job.spec.adaptation.max_adaptations
        ):
            return
        self._narrator.enter(TrainerPhase.ADAPTING)
        consultation = adapter.consult(self._state.network, progress, self._allocation)
        progress.consultations += 1
        if consultation.network.module is not self._state.model:
            # Where the grown one does not fit the script ends, and goes on from here, and does not grow so again.
            self._save(self._scheduler.used_seconds())
            self._saver.begin(self._scheduler.used_seconds())
            self._state.adopt(consultation.network)
            self._narrator.network = self._state.network
            self._untried = True
            if self._team is not None:
                self._team.grown()
        if self._team is not None:
            self._team.noted()
        progress.adaptations.append(consultation.adaptation)
        self._narrator.adapted(consultation.adaptation, consultation.problem)
        self._narrator.enter(TrainerPhase.TRAINING)

    def _capture(self) -> Checkpoint:
        used = self._scheduler.used_seconds()
        state = self._state
        return saving.capture(self._identity, state.network, self._progress, state, used, state.device)

    def _take_over(self, checkpoint: Checkpoint) -> Network:
        differences = self._identity.differences(checkpoint.state.identity)
        if differences:
            raise CheckpointMismatchError(
                f"the checkpoint is of another training run ({'; '.join(differences)}); set another checkpoint.path, "
                "or remove the folder to begin anew"
            )
        self._state.load(checkpoint)
        randomness.restore(checkpoint.state.random, checkpoint.training, self._state.device)
        self._progress = saving.progress_of(checkpoint.state)
        self._narrator.network, self._narrator.progress = self._state.network, self._progress
        return self._state.network

    def _save(self, used: float) -> None:
        try:
            self._saver.save(self._state.network, self._progress, used, self._narrator)
        except LossNotFiniteError as error:
            self._fail(error)

    def _fail(self, error: LossNotFiniteError) -> None:
        print(error, file=sys.stderr)
        self._close(done=False)
        self._narrator.finished(Ending(TrainerPhase.FAILED, Reason.LOSS_NOT_FINITE, str(error)), None)
        raise SystemExit(int(ExitCode.LOSS_NOT_FINITE))

    def _end(self, ending: Ending) -> None:
        """Part with the others, save; a loop that was stopped ends the process here."""
        self._ending = ending
        completed = ending.phase is TrainerPhase.COMPLETED
        self._close(done=completed)
        if completed:
            # What the script does behind its loop is counted, as an evaluation is.
            self._narrator.enter(TrainerPhase.EVALUATING)
        self._save(self._scheduler.used_seconds())
        self._stop.training = False
        if not completed:
            self._narrator.finished(ending, None)
            raise SystemExit(int(self._stop.exit_code()))

    def _close(self, *, done: bool) -> None:
        self._closed = True
        if self._team is not None:
            self._team.close(done=done)

    def _exit(self) -> None:
        """Say how it ended, when the process does."""
        broken = not self._closed or getattr(sys, "last_value", None) is not None
        if not self._closed:
            self._close(done=False)
        if self._narrator.ending is None:
            ending = self._ending or Ending(TrainerPhase.COMPLETED, Reason.COMPLETED)
            if self._stop():
                ending = Ending(TrainerPhase.STOPPED, Reason.INTERRUPTED, "it was asked to stop")
            elif broken:
                ending = Ending(TrainerPhase.FAILED, Reason.TRAINER_FAILED, "the script ended before its loop")
            self._narrator.finished(ending, None)
        self._closing.close()
