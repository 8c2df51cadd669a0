"""One run of a job, in the leader. A loop over `Run.epochs` and `Run.steps` computes the steps.

    while time is left: if the job has extra GPUs, ask the advisor and adapt; train an epoch.     (Lamelas, Algorithm 1)

Each step boundary is a point at which the run can be interrupted. There it checks the deadline, new allocations
(acknowledged at once, whether larger or smaller) and requests to stop. So the budget is kept to within one step, plus
the final checkpoint and the loop's last evaluation, which are announced (phase `Evaluating`) and counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from espalier_core.types.allocation import Allocation
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.reasons import Reason
from espalier_core.types.report import BATCH_METRIC, TrainerPhase
from espalier_core.types.task import score_in
from espalier_trainer.checkpoints.document import CheckpointIdentity
from espalier_trainer.data.objective import Evaluation
from espalier_trainer.elastic.group import GroupBrokenError
from espalier_trainer.elastic.membership import Portion
from espalier_trainer.elastic.states import TrainingState
from espalier_trainer.elastic.step import StepPlan, StepResult
from espalier_trainer.elastic.team import Team
from espalier_trainer.errors import SupersededError
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.run import steps
from espalier_trainer.run.growing import Growth
from espalier_trainer.run.journal import LossJump, RunJournal
from espalier_trainer.run.meter import RunMeter, WorkerPlacement
from espalier_trainer.run.saving import Saver
from espalier_trainer.run.services import Services
from espalier_trainer.run.steps import LoopSpec
from espalier_trainer.training.hooks import Boundary, Change
from espalier_trainer.training.network import Network
from espalier_trainer.training.progress import Ending, RunProgress, StepGaps, ending_of

logger = logging.getLogger(__name__)

_LOOK_WALL_SECONDS: Final = 0.2
"""Seconds between two checks for the base workers."""
Value = TypeVar("Value")


class Run:
    """A run, from its checkpoint to its end. `progress`, `allocation` and `ending` are its current state."""

    def __init__(
        self,
        job: AdaptiveTrainingJob,
        state: TrainingState,
        services: Services,
        identity: CheckpointIdentity,
        loop: LoopSpec,
    ) -> None:
        """`identity` must match that of a checkpoint for the run to resume from it."""
        self.job, self.state, self.services, self.loop = job, state, services, loop
        self.hooks, self.batching, self.optimiser = loop.hooks, loop.batching, loop.optimiser
        self.scheduler = services.scheduler
        network = state.network
        self.progress = RunProgress(network.depth, network.parameters)
        self.meter = RunMeter(network, services.gpu_type)
        self.journal = RunJournal(
            job.key,
            services.scheduler,
            services.reporter,
            network,
            self.progress,
            services.incarnation,
            services.attempt,
            measured=self.meter.measured,
        )
        self._record_batch_size()
        self.saver = Saver(self, identity)
        self.team: Team | None = None if services.team is None else services.team(self.journal)
        self.allocation = Allocation()
        self.ending: Ending | None = None
        self.evaluation_seconds = 0.0
        """Budget seconds of the loop's last evaluation."""
        self.loss_jump = LossJump(self.journal)
        self.first_step = 0
        """First step of this process."""
        self.grown_from: Network | None = None
        """Network before the last growth, kept until a step shows that the grown one fits into memory; else None."""
        self._growth = Growth(self, identity)
        self._gaps = StepGaps(services.clock, services.step_took)
        self._resumed, self._used = False, services.used_seconds
        self._step_began = self._step_began_wall = 0.0

    # ---- what the loop calls

    def resume(self) -> None:
        """Load the newest checkpoint. Raises `CheckpointMismatchError` if it is of another run, or all are damaged."""
        checkpoint = self.saver.newest()
        if checkpoint is not None:
            self._resumed = True
            self.saver.take_over(checkpoint)
            self.first_step = self.progress.step
            self._used = max(self._used, checkpoint.state.used_seconds)

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Yield the epochs from the current one to the end of the budget, at most `count` in all.

        Raises `LossNotFiniteError` if the weights are not finite when the run is saved, and `SupersededError` if a
        later leader has taken over.
        """
        self._begin()
        while self._boundary() is None and (count is None or self.progress.epoch < count):
            if self.progress.cursor == 0:
                self._growth.look_ahead()
                if not self._growth.adapted():
                    continue
                if not self._growth.is_trying:
                    steps.optimise(self)
            yield self.progress.epoch
            if self.ending is None:
                self.progress.epoch += 1
                self.progress.cursor, self.progress.epoch_loss_sum = 0, 0.0
                self.share_state()
        self.complete("all epochs are done")
        self.end()

    def steps(
        self,
        batches: int | Callable[[], int],
        rate: Callable[[], float] = lambda: 0.0,
        *,
        at_boundary: bool = False,
        moment: Callable[[], Moment] | None = None,
    ) -> Iterator[StepPlan]:
        """Yield the steps to the end of an epoch of `batches` batches, or to the end of the run.

        For a stream, `batches` is a function that returns, before each step, a lower bound of their number.

        A step that `stepped` does not count is repeated. `rate` returns the learning rate of a step of one batch.
        `at_boundary`: no time has passed since `epochs` yielded. `moment` returns the position in the budget
        that other workers receive; None for the current one. Raises the same errors as `epochs`.
        """
        while self.progress.cursor < (known := batches() if callable(batches) else batches):
            fresh = at_boundary and not (self.team is not None and self.team.broken)
            if not fresh and self._boundary() is not None:
                return
            at_boundary = False
            self._step_began, self._step_began_wall = self.scheduler.used_seconds(), self.services.clock()
            now = (moment or self.moment)()
            try:
                plan = steps.next_step(self, known, rate, now)
            except GroupBrokenError:
                continue  # the boundary gathers the members again
            self.state.advance(now.share)
            yield plan
        self.progress.metrics["train_loss"] = self.progress.epoch_loss_sum / max(1, self.progress.cursor)

    def compute_step(self, plan: StepPlan, compute: Callable[[], StepResult]) -> StepResult:
        """Compute this worker's part of a step and return the result of `compute`. Raises `GroupBrokenError`."""
        joint = self.compute_part(plan, compute)
        if plan.group is not None and self.team is not None:
            self.team.stepped(joint)
        self.meter.look(joint, self.state.network)
        return joint

    def compute_part(self, plan: StepPlan, compute: Callable[[], Value]) -> Value:
        """Compute a part of a step that the members do not take together; leave the group if that fails."""
        if plan.group is None or self.team is None:
            return compute()
        with self.team.stepping():
            return compute()

    def stepped(self, loss: float, portion: Portion) -> None:
        """Count a step that took `portion` of the epoch; `loss` was computed before the step."""
        progress, place = self.progress, self.place
        seconds = self.services.clock() - self._step_began_wall
        self.meter.stepped(place, seconds, progress.epoch, progress.step, loss, portion)
        proved = self.batching.stepped(portion, place.workers)
        progress.cursor += portion.batches
        progress.step += 1
        progress.epoch_loss_sum += loss * portion.batches
        if self.grown_from is not None or proved:
            self.grown_from = None
            self.saver.want()
        jumped = self.loss_jump.stepped(loss, progress.adaptations)
        if proved or jumped:
            self.share_state()
        if self.optimiser is not None and self.optimiser.stepped(seconds):
            self.change(self.optimiser.decided(self.allocation))
        self._gaps.step_finished(progress)
        self.scheduler.step_finished(self.state.network.architecture)
        seconds = self.scheduler.used_seconds() - self._step_began
        self.hooks.stepped(self.state.network, seconds / self.batching.worth(portion))

    def validated(self, evaluation: Evaluation) -> None:
        """Report an evaluation on the validation split."""
        self.progress.validated(evaluation, self.scheduler.used_seconds() / self.scheduler.time_budget())
        self.meter.validated(self.progress.epoch + 1, evaluation.score.value)
        if "train_loss" in self.progress.metrics:
            self.journal.epoch_finished(self.progress.metrics["train_loss"], evaluation, self._gaps.take())

    def complete(self, message: str) -> None:
        """Record that the loop is over, unless the run has ended."""
        if self.ending is None and self.progress.step == 0:
            self.ending = Ending(TrainerPhase.FAILED, Reason.NOTHING_TRAINED, f"{message}, and no step was taken")
        self.ending = self.ending or Ending(TrainerPhase.COMPLETED, Reason.COMPLETED, message)

    def end(self, *, done: bool = True) -> None:
        """Save and leave the other workers, which wait for the next leader unless the job is complete and `done`."""
        completed = self.ending is not None and self.ending.phase is TrainerPhase.COMPLETED
        if completed:
            self.change(self.hooks.completed())
        self.close(done=completed and done)
        if self.ending is not None and self.ending.phase is TrainerPhase.FAILED:
            return  # nothing was trained: a checkpoint would hold only the used budget
        if completed:
            # The loop's work after its epochs is counted, like an evaluation.
            self.journal.enter(TrainerPhase.EVALUATING)
        problem = self.saver.save()
        if completed and problem:
            self.ending = Ending(TrainerPhase.FAILED, Reason.CHECKPOINT_NOT_WRITTEN, problem)

    def close(self, *, done: bool) -> None:
        """Leave the other workers: permanently if the job is `done`; otherwise they wait for a leader.

        Waits for a checkpoint in flight.
        """
        self._growth.abandon()
        if self.team is not None:
            self.team.close(done=done)
        try:
            self.saver.collect(wait=True)
        except SupersededError as error:
            logger.info("the checkpoint in flight was not written: %s", error)

    def finish(self, ending: Ending, test: Evaluation | None = None) -> None:
        """Report the end of the run, and the score of a complete run to the agent that advised it."""
        self.ending = ending
        self.loss_jump.report(self.progress.adaptations)
        self.journal.finished(ending, test)
        metrics = self.progress.metrics
        final = (score_in(metrics, "test") or score_in(metrics, "validation")) if test is None else test.score
        if ending.phase is TrainerPhase.COMPLETED and final is not None:
            self._growth.outcome(final)

    def broken_by(self, error: BaseException) -> Ending:
        """Report that an exception ended the run, and return the ending."""
        ending = ending_of(error, stepped=self.progress.step > self.first_step)
        self.finish(ending)
        return ending

    # ---- what the parts of the run call

    def cannot_go_on(self) -> bool:
        """Return whether the loop must break off its work between two steps."""
        if self.team is not None:
            self.team.wait()
        scheduler = self.scheduler
        return scheduler.time_left() <= 0 or self.services.stop() or scheduler.stop_reason() is not None

    def moment(self) -> Moment:
        """Return the current position of training in its budget."""
        return Moment(self.scheduler.used_seconds(), self.scheduler.time_budget())

    @property
    def place(self) -> WorkerPlacement:
        """Number of nodes and workers that compute a step."""
        return WorkerPlacement() if self.team is None else WorkerPlacement(self.team.nodes, self.team.world)

    def share_state(self) -> None:
        """Send the members the non-tensor state before the next step."""
        if self.team is not None:
            self.team.state_changed()

    def use(self, network: Network) -> None:
        """Continue with another network."""
        self.state.adopt(network)
        self.journal.network = self.state.network
        self.meter.network_changed(self.state.network)
        if self.optimiser is not None:
            self.optimiser.changed()
        if self.team is not None:
            self.team.network_changed()

    def become(self, progress: RunProgress) -> None:
        """Continue at the progress of a loaded checkpoint."""
        self.progress = self.journal.progress = progress
        self.journal.network = self.state.network
        self.meter.network_changed(self.state.network)
        self._record_batch_size()

    def change(self, change: Change | None) -> None:
        """Carry out the change that a hook returned."""
        if change is None:
            return
        done = change.adaptation
        if change.network is not self.state.network or change.share:
            self.use(change.network)
            self.saver.wanted = True
        if done is None:
            self.journal.trial_started(change.network, change.trial_seconds)
            return
        self.loss_jump.report(self.progress.adaptations)
        self.progress.adaptations.append(done)
        self.share_state()
        self.journal.adapted(done, None)

    # ---- within

    def _record_batch_size(self) -> None:
        if self.batching.batch_size is not None:
            self.progress.metrics[BATCH_METRIC] = self.batching.batch_size

    def _begin(self) -> None:
        scheduler, store = self.scheduler, self.services.checkpoints
        self._wait_for_workers()
        if self.team is not None and (self._resumed or self._used > 0):
            # The leader was restarted; the other workers may have gone on for a while after its checkpoint.
            self.allocation = scheduler.allocation()
            if self.allocation.replicas > 1 and self.team.wait_for_members(self.progress.step):
                self._update_members()
                while self.team.broken:  # a handful of times at most
                    self._update_members()
        scheduler.start(self._used)
        self.saver.begin()
        self.journal.started(self._resumed, str(self.state.device))
        for warning in store.warnings if store is not None else ():
            self.journal.warn("CheckpointDamaged", warning)
        self._growth.warn()
        steps.warn_of_rewrites(self)

    def _wait_for_workers(self) -> None:
        """Wait while base workers are held back; other reasons to end are handled at the first boundary."""
        services, waits = self.services, False
        while self.scheduler.waits_for_workers():
            if self.scheduler.stop_reason() or services.stop() or services.superseded():
                return
            if not waits:
                logger.info("training begins when the scheduling gates of all base workers are gone")
                waits = True
            time.sleep(_LOOK_WALL_SECONDS)

    def _update_members(self) -> None:
        """Admit waiting workers, and release workers beyond the allocation."""
        if self.team is not None:
            replicas, step, saver = self.allocation.replicas, self.progress.step, self.saver
            self.team.update_members(replicas, self.state.network, step, saver.capture, saver.take_over)

    def _boundary(self) -> Ending | None:
        if self.ending is None:
            self.ending = self._check_boundary()
        return self.ending

    def _check_boundary(self) -> Ending | None:
        """Read the allocation, the deadline and requests to stop; save and report if due. Return an ending that is due.

        Raises `SupersededError` if a later leader has taken over.
        """
        if by := self.services.superseded():
            raise SupersededError(by)
        scheduler = self.scheduler
        self.allocation = scheduler.allocation()
        self._update_members()
        if self.journal.acknowledge(self.allocation.generation):
            self.services.spans.acknowledged(self.allocation)
        if scheduler.time_left() <= 0:
            return self._out_of_budget(Reason.BUDGET_EXHAUSTED)
        # Before requests to stop: no step follows a comparison that such a request interrupts.
        self.change(
            self.hooks.at_boundary(
                Boundary(
                    self.state.network,
                    lambda: self.saver.capture().state,
                    self.allocation,
                    self.progress.epoch,
                    scheduler.time_left(),
                    self.evaluation_seconds,
                    self.cannot_go_on,
                )
            )
        )
        if reason := scheduler.stop_reason():
            if reason is Reason.GPU_BUDGET_EXHAUSTED:
                return self._out_of_budget(reason)
            return Ending(TrainerPhase.STOPPED, reason, "the scheduler asked it to stop")
        if self.services.stop():
            return Ending(TrainerPhase.STOPPED, Reason.INTERRUPTED, "it was asked to stop")
        for warning in scheduler.take_warnings():
            self.journal.warn("AllocationUnreadable", warning)
        self.saver.collect()
        if self.saver.is_due() and self.grown_from is None:
            self.saver.save(wait=False)
            if scheduler.time_left() <= 0:  # a large model takes a while to copy
                return self._out_of_budget(Reason.BUDGET_EXHAUSTED)
        elif self.progress.step > self.first_step:  # the optimizer has its state then
            self.saver.prepare()
        self.journal.report()
        return None

    def _out_of_budget(self, reason: Reason) -> Ending:
        if self.progress.step == 0:  # earlier leaders used the budget, and failed
            return Ending(TrainerPhase.FAILED, Reason.NOTHING_TRAINED, "its budget was used up before it took a step")
        return Ending(TrainerPhase.COMPLETED, reason)
