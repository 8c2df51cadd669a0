"""One run of a job, in the leader. A loop over `Run.epochs` and `Run.steps` computes the steps.

    while time is left: if the job has extra GPUs, ask the advisor and adapt; train an epoch.     (Lamelas, Algorithm 1)

Each step boundary is a point at which the run can be interrupted. There it sees the deadline, new allocations
(acknowledged at once, whether larger or smaller) and demands to stop. So the budget is kept to within one step, plus
the final checkpoint and the loop's last evaluation, which are announced (phase `Evaluating`) and counted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

import torch
from torch import nn

from espalier_api.advice import offered
from espalier_api.allocation import Allocation
from espalier_api.events import NOT_GROWABLE
from espalier_api.job import AdaptationMode, AdaptiveTrainingJob, Optimise, Trials
from espalier_api.reasons import SENTENCES, Reason
from espalier_api.report import BATCH_METRIC, AdaptationResult, Arm, TrainerPhase
from espalier_api.task import score_in
from espalier_trainer import randomness
from espalier_trainer.adapting import Adapter, Asked, Consultation, Silence, report_outcome, undone
from espalier_trainer.causes import ending_of
from espalier_trainer.checkpoint import Checkpoint, CheckpointIdentity
from espalier_trainer.core import saving
from espalier_trainer.core.batching import Batching, FixedBatching, Resized
from espalier_trainer.core.forecasting import Forecasting
from espalier_trainer.core.hooks import Boundary, Change, Hooks
from espalier_trainer.core.jumps import Jumps
from espalier_trainer.core.optimising import Optimiser
from espalier_trainer.core.services import Services
from espalier_trainer.core.state import TrainingState
from espalier_trainer.elastic.batches import ONE, Portion
from espalier_trainer.elastic.group import Group, GroupBrokenError
from espalier_trainer.elastic.step import Joint
from espalier_trainer.elastic.team import Team
from espalier_trainer.errors import LossNotFiniteError, SupersededError
from espalier_trainer.evaluation import Evaluation
from espalier_trainer.journal import Journal
from espalier_trainer.measuring.meter import Meter, Place
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.network import Network
from espalier_trainer.progress import Ending, Progress, StepGaps
from espalier_trainer.schedules import Moment
from espalier_trainer.trials import rules
from espalier_trainer.trials.leading import Trial, begun

logger = logging.getLogger(__name__)
Value = TypeVar("Value")

_NO_OPTIMISER: Final = (
    "adaptation.optimise: the script computes its steps, so that they are not rewritten; use the ready trainer, or set "
    "it to Off"
)
_ENDLESS: Final = 1 << 60
"""Batches of an epoch that does not end."""


@dataclass(frozen=True, slots=True)
class Study:
    """Options for studies, which no job uses."""

    restart_only: bool = False
    """A control: if the advice is to grow, only the learning rate's schedule restarts."""
    stop_before_decision: int | None = None
    """End the run as `Stopped`, with a checkpoint, when the decision with this number (from 0) is due, so that several
    runs can continue from it, each with another decision."""


@dataclass(frozen=True, slots=True)
class Due:
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


class Run:
    """A run, from its checkpoint to its end. `progress`, `allocation` and `ending` are its current state."""

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
        foretells: bool = False,
        optimiser: Optimiser | None = None,
    ) -> None:
        """`example` are inputs [2, ...] of the network; without them it does not grow.

        `cannot_grow` is the reason for which the network cannot grow ('' if it can), and what happens instead.
        `hooks` take part in the run. `batching` decides on the batch size; None: it is the author's. `loss` is that
        of a module on one batch, by which growth that is not exact is judged. `cannot_try` is the reason for which
        other workers cannot try growths as `adaptation.trials` says ('' if they can), and the remedy. `base_loss`
        measures the validation loss of the network for such trials; None: it is in the metrics after each epoch.
        `foretells`: other workers need no command for each step, as the loop does the same in all steps of an epoch.
        `optimiser` looks for a faster computation of steps; None: the loop's author computes them.
        """
        self.job, self.state, self.services = job, state, services
        self.hooks, self._study = hooks or Hooks(), study or Study()
        self._identity, self._cannot_grow, self._example = identity, cannot_grow, example
        self.batching = batching or FixedBatching()
        self._optimiser = optimiser
        self._scheduler = services.scheduler
        network = state.network
        self.progress = Progress(network.depth, network.parameters)
        self._meter = Meter(network, services.gpu_type)
        self.journal = Journal(
            job.key,
            services.scheduler,
            services.reporter,
            network,
            self.progress,
            services.incarnation,
            services.attempt,
            measured=self._meter.measured,
        )
        advisor = None if job.spec.adaptation.mode is AdaptationMode.OFF else services.advisor
        self._adapter = (
            None
            if advisor is None or example is None
            else Adapter(job, advisor, self._scheduler, example, self._study.restart_only, services.clock, seed, loss)
        )
        self._note_batch_size()
        self._saver = saving.Saver(services.checkpoints, job.spec.checkpoint.interval_seconds, services.clock)
        self._gaps = StepGaps(services.clock, services.step_took)
        self.team: Team | None = None if services.team is None else services.team(self.journal)
        self.allocation = Allocation()
        self.ending: Ending | None = None
        self.evaluation_seconds = 0.0
        """Budget seconds that the loop's last evaluation took."""
        self._silence, self._jumps, self._foretells = Silence(), Jumps(self.journal), foretells
        if not cannot_try and job.spec.adaptation.mode is not AdaptationMode.AUTO:
            cannot_try = f"adaptation.mode is {job.spec.adaptation.mode}; set it to Auto"
        self._cannot_try, self._base_loss = cannot_try, base_loss
        self._trials = Trials.OFF if cannot_try else job.spec.adaptation.trials
        self._trial: Trial | None = None
        self._forecasting = Forecasting(services.forecaster, self._scheduler, self._trials)
        self._lent: tuple[int, float] | None = None
        """The allocation whose extra workers are waited for, and since when, in used seconds."""
        self._resumed, self._used = False, services.used_seconds
        self._first_step = 0
        """The step that this process began at."""
        self._grown_from: Network | None = None
        """The network before the last growth. Kept until a step has shown that the grown one fits into memory."""
        self._step_began = self._step_began_wall = 0.0

    # ---- what the loop calls

    def resume(self) -> None:
        """Load the newest checkpoint. Raises `CheckpointMismatchError` if it belongs to another run."""
        store = self.services.checkpoints
        checkpoint = None if store is None else store.load_latest()
        if checkpoint is not None:
            self._resumed = True
            self._take_over(checkpoint)
            self._first_step = self.progress.step
            self._used = max(self._used, checkpoint.state.used_seconds)

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Yield the epochs from the current one to the end of the budget, at most `count` in all.

        Raises `LossNotFiniteError` if the weights are not finite when the run is saved, and `SupersededError` if a
        later leader has taken over.
        """
        self._begin()
        while self._boundary() is None and (count is None or self.progress.epoch < count):
            if self.progress.cursor == 0:
                self._look_ahead()
                if not self._adapted():
                    continue
                self._optimise()
            yield self.progress.epoch
            self._finish_epoch()
        self.ending = self.ending or Ending(TrainerPhase.COMPLETED, Reason.COMPLETED, "all epochs are done")
        self.end()

    def steps(
        self,
        batches: int,
        rate: Callable[[], float] = lambda: 0.0,
        *,
        at_boundary: bool = False,
        moment: Callable[[], Moment] | None = None,
    ) -> Iterator[Due]:
        """Yield the steps to the end of an epoch of `batches` batches, or to the end of the run.

        A step that `stepped` does not count is repeated. `rate` returns the learning rate of a step of one batch.
        `at_boundary`: no time has passed since `epochs` yielded. `moment` is what other workers learn of the budget;
        None: how it stands. Raises the same errors as `epochs`.
        """
        while self.progress.cursor < batches:
            fresh = at_boundary and not (self.team is not None and self.team.broken)
            if not fresh and self._boundary() is not None:
                return
            at_boundary = False
            self._step_began, self._step_began_wall = self._scheduler.used_seconds(), self.services.clock()
            now = (moment or self.moment)()
            try:
                due = self._due(batches, rate, now)
            except GroupBrokenError:
                continue  # at the boundary the members are gathered again
            self.state.advance(now.share)
            yield due
        self.progress.metrics["train_loss"] = self.progress.epoch_loss_sum / batches

    @property
    def computed(self) -> Network:
        """What computes the next step: the network, or the same network in another way that is on probation."""
        network = self.state.network
        return network if self._optimiser is None else self._optimiser.computed(network)

    def together(self, due: Due, compute: Callable[[], Joint]) -> Joint:
        """Compute this worker's part of a step and return the result of `compute`. Raises `GroupBrokenError`."""
        if due.group is None or self.team is None:
            joint = compute()
        else:
            with self.team.stepping():
                joint = compute()
            self.team.stepped(joint)
        self._meter.look(joint, self.state.network)
        return joint

    def apart(self, due: Due, compute: Callable[[], Value]) -> Value:
        """Compute a part of a step that the members do not take together; leave the group if that fails."""
        if due.group is None or self.team is None:
            return compute()
        with self.team.stepping():
            return compute()

    def usable(self, loss: float) -> bool:
        """Return whether a step with this loss counts; raises `LossNotFiniteError` where training cannot continue."""
        if math.isfinite(loss):
            return True
        if self._abandoned(f"the loss is {loss}"):
            return False
        change = self.hooks.failed(f"the smaller model's loss is {loss}")
        if change is None:
            raise LossNotFiniteError(
                f"the loss of step {self.progress.step + 1} (epoch {self.progress.epoch}) is {loss}",
                self.state.network.optimizer.param_groups[0]["lr"],
            )
        self._change(change)
        return False

    def recover(self, error: torch.OutOfMemoryError) -> None:
        """Continue with a network that fits into the memory of the device; raises `error` if there is none."""
        message = f"out of memory: {str(error).splitlines()[0]}"
        world = 1 if self.team is None else self.team.world
        if self._abandoned(message):
            return
        if smaller := self.batching.out_of_memory(world):
            self._resized(smaller, message)
        elif self._grown_from is not None:
            before, self._grown_from = self._grown_from, None
            self._use(before)
            self.hooks.growth_undone()
            undo = undone(self.progress.adaptations[-1], before, message)
            self.progress.adaptations[-1] = undo
            self.journal.adapted(undo, None)
        elif change := self.hooks.failed(message):
            self._change(change)
        else:
            raise error

    def stepped(self, loss: float, portion: Portion) -> None:
        """Count a step that took `portion` of the epoch; `loss` was computed before the step."""
        progress, place = self.progress, self._place
        seconds = self.services.clock() - self._step_began_wall
        self._meter.stepped(place, seconds, progress.epoch, progress.step, loss, portion)
        proved = self.batching.stepped(portion, place.workers)
        progress.cursor += portion.batches
        progress.step += 1
        progress.epoch_loss_sum += loss * portion.batches
        if self._grown_from is not None or proved:
            self._grown_from = None
            self._saver.want(self._capture_all)
        jumped = self._jumps.stepped(loss, progress.adaptations)
        if (proved or jumped) and self.team is not None:
            self.team.noted()
        if self._optimiser is not None and self._optimiser.stepped(seconds):
            self._change(self._optimiser.decided(self.allocation))
        self._gaps.step_finished(progress)
        self._scheduler.step_finished(self.state.network.architecture)
        seconds = self._scheduler.used_seconds() - self._step_began
        self.hooks.stepped(self.state.network, seconds / self.batching.worth(portion))

    def validated(self, evaluation: Evaluation) -> None:
        """Report an evaluation on the validation split."""
        self.progress.validated(evaluation)
        if "train_loss" in self.progress.metrics:
            self.journal.epoch_finished(self.progress.metrics["train_loss"], evaluation, self._gaps.take())

    def cannot_go_on(self) -> bool:
        """Return whether what the loop does between two steps has to be broken off."""
        if self.team is not None:
            self.team.wait()
        scheduler = self._scheduler
        return scheduler.time_left() <= 0 or self.services.stop() or scheduler.stop_reason() is not None

    def moment(self) -> Moment:
        """Return the current position of training in its budget."""
        return Moment(self._scheduler.used_seconds(), self._scheduler.time_budget())

    def end(self) -> None:
        """Leave the other workers, and save."""
        completed = self.ending is not None and self.ending.phase is TrainerPhase.COMPLETED
        if completed:
            self._change(self.hooks.completed())
        self.close(done=completed)
        if self.ending is not None and self.ending.phase is TrainerPhase.FAILED:
            return  # nothing was trained: a checkpoint would keep the used budget, and nothing else
        if completed:
            # What the loop does after its epochs is counted, as an evaluation is.
            self.journal.enter(TrainerPhase.EVALUATING)
        problem = self._save()
        if completed and problem:
            self.ending = Ending(TrainerPhase.FAILED, Reason.CHECKPOINT_NOT_WRITTEN, problem)

    def close(self, *, done: bool) -> None:
        """Leave the other workers: permanently if the job is `done`; otherwise they wait for a leader.

        A checkpoint in flight is waited for.
        """
        if self._trial is not None:
            self._trial = None
            self.journal.warn("TrialAbandoned", "the run ended before its workers were done; the model stays as it is")
        if self.team is not None:
            self.team.close(done=done)
        try:
            self._saver.look(self.journal, self._scheduler.used_seconds, wait=True)
        except SupersededError as error:
            logger.info("the checkpoint in flight was not written: %s", error)

    def finish(self, ending: Ending, test: Evaluation | None = None) -> None:
        """Report how the run ended, and the score of a complete run to the agent that advised it."""
        self.ending = ending
        self._jumps.report(self.progress.adaptations)
        self.journal.finished(ending, test)
        metrics = self.progress.metrics
        final = (score_in(metrics, "test") or score_in(metrics, "validation")) if test is None else test.score
        if ending.phase is not TrainerPhase.COMPLETED or self._adapter is None or final is None:
            return
        quality = final.quality
        if quality is not None:
            report_outcome(self.job, self._adapter.advisor, self.progress, final, quality)
        else:
            least = "[0, 1]" if final.by.higher_is_better else "[0, infinity)"
            message = (
                f"the {final.by.title} {final.value:g} is not in {least}, so the agent does not learn from this job"
            )
            self.journal.warn("OutcomeNotReported", message)

    def broken_by(self, error: BaseException) -> Ending:
        """Report that an exception ended the run, and return how."""
        ending = ending_of(error, stepped=self.progress.step > self._first_step)
        self.finish(ending)
        return ending

    # ---- within

    def _begin(self) -> None:
        scheduler, store = self._scheduler, self.services.checkpoints
        if self.team is not None and (self._resumed or self._used > 0):
            # The leader was started again; the other workers may have gone on for a while after its checkpoint.
            self.allocation = scheduler.allocation()
            if self.allocation.replicas > 1 and self.team.wait_for_members(self.progress.step):
                self._update_members()
                while self.team.broken:  # a handful of times at most
                    self._update_members()
        scheduler.start(self._used)
        self._saver.begin(scheduler.used_seconds())
        self.journal.started(self._resumed, str(self.state.device))
        for warning in store.warnings if store is not None else ():
            self.journal.warn("CheckpointDamaged", warning)
        wanted = self.job.spec.adaptation.trials
        if self._adapter is not None and wanted is not self._trials:
            self.journal.warn("TrialsNotPossible", f"no growth is tried first (trials: {wanted}): {self._cannot_try}")
        refused = _NO_OPTIMISER if self._optimiser is None else self._optimiser.refused
        if refused and self.job.spec.adaptation.optimise is not Optimise.OFF:
            self.journal.warn("RewritesNotPossible", refused)
        if self._cannot_grow and self._adapter is not None:
            self.journal.cannot_grow = self._cannot_grow
            self.journal.warn(NOT_GROWABLE, self._cannot_grow)

    def _boundary(self) -> Ending | None:
        """The step boundary: read allocation, deadline and demands; save and report when it is time."""
        if self.ending is None:
            self.ending = self._looked()
        return self.ending

    def _looked(self) -> Ending | None:
        if by := self.services.superseded():
            raise SupersededError(by)
        scheduler = self._scheduler
        self.allocation = scheduler.allocation()
        self._update_members()
        if self.journal.acknowledge(self.allocation.generation):
            self.services.spans.acknowledged(self.allocation)
        if scheduler.time_left() <= 0:
            return self._out_of_time()
        # Before demands to stop: no step follows a comparison that such a demand interrupts.
        self._change(
            self.hooks.at_boundary(
                Boundary(
                    self.state.network,
                    lambda: self._capture().state,
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
                return Ending(TrainerPhase.COMPLETED, reason)
            return Ending(TrainerPhase.STOPPED, reason, "the scheduler asked it to stop")
        if self.services.stop():
            return Ending(TrainerPhase.STOPPED, Reason.INTERRUPTED, "it was asked to stop")
        for warning in scheduler.take_warnings():
            self.journal.warn("AllocationUnreadable", warning)
        self._saver.look(self.journal, scheduler.used_seconds)
        if self._saver.is_due(scheduler.used_seconds()) and self._grown_from is None:
            self._save(wait=False)
            if scheduler.time_left() <= 0:  # a large model takes a while to copy
                return self._out_of_time()
        elif self.progress.step > self._first_step:  # the optimizer has its state then
            self._saver.prepare(self._capture_all, scheduler.used_seconds())
        self.journal.report()
        return None

    def _out_of_time(self) -> Ending:
        if self.progress.step == 0:  # earlier leaders, which failed, have used the budget
            return Ending(TrainerPhase.FAILED, Reason.NOTHING_TRAINED, SENTENCES[Reason.NOTHING_TRAINED])
        return Ending(TrainerPhase.COMPLETED, Reason.BUDGET_EXHAUSTED)

    def _update_members(self) -> None:
        """Admit workers that wait, and release those beyond the allocation."""
        if self.team is not None:
            replicas, step = self.allocation.replicas, self.progress.step
            self.team.update_members(replicas, self.state.network, step, self._capture, self._take_over)

    @property
    def _place(self) -> Place:
        return Place() if self.team is None else Place(self.team.nodes, self.team.world)

    def _due(self, batches: int, rate: Callable[[], float], moment: Moment) -> Due:
        team, progress, place = self.team, self.progress, self._place
        if self.hooks.may_grow:  # a trial compares steps of one size
            self._choose_batch_size(place)
        portion = self.batching.portion(place.workers, progress.cursor, batches)
        scaled = rate() * portion.rate
        if team is None or team.world == 1:
            measured = self._meter.begin()
            return Due(None, scaled, self.batching.measurable(portion) if measured else portion, measured)
        team.share_news(self._capture)
        measured = self._meter.begin(may=not team.foretold)
        after, then = progress.cursor + portion.batches, None
        if self._foretells and after < batches and not (self._meter.soon or self.state.network.unfolds):
            then = self.batching.portion(place.workers, after, batches)
        group = team.begin_step(
            progress.epoch, progress.cursor, portion=portion, measured=measured, moment=moment, then=then
        )
        return Due(group, scaled, portion, measured, team.foretells)

    def _choose_batch_size(self, place: Place) -> None:
        if self.batching.batch_size is None:
            return
        begins, parameters = self.progress.cursor == 0, self.state.network.parameters
        if changed := self.batching.choose(self._meter.measured, place, parameters, epoch_begins=begins):
            self._resized(changed)
            if changed.untested:
                self._save()  # if there is no memory for it, whoever starts again knows

    def _resized(self, changed: Resized, message: str = "") -> None:
        """Continue with another batch size, which all members learn, and report it."""
        workers = self._place.workers
        self.journal.batch_changed(changed, workers, self.batching.portion(workers, 0, _ENDLESS).rate, message)
        if self.team is not None:
            self.team.noted()

    def _note_batch_size(self) -> None:
        if self.batching.batch_size is not None:
            self.progress.metrics[BATCH_METRIC] = self.batching.batch_size

    def _adapted(self) -> bool:
        """If a decision is due, ask how to grow; returns whether to train an epoch after that."""
        network, progress = self.state.network, self.progress
        if self._trial is not None and self._adapter is not None:
            return self._trial_over(self._adapter, self._trial)
        if (
            self._adapter is None
            or self.allocation.replicas <= self._scheduler.base_replicas()
            or self._silence.holds(self._scheduler.used_seconds())
            or not self._may_grow
        ):
            return True
        if progress.consultations == self._study.stop_before_decision:
            message = f"decision {progress.consultations} is left to the leader that continues from here"
            self.ending = Ending(TrainerPhase.STOPPED, Reason.INTERRUPTED, message)
            return False
        self.journal.enter(TrainerPhase.ADAPTING)
        if self._waits_for_tryers():
            return True
        asked = self._asked(self._adapter, network)
        if asked.decision.problem is not None and self.services.stop():
            return False  # the question was broken off; whoever resumes asks again
        if self._trial_begun(asked):
            self.journal.enter(TrainerPhase.TRAINING)
            return self._scheduler.time_left() > 0
        self._carry_out(self._adapter, asked)
        return self._scheduler.time_left() > 0

    @property
    def _may_grow(self) -> bool:
        """Whether the network has places to grow at, and may do so once more."""
        network, most = self.state.network, self.job.spec.adaptation.max_adaptations
        if network.architecture is None or self.progress.consultations >= most:
            return False
        return self.hooks.may_grow and not network.waiting.issuperset(offered(network.architecture))

    def _optimise(self) -> None:
        """If it is due, look for a faster computation of steps, once a step has shown that the network fits."""
        if self._optimiser is None or self._trial is not None or self._grown_from is not None:
            return
        if self.hooks.may_grow:  # else a smaller network is on trial
            workers, progress = self._place.workers, self.progress
            network, allocation, until = self.state.network, self.allocation, self._is_wanted
            self._change(self._optimiser.look(network, progress.adaptations, allocation, workers, until))

    def _is_wanted(self) -> bool:
        self.journal.report()
        return self.cannot_go_on()

    def _abandoned(self, message: str) -> bool:
        """Let the module compute its steps again, if a rewritten computation did; returns whether one did."""
        if self._optimiser is None:
            return False
        change = self._optimiser.reverted(self.state.network, self.allocation, message)
        self._change(change)
        return change is not None

    def _look_ahead(self) -> None:
        """Let the scheduler know what growing would gain, unless that is being tried."""
        if self._trial is not None or self.job.spec.max_replicas <= self._scheduler.base_replicas():
            return
        question = None
        if self._adapter is not None and self._may_grow:
            question = partial(self._adapter.question, self.state.network, self.progress, self.allocation)
        self._meter.growth = self._forecasting.look(question)

    def _asked(self, adapter: Adapter, network: Network) -> Asked:
        with self.services.spans.stage("consult", self.allocation) as attributes:
            asked = adapter.ask(network, self.progress, self.allocation)
            attributes |= {
                "espalier.decision.id": asked.decision.id,
                "espalier.decision.action": str(asked.decision.action),
                "espalier.decision.source": str(asked.decision.source),
            }
        return asked

    def _carry_out(self, adapter: Adapter, asked: Asked, arms: Sequence[Arm] = ()) -> None:
        """Grow as advised, and continue with the result."""
        with self.services.spans.stage("adapt", asked.allocation) as attributes:
            consultation = adapter.carried_out(asked, self.state.network, self.progress, arms)
            self._settled(consultation)
            done = consultation.adaptation
            attributes |= {
                "espalier.decision.id": done.decision_id,
                "espalier.adaptation.action": done.action,
                "espalier.adaptation.result": str(done.result),
            }

    def _waits_for_tryers(self) -> bool:
        """Return whether a question waits for extra workers that still start, since they are to try the answer."""
        if self._trials is Trials.OFF or self.team is None:
            return False
        if len(self.team.extra_members) >= self.allocation.replicas - self._scheduler.base_replicas():
            self._lent = None
            return False
        used, generation = self._scheduler.used_seconds(), self.allocation.generation
        if self._lent is None or self._lent[0] != generation:
            self._lent = generation, used
        return used - self._lent[1] < rules.START_SHARE * self._scheduler.time_budget()

    def _trial_begun(self, asked: Asked) -> bool:
        """Let extra workers try what was advised, if the job wants that and they can; returns whether they do."""
        adapter, team, progress = self._adapter, self.team, self.progress
        if adapter is None or team is None or self._trials is Trials.OFF:
            return False
        base = team.world - len(team.extra_members)
        trial = begun(
            self._trials,
            asked,
            team.extra_members,
            self.state.network,
            self.allocation.replicas,
            self._scheduler.wall_time_left(),
            self.state.trial_rates(progress.metrics.get("learning_rate"), adapter.restarts(AdaptationResult.GROWN)),
            adapter.growth_seed(self.state.network),
            base=base,
            loss=self._loss_of_base() if rules.races_base(self._trials, len(team.extra_members), base) else None,
            moment=self.moment(),
            clock=self.services.clock,
        )
        if trial is None:
            if asked.decision.action.grows and not team.extra_members:
                late = f"no extra worker was ready within {rules.START_SHARE:.0%} of the budget"
                self.journal.warn("TrialsNotPossible", f"{asked.decision.action} is not tried first: {late}")
            return False
        try:
            team.send_apart({worker: order.model_dump_json() for worker, order in trial.orders.items()}, self._capture)
        except GroupBrokenError:
            return True  # at the next boundary the members are gathered again, and at the next epoch it asks again
        self._trial = trial
        self.journal.trials_started(trial.actions, len(trial.orders), trial.seconds)
        return True

    def _loss_of_base(self) -> float | None:
        return self.progress.metrics.get("validation_loss") if self._base_loss is None else self._base_loss()

    def _trial_over(self, adapter: Adapter, trial: Trial) -> bool:
        """Decide if the trial is over; returns whether to train an epoch after that."""
        team, network, progress = self.team, self.state.network, self.progress
        parameters = network.parameters
        if self._base_loss is None or trial.base_due:
            trial.base_measured(self._loss_of_base())
        if team is not None:
            for worker in trial.narrowed(team.told() | team.results()):
                team.dismiss(worker)
        results = {} if team is None else team.results()
        verdict = trial.verdict(results, network, self.allocation.replicas)
        if verdict is None or team is None:
            return True
        self._trial = None
        took_over = verdict.winner is not None and self._takes_over(team, verdict.winner)
        if not took_over:
            team.bring_back()
        if verdict.best is None or (verdict.winner is not None and not took_over):
            self.journal.warn("TrialAbandoned", f"{verdict.why or 'the winner is gone'}; the model stays as it is")
            if self.allocation.replicas >= trial.replicas:  # whatever ended a worker may end it again
                self._silence.heard(False, self._scheduler.used_seconds(), self._scheduler.time_budget())
            return True
        if not verdict.grows:
            consultation = adapter.declined(trial.asked, network, progress, verdict.arms)
        elif took_over:
            taken = trial.action(verdict.best)
            consultation = adapter.taken_over(
                trial.asked, taken, network, self.state.network, progress, verdict.arms, parameters
            )
        else:
            self._carry_out(adapter, trial.asked.choosing(trial.action(verdict.best)), verdict.arms)
            return self._scheduler.time_left() > 0
        self._settled(consultation)
        return self._scheduler.time_left() > 0

    def _takes_over(self, team: Team, winner: str) -> bool:
        """Continue with the state of the worker that won a trial; returns False if it is gone."""
        progress, measured, before, taken = self.progress, self._meter.measured(), self.state.network, False

        def take_over(checkpoint: Checkpoint) -> Network:
            nonlocal taken
            taken = True
            return self._take_over(checkpoint)

        self.hooks.grew(before, lambda: self._capture().state)
        team.bring_back(winner)
        team.update_members(self.allocation.replicas, before, progress.step, self._capture, take_over)
        if not taken:
            self.hooks.growth_undone()
            return False
        # What was reported of the run stays, beside where its training stands now.
        now = self.progress
        now.adaptations, now.consultations, now.metrics = progress.adaptations, progress.consultations, progress.metrics
        now.max_step_gap_seconds = progress.max_step_gap_seconds
        self._meter.restore(measured)
        self._saver.wanted = True
        return True

    def _settled(self, consultation: Consultation) -> None:
        """Use what came of a consultation, and record it."""
        self._jumps.report(self.progress.adaptations)
        network = self.state.network
        self._silence.heard(consultation.answered, self._scheduler.used_seconds(), self._scheduler.time_budget())
        self.progress.consultations += consultation.answered
        if consultation.network is not network:
            if self.state.in_place:
                # Where the grown one does not fit the process ends; started again it continues from here, as it was.
                self._save()
            self.hooks.grew(network, lambda: self._capture().state)
            self._use(consultation.network)
            self._grown_from = network
        self.progress.adaptations.append(consultation.adaptation)
        if consultation.restart_schedule:
            now, at = self.moment(), consultation.restarted_at
            self.state.restart_schedule(now if at is None else replace(now, used_seconds=at))
        if self.team is not None:
            self.team.noted()
        self._jumps.settled(consultation, self.progress.adaptations)
        self.journal.enter(TrainerPhase.TRAINING)

    def _finish_epoch(self) -> None:
        if self.ending is None:
            self.progress.epoch += 1
            self.progress.cursor, self.progress.epoch_loss_sum = 0, 0.0
            if self.team is not None:
                self.team.noted()

    def _use(self, network: Network) -> None:
        self.state.adopt(network)
        self.journal.network = self.state.network
        self._meter.network_changed(self.state.network)
        if self._optimiser is not None:
            self._optimiser.changed()
        if self.team is not None:
            self.team.grown()

    def _change(self, change: Change | None) -> None:
        """Carry out the change that a hook returned."""
        if change is None:
            return
        done = change.adaptation
        if change.network is not self.state.network or change.share:
            self._use(change.network)
            self._saver.wanted = True
        if done is None:
            self.journal.trial_started(change.network, change.trial_seconds)
            return
        self._jumps.report(self.progress.adaptations)
        self.progress.adaptations.append(done)
        if self.team is not None:
            self.team.noted()
        self.journal.adapted(done, None)

    def _capture(self) -> Checkpoint:
        used = self._scheduler.used_seconds()
        progress, hooks, batching = self.progress, self.hooks, self.batching
        return saving.capture(self._identity, self.state, progress, used, hooks, batching, self._example)

    def _capture_all(self) -> Checkpoint:
        """Return the run with what was measured of it, which members do not need."""
        checkpoint = self._capture()
        state = checkpoint.state.model_copy(update={"measurements": self._meter.measured()})
        return replace(checkpoint, state=state)

    def _take_over(self, checkpoint: Checkpoint) -> Network:
        self._identity.require(checkpoint.state.identity)
        self.state.load(checkpoint)
        randomness.restore(checkpoint.state.random, checkpoint.training, self.state.device)
        self.progress = saving.progress_of(checkpoint.state)
        self.journal.network, self.journal.progress = self.state.network, self.progress
        self._meter.network_changed(self.state.network)
        self._meter.restore(checkpoint.state.measurements)
        self.batching.load(checkpoint.state.batching)
        self._note_batch_size()
        return self.state.network

    def _save(self, *, wait: bool = True) -> str:
        """Save; returns why no checkpoint was written, '' if one was, or, without `wait`, will be."""
        network, used = self.state.network, self._scheduler.used_seconds
        return self._saver.save(self._capture_all, network, self.progress, self.journal, used, wait=wait)
