"""One run of a job, in the leader. A loop over `Run.epochs` and `Run.steps` computes the steps.

    while time is left: if the job has extra GPUs, ask the advisor and adapt; train an epoch.     (Lamelas, Algorithm 1)

Each step boundary is a point at which the run can be interrupted. There it sees the deadline, new allocations
(acknowledged at once, whether larger or smaller) and demands to stop. So the budget is kept to within one step, plus
the final checkpoint and the loop's last evaluation, which are announced (phase `Evaluating`) and counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from torch import nn

from espalier_core.types.job import AdaptationMode, AdaptiveTrainingJob
from espalier_core.types.reasons import Reason
from espalier_core.types.report import TrainerPhase
from espalier_core.types.task import score_in
from espalier_trainer.checkpoints.document import CheckpointIdentity
from espalier_trainer.data.objective import Evaluation
from espalier_trainer.elastic.group import Group, GroupBrokenError
from espalier_trainer.elastic.membership import ONE, Portion
from espalier_trainer.elastic.states import TrainingState
from espalier_trainer.elastic.step import StepResult
from espalier_trainer.errors import CheckpointMismatchError, SupersededError
from espalier_trainer.growth.consultation import Adapter
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.run.batching import Batching
from espalier_trainer.run.growing import Growth, Study
from espalier_trainer.run.live import LiveRun, check_boundary
from espalier_trainer.run.meter import WorkerPlacement
from espalier_trainer.run.services import Services
from espalier_trainer.training.hooks import Hooks
from espalier_trainer.training.progress import Ending, StepGaps, ending_of

if TYPE_CHECKING:
    from espalier_trainer.run.optimising import Optimiser

logger = logging.getLogger(__name__)

_LOOK_WALL_SECONDS: Final = 0.2
"""Between two looks whether all base workers are there."""
Value = TypeVar("Value")


class Run(LiveRun):
    """A run, from its checkpoint to its end."""

    def __init__(
        self,
        job: AdaptiveTrainingJob,
        state: TrainingState,
        services: Services,
        identity: CheckpointIdentity,
        seed: int,
        *,
        example: ExampleInput | None = None,
        cannot_grow: str = "",
        hooks: Hooks | None = None,
        study: Study | None = None,
        batching: Batching | None = None,
        loss: Callable[[nn.Module], float | None] = lambda _module: None,
        cannot_try: str = "",
        base_loss: Callable[[], float | None] | None = None,
        announces: bool = False,
        optimiser: Optimiser | None = None,
    ) -> None:
        """`example` are inputs [2, ...] of the network; without them it does not grow.

        `cannot_grow` is the reason for which the network cannot grow ('' if it can), and what happens instead.
        `hooks` take part in the run. `batching` decides on the batch size; None: it is the author's. `loss` is that
        of a module on one batch, by which growth that is not exact is judged. `cannot_try` is the reason for which
        other workers cannot try growths as `adaptation.trials` says ('' if they can), and the remedy. `base_loss`
        measures the validation loss of the network for such trials; None: it is in the metrics after each epoch.
        `announces`: other workers need no command for each step, as the loop does the same in all steps of an epoch.
        `optimiser` looks for a faster computation of steps; None: the job asks for none, or the script computes them.
        """
        super().__init__(
            job, state, services, identity, example=example, hooks=hooks, batching=batching, optimiser=optimiser
        )
        study = study or Study()
        advisor = None if job.spec.adaptation.mode is AdaptationMode.OFF else services.advisor
        adapter = (
            None
            if advisor is None or example is None
            else Adapter(
                job,
                advisor,
                services.scheduler,
                example,
                lambda: self.batching.batch_size or identity.batch_size,
                study.restart_only,
                services.clock,
                seed,
                loss,
            )
        )
        self._growth = Growth(self, adapter, study, cannot_grow=cannot_grow, cannot_try=cannot_try, base_loss=base_loss)
        self._gaps = StepGaps(services.clock, services.step_took)
        self._announces = announces
        self._resumed, self._used = False, services.used_seconds
        self._step_began = self._step_began_wall = 0.0

    # ---- what the loop calls

    def resume(self) -> None:
        """Load the newest checkpoint. Raises `CheckpointMismatchError` if it is of another run, or all are damaged."""
        store = self.services.checkpoints
        checkpoint = None if store is None else store.load_latest()
        if store is not None and checkpoint is None and (damaged := store.damaged()):
            names = ", ".join(path.name for path in damaged)
            raise CheckpointMismatchError(
                f"{store.folder}: no usable checkpoint is left ({names}); remove the folder (espalier run: --restart) "
                "to train from the beginning, with the whole budget"
            )
        if checkpoint is not None:
            self._resumed = True
            self.take_over(checkpoint)
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
                    self.optimise()
            yield self.progress.epoch
            self._finish_epoch()
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

        Of a stream, `batches` returns before each step how many there are at least.

        A step that `stepped` does not count is repeated. `rate` returns the learning rate of a step of one batch.
        `at_boundary`: no time has passed since `epochs` yielded. `moment` is what other workers learn of the budget;
        None: how it stands. Raises the same errors as `epochs`.
        """
        while self.progress.cursor < (known := batches() if callable(batches) else batches):
            fresh = at_boundary and not (self.team is not None and self.team.broken)
            if not fresh and self._boundary() is not None:
                return
            at_boundary = False
            self._step_began, self._step_began_wall = self.scheduler.used_seconds(), self.services.clock()
            now = (moment or self.moment)()
            try:
                due = next_step(self, known, rate, now, announces=self._announces)
            except GroupBrokenError:
                continue  # at the boundary the members are gathered again
            self.state.advance(now.share)
            yield due
        self.progress.metrics["train_loss"] = self.progress.epoch_loss_sum / max(1, self.progress.cursor)

    def compute_step(self, due: StepPlan, compute: Callable[[], StepResult]) -> StepResult:
        """Compute this worker's part of a step and return the result of `compute`. Raises `GroupBrokenError`."""
        if due.group is None or self.team is None:
            joint = compute()
        else:
            with self.team.stepping():
                joint = compute()
            self.team.stepped(joint)
        self.meter.look(joint, self.state.network)
        return joint

    def compute_part(self, due: StepPlan, compute: Callable[[], Value]) -> Value:
        """Compute a part of a step that the members do not take together; leave the group if that fails."""
        if due.group is None or self.team is None:
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
            self.saver.want(self.capture_all)
        jumped = self.loss_jump.stepped(loss, progress.adaptations)
        if (proved or jumped) and self.team is not None:
            self.team.state_changed()
        if self.optimiser is not None and self.optimiser.stepped(seconds):
            self.change(self.optimiser.decided(self.allocation))
        self._gaps.step_finished(progress)
        self.scheduler.step_finished(self.state.network.architecture)
        seconds = self.scheduler.used_seconds() - self._step_began
        self.hooks.stepped(self.state.network, seconds / self.batching.worth(portion))

    def validated(self, evaluation: Evaluation) -> None:
        """Report an evaluation on the validation split."""
        self.progress.validated(evaluation)
        if "train_loss" in self.progress.metrics:
            self.journal.epoch_finished(self.progress.metrics["train_loss"], evaluation, self._gaps.take())

    def complete(self, message: str) -> None:
        """Take it that the loop is over, unless the run has ended."""
        if self.ending is None and self.progress.step == 0:
            self.ending = Ending(TrainerPhase.FAILED, Reason.NOTHING_TRAINED, f"{message}, and no step was taken")
        self.ending = self.ending or Ending(TrainerPhase.COMPLETED, Reason.COMPLETED, message)

    def end(self, *, done: bool = True) -> None:
        """Leave the other workers, and save. They wait for a leader, unless the job is complete and `done`."""
        completed = self.ending is not None and self.ending.phase is TrainerPhase.COMPLETED
        if completed:
            self.change(self.hooks.completed())
        self.close(done=completed and done)
        if self.ending is not None and self.ending.phase is TrainerPhase.FAILED:
            return  # nothing was trained: a checkpoint would keep the used budget, and nothing else
        if completed:
            # What the loop does after its epochs is counted, as an evaluation is.
            self.journal.enter(TrainerPhase.EVALUATING)
        problem = self.save()
        if completed and problem:
            self.ending = Ending(TrainerPhase.FAILED, Reason.CHECKPOINT_NOT_WRITTEN, problem)

    def close(self, *, done: bool) -> None:
        """Leave the other workers: permanently if the job is `done`; otherwise they wait for a leader.

        A checkpoint in flight is waited for.
        """
        self._growth.abandon()
        if self.team is not None:
            self.team.close(done=done)
        try:
            self.saver.look(self.journal, self.scheduler.used_seconds, wait=True)
        except SupersededError as error:
            logger.info("the checkpoint in flight was not written: %s", error)

    def finish(self, ending: Ending, test: Evaluation | None = None) -> None:
        """Report how the run ended, and the score of a complete run to the agent that advised it."""
        self.ending = ending
        self.loss_jump.report(self.progress.adaptations)
        self.journal.finished(ending, test)
        metrics = self.progress.metrics
        final = (score_in(metrics, "test") or score_in(metrics, "validation")) if test is None else test.score
        if ending.phase is TrainerPhase.COMPLETED and final is not None:
            self._growth.outcome(final)

    def broken_by(self, error: BaseException) -> Ending:
        """Report that an exception ended the run, and return how."""
        ending = ending_of(error, stepped=self.progress.step > self.first_step)
        self.finish(ending)
        return ending

    # ---- within

    def _begin(self) -> None:
        scheduler, store = self.scheduler, self.services.checkpoints
        self._wait_for_workers()
        if self.team is not None and (self._resumed or self._used > 0):
            # The leader was started again; the other workers may have gone on for a while after its checkpoint.
            self.allocation = scheduler.allocation()
            if self.allocation.replicas > 1 and self.team.wait_for_members(self.progress.step):
                self.update_members()
                while self.team.broken:  # a handful of times at most
                    self.update_members()
        scheduler.start(self._used)
        self.saver.begin(scheduler.used_seconds())
        self.journal.started(self._resumed, str(self.state.device))
        for warning in store.warnings if store is not None else ():
            self.journal.warn("CheckpointDamaged", warning)
        self._growth.warn()
        self.warn_of_steps()

    def _wait_for_workers(self) -> None:
        """Wait while base workers are held back; whatever else ends the run is noticed at its first boundary."""
        services, waits = self.services, False
        while self.scheduler.waits_for_workers():
            if self.scheduler.stop_reason() or services.stop() or services.superseded():
                return
            if not waits:
                logger.info("training begins when the scheduling gates of all base workers are gone")
                waits = True
            time.sleep(_LOOK_WALL_SECONDS)

    def _boundary(self) -> Ending | None:
        if self.ending is None:
            self.ending = check_boundary(self)
        return self.ending

    def _finish_epoch(self) -> None:
        if self.ending is None:
            self.progress.epoch += 1
            self.progress.cursor, self.progress.epoch_loss_sum = 0, 0.0
            if self.team is not None:
                self.team.state_changed()


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step to take."""

    group: Group | None
    """All members of it; None: this worker is alone."""
    rate: float
    """The learning rate."""
    portion: Portion = ONE
    """Of the epoch, in this step."""
    measured: bool = False
    """Measure times and norms of gradients in it."""
    follows: bool = False
    """Tell the other members in it that another one follows."""


def next_step(run: LiveRun, batches: int, rate: Callable[[], float], moment: Moment, *, announces: bool) -> StepPlan:
    """Return the next step of an epoch of `batches` batches, after which other workers may go on by themselves.

    `rate`, `moment` and `announces` are as `Run` takes them. Raises `GroupBrokenError`.
    """
    team, progress, place = run.team, run.progress, run.place
    if run.hooks.may_grow:  # a trial compares steps of one size
        _choose_batch_size(run, place)
    portion = run.batching.portion(place.workers, progress.cursor, batches)
    scaled = rate() * portion.rate
    if team is None or team.world == 1:
        measured = run.meter.begin()
        return StepPlan(None, scaled, run.batching.measurable(portion) if measured else portion, measured)
    team.share_news(run.capture)
    measured = run.meter.begin(may=not team.announced)
    after, then = progress.cursor + portion.batches, None
    if announces and after < batches and not (run.meter.soon or run.state.network.unfolds):
        then = run.batching.portion(place.workers, after, batches)
    group = team.begin_step(
        progress.epoch, progress.cursor, portion=portion, measured=measured, moment=moment, then=then
    )
    return StepPlan(group, scaled, portion, measured, team.announces)


def _choose_batch_size(run: LiveRun, place: WorkerPlacement) -> None:
    if run.batching.batch_size is None:
        return
    begins, parameters = run.progress.cursor == 0, run.state.network.parameters
    if changed := run.batching.choose(run.meter.measured, place, parameters, epoch_begins=begins):
        run.resized(changed)
        if changed.untested:
            run.save()  # if there is no memory for it, whoever starts again knows
