"""The training loop: the paper's Algorithm 1 under a time budget.

while time is left: if the job has extra GPUs, ask the advisor and adapt; train an epoch.

Every step boundary is a point at which the trainer can be interrupted: there it sees the deadline, new allocations
(acknowledged at once, up and down alike) and the demand to stop. So the budget is kept to within one step, plus the
final checkpoint and evaluation on the test split, which are announced (phase `Evaluating`) and counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import nn

from espalier_api.allocation import Allocation
from espalier_api.job import AdaptationMode, AdaptiveTrainingJob
from espalier_api.reasons import Reason
from espalier_api.report import AdaptationResult, TrainerPhase
from espalier_trainer import saving
from espalier_trainer.adapting import Adapter, report_outcome, undone
from espalier_trainer.advisor import Advisor, Cancelled, never
from espalier_trainer.checkpoint import Checkpoint, CheckpointStore
from espalier_trainer.data.batches import EpochOrder, epoch_order
from espalier_trainer.data.source import Data
from espalier_trainer.distillation.objective import Criterion
from espalier_trainer.distillation.shrinking import Change, Manner, Shrinker, shrinker_for
from espalier_trainer.elastic import GroupBrokenError, Team
from espalier_trainer.errors import LossNotFiniteError
from espalier_trainer.evaluation import Evaluation, evaluate
from espalier_trainer.narrator import Narrator
from espalier_trainer.network import Network, new_network
from espalier_trainer.optimizers import set_learning_rate
from espalier_trainer.progress import Ending, Progress, StepGaps, TrainingResult, result_of
from espalier_trainer.report import MemoryReporter, Reporter
from espalier_trainer.scheduler import Scheduler
from espalier_trainer.schedules import Moment, Schedule, build_schedule


class Trainer:
    """Trains one model for one job. After `run`, `network` is the trained (and grown) one.

    `advisor` None means that nobody is asked (as with mode Off). `checkpoints` None means that nothing is kept.
    `stop` is asked at every step boundary; when it says True, a checkpoint is written and the run ends as `Stopped`.
    `restart_only` is a control for studies: where the advice is to grow, only the schedule begins again.
    `stop_before_decision` ends the run as `Stopped`, with a checkpoint, when the decision of this number (from 0) is
    due, so that several runs can go on from there, each with another decision.
    `incarnation` is what the process calls itself in reports; made up when empty. `step_took` is told of the wall
    seconds between the ends of two optimizer steps. `team` makes the meeting place of the workers that train together,
    given whom to tell; None: this one trains alone. `shrinking` is how a smaller model is tried when GPUs are taken
    back and the job says `onReclaim: Distill`.
    """

    def __init__(
        self,
        job: AdaptiveTrainingJob,
        model: nn.Module,
        data: Data,
        scheduler: Scheduler,
        *,
        advisor: Advisor | None = None,
        reporter: Reporter | None = None,
        checkpoints: CheckpointStore | None = None,
        device: torch.device | str = "cpu",
        seed: int | None = None,
        used_seconds: float = 0.0,
        stop: Cancelled = never,
        restart_only: bool = False,
        stop_before_decision: int | None = None,
        incarnation: str = "",
        clock: Callable[[], float] = time.monotonic,
        step_took: Callable[[float], None] = lambda seconds: None,
        team: Callable[[Narrator], Team] | None = None,
        shrinking: Manner | None = None,
    ) -> None:
        self._job = job
        self._training = job.spec.training
        self._seed = self._training.seed if seed is None else seed
        self._device = torch.device(device)
        self._data = data.to(self._device)
        self._scheduler = scheduler
        self._checkpoints = checkpoints
        self._used_before = used_seconds
        self._stop = stop
        self._stop_before_decision = stop_before_decision
        self._example = self._data.example_input()
        self._schedule: Schedule = build_schedule(self._training.schedule, self._training.optimizer.learning_rate)
        self._start, self._cannot_grow = new_network(
            model.to(self._device),
            self._training.optimizer,
            self._example,
            job.spec.adaptation.insertion,
            job.spec.adaptation.actions,
        )
        self._progress = Progress(self._start.depth, self._start.parameters)
        self._narrator = Narrator(
            job.key, scheduler, reporter or MemoryReporter(), self._start, self._progress, incarnation
        )
        self._advisor = None if job.spec.adaptation.mode is AdaptationMode.OFF else advisor
        self._adapter = (
            None
            if self._advisor is None
            else Adapter(job, self._advisor, scheduler, self._example, restart_only, clock, self._seed)
        )
        self._shrinker = shrinker_for(
            job,
            self._data,
            self._start,
            self._seed,
            self._device,
            scheduler.used_seconds,
            manner=shrinking,
            clock=clock,
        )
        self._saver = saving.Saver(
            checkpoints,
            saving.identity(job, self._seed),
            job.spec.checkpoint.interval_seconds,
            self._schedule,
            self._device,
            clock,
            self._shrinker,
        )
        self._team = None if team is None else team(self._narrator)
        self._network = self._start
        self._allocation = Allocation()
        self._ungrown: Network | None = None
        self._gaps = StepGaps(clock, step_took)
        self._evaluation_cost = 0.0

    @property
    def network(self) -> Network:
        """The network in training."""
        return self._network

    @property
    def shrinker(self) -> Shrinker | None:
        """What sees to it that GPUs taken back are answered, where the job says so."""
        return self._shrinker

    def run(self) -> TrainingResult:
        """Train to the end of the budget, or until stopped; resumes from the newest checkpoint.

        Raises `CheckpointMismatchError` where the checkpoint is of another run.
        """
        self._begin()
        test: Evaluation | None = None
        try:
            ending = self._train()
            if ending.phase is TrainerPhase.COMPLETED and self._shrinker is not None and self._shrinker.trying:
                self._changed(self._shrinker.give_up(Reason.TRIAL_FAILED, "the budget ended before they were compared"))
            if self._team is not None:
                self._team.close(done=ending.phase is TrainerPhase.COMPLETED)
            if ending.phase is TrainerPhase.COMPLETED:
                self._narrator.enter(TrainerPhase.EVALUATING)
            self._saver.save(self._network, self._progress, self._scheduler.used_seconds(), self._narrator)
            if ending.phase is TrainerPhase.COMPLETED:
                ending, test = self._evaluate_test(ending)
        except LossNotFiniteError as error:
            ending = Ending(TrainerPhase.FAILED, Reason.LOSS_NOT_FINITE, str(error))
        finally:
            if self._team is not None:
                self._team.close(done=False)
        self._narrator.finished(ending, test)
        if test is not None:
            report_outcome(self._job, self._advisor, self._progress, test.accuracy)
        return result_of(ending, test, self._network, self._progress, self._scheduler.used_seconds(), self._allocation)

    def _begin(self) -> None:
        resumed = self._checkpoints.load_latest() if self._checkpoints else None
        used = self._used_before
        if resumed is not None:
            self._network, self._progress = saving.restore(
                self._saver.identity,
                resumed,
                self._start,
                self._job,
                self._schedule,
                self._example,
                self._device,
                self._shrinker,
            )
            used = max(used, resumed.state.used_seconds)
        if self._team is not None and (resumed is not None or used > 0):
            # The leader was started again; the other workers may have gone on for a while after its checkpoint.
            self._allocation = self._scheduler.allocation()
            if self._allocation.replicas > 1 and self._team.reunite(self._progress.step):
                self._meet()
                while self._team.broken:  # a handful of times at most
                    self._meet()
        self._narrator.network, self._narrator.progress = self._network, self._progress
        self._scheduler.start(used)
        self._saver.begin(self._scheduler.used_seconds())
        self._narrator.started(resumed is not None, str(self._device))
        for warning in self._checkpoints.warnings if self._checkpoints else ():
            self._narrator.warn("CheckpointDamaged", warning)
        if self._cannot_grow and self._advisor is not None:
            self._narrator.warn("NotGrowable", self._cannot_grow)

    def _train(self) -> Ending:
        while (ending := self._boundary()) is None:
            if self._progress.cursor == 0:
                if self._decision_is_due() and self._progress.consultations == self._stop_before_decision:
                    message = f"decision {self._stop_before_decision} is left to who goes on from here"
                    return Ending(TrainerPhase.STOPPED, Reason.INTERRUPTED, message)
                self._adapt()
                if self._scheduler.time_left() <= 0:
                    continue  # adapting took the rest of the budget
            self._train_epoch()
        return ending

    def _boundary(self) -> Ending | None:
        """Take notice of allocation, deadline and demands; save and report when it is time. The step boundary."""
        scheduler = self._scheduler
        self._allocation = scheduler.allocation()
        self._meet()
        self._narrator.acknowledge(self._allocation.generation)
        if scheduler.time_left() <= 0:
            return Ending(TrainerPhase.COMPLETED, Reason.BUDGET_EXHAUSTED)
        self._shrink()  # before demands to stop: one that breaks off its comparing is heard before another step
        if reason := scheduler.stop_reason():
            if reason is Reason.GPU_BUDGET_EXHAUSTED:
                return Ending(TrainerPhase.COMPLETED, reason)
            return Ending(TrainerPhase.STOPPED, reason, "the scheduler asked it to stop")
        if self._stop():
            return Ending(TrainerPhase.STOPPED, Reason.INTERRUPTED, "it was asked to stop")
        for warning in scheduler.take_warnings():
            self._narrator.warn("AllocationUnreadable", warning)
        used = scheduler.used_seconds()
        if self._saver.is_due(used):
            self._saver.save(self._network, self._progress, used, self._narrator)
            # From the end of a save: a model that takes an interval to write would otherwise be written every step.
            self._saver.begin(scheduler.used_seconds())
            if scheduler.time_left() <= 0:  # a large model takes a while to write
                return Ending(TrainerPhase.COMPLETED, Reason.BUDGET_EXHAUSTED)
        self._narrator.report()
        return None

    def _meet(self) -> None:
        """Take in workers that wait, let go those that the allocation has no place for."""
        if self._team is not None:
            replicas = self._allocation.replicas
            self._team.meet(replicas, self._network, self._progress.step, self._capture, self._take_over)

    def _capture(self) -> Checkpoint:
        used = self._scheduler.used_seconds()
        return saving.capture(
            self._saver.identity, self._network, self._progress, self._schedule, used, self._device, self._shrinker
        )

    def _take_over(self, checkpoint: Checkpoint) -> Network:
        self._network, self._progress = saving.restore(
            self._saver.identity,
            checkpoint,
            self._start,
            self._job,
            self._schedule,
            self._example,
            self._device,
            self._shrinker,
        )
        self._narrator.network, self._narrator.progress = self._network, self._progress
        return self._network

    def _shrink(self) -> None:
        """Answer GPUs that were taken back, and compare a smaller model with the larger when it is time."""
        if self._shrinker is None:
            return
        change = self._shrinker.at_boundary(
            self._network,
            lambda: self._capture().state,
            self._allocation,
            self._progress.epoch,
            self._scheduler.time_left(),
            self._evaluation_cost,
            self._cannot_go_on,
        )
        if change is not None:
            self._changed(change)

    def _changed(self, change: Change) -> None:
        done = change.adaptation
        if change.network is not self._network or (done is not None and done.result is AdaptationResult.SHRUNK):
            self._use(change.network)
            self._network.module.train()
            self._saver.wanted = True
        if done is None:
            self._narrator.trial_started(change.network, change.trial_seconds)
            return
        self._progress.adaptations.append(done)
        if self._team is not None:
            self._team.noted()
        self._narrator.adapted(done, None)

    def _decision_is_due(self) -> bool:
        return (
            self._adapter is not None
            and self._network.architecture is not None
            and self._allocation.replicas > self._scheduler.base_replicas()
            and self._progress.consultations < self._job.spec.adaptation.max_adaptations
            and not (self._shrinker is not None and self._shrinker.trying)
        )

    def _adapt(self) -> None:
        if self._adapter is None or not self._decision_is_due():
            return
        self._narrator.enter(TrainerPhase.ADAPTING)
        consultation = self._adapter.consult(self._network, self._progress, self._allocation)
        if consultation.problem is not None and self._stop():
            return  # the question was broken off; whoever resumes asks again
        self._progress.consultations += 1
        self._progress.adaptations.append(consultation.adaptation)
        if consultation.network is not self._network:
            self._ungrown = self._network
            if self._shrinker is not None:
                self._shrinker.grew(self._network, self._capture().state)
            self._use(consultation.network)
        if consultation.restart_schedule:
            self._schedule.restart(self._moment())
        if self._team is not None:
            self._team.noted()
        self._narrator.adapted(consultation.adaptation, consultation.problem)
        self._narrator.enter(TrainerPhase.TRAINING)

    def _train_epoch(self) -> None:
        """Train to the end of the epoch, or to the step at which the run ends."""
        progress = self._progress
        order = epoch_order(len(self._data.train), self._training.batch_size, self._seed, progress.epoch, self._device)
        self._network.module.train()
        begun = progress.cursor
        while progress.cursor < len(order):
            broken = self._team is not None and self._team.broken
            if (progress.cursor > begun or broken) and self._boundary() is not None:
                return
            used = self._scheduler.used_seconds()
            try:
                loss, batches = self._step(order)
            except GroupBrokenError:
                continue  # the step was not taken; at its boundary the members are gathered anew
            if not math.isfinite(loss):
                if self._shrinker is not None and self._shrinker.trying:
                    self._changed(self._shrinker.give_up(Reason.TRIAL_FAILED, f"the smaller model's loss is {loss}"))
                    continue
                raise LossNotFiniteError(
                    f"the loss of step {progress.step + 1} (epoch {progress.epoch}) is {loss}",
                    progress.metrics["learning_rate"],
                )
            progress.cursor += batches
            progress.step += 1
            progress.epoch_loss_sum += loss * batches
            self._gaps.step_finished(progress)
            self._scheduler.step_finished(self._network.architecture)
            if self._shrinker is not None:
                self._shrinker.stepped(self._network, self._scheduler.used_seconds() - used)
        self._finish_epoch(len(order))

    def _step(self, order: EpochOrder) -> tuple[float, int]:
        """Take one optimizer step; returns the loss before it, and the batches that it took.

        The first step of a grown network may find that it does not fit into the device's memory: then the network
        is as it was before it grew. Raises `GroupBrokenError` where other members were gone.
        """
        try:
            loss, batches = self._optimize(order)
        except torch.OutOfMemoryError as error:
            message = str(error).splitlines()[0]
            if self._ungrown is not None:
                self._undo_growth(self._ungrown, message)
            elif self._shrinker is not None and self._shrinker.trying:
                self._changed(self._shrinker.give_up(Reason.TRIAL_FAILED, f"out of memory: {message}"))
            else:
                raise
            loss, batches = self._optimize(order)
        if self._ungrown is not None:
            self._ungrown = None
            self._saver.wanted = True
        return loss, batches

    def _optimize(self, order: EpochOrder) -> tuple[float, int]:
        cursor, rate = self._progress.cursor, self._schedule.rate(self._moment())
        team = self._team if self._team is not None and self._team.world > 1 else None
        if team is not None:
            team.share_news(self._capture)
            rate = team.rate(rate, cursor, len(order))
        self._progress.metrics["learning_rate"] = rate
        set_learning_rate(self._network.optimizer, rate)
        if team is not None:
            judge = None if self._shrinker is None else self._shrinker.criterion
            stepped = team.step(self._network, order, self._data.train, cursor, rate, judge)
            return stepped.loss, stepped.batches
        inputs, labels = order.batch(self._data.train, cursor)
        criterion = None if self._shrinker is None else self._shrinker.criterion(order.chosen(cursor), inputs)
        return _optimize(self._network, inputs, labels, criterion), 1

    def _undo_growth(self, before: Network, message: str) -> None:
        self._use(before)
        self._ungrown = None
        if self._shrinker is not None:
            self._shrinker.growth_undone()
        self._network.module.train()
        undo = undone(self._progress.adaptations[-1], self._network, f"out of memory: {message}")
        self._progress.adaptations[-1] = undo
        self._narrator.adapted(undo, None)

    def _use(self, network: Network) -> None:
        self._network = self._narrator.network = network
        if self._team is not None:
            self._team.grown()

    def _finish_epoch(self, batches: int) -> None:
        progress = self._progress
        train_loss = progress.epoch_loss_sum / batches
        progress.metrics["train_loss"] = train_loss
        progress.epoch += 1
        progress.cursor, progress.epoch_loss_sum = 0, 0.0
        evaluation = None
        # An evaluation that would outlive the budget is not begun: training to the deadline is worth more.
        if (
            progress.epoch % self._training.evaluate_every_epochs == 0
            and self._evaluation_cost < self._scheduler.time_left()
        ):
            started = self._scheduler.used_seconds()
            evaluation = evaluate(
                self._network.module, self._data.validation, self._training.batch_size, self._cannot_go_on
            )
            self._evaluation_cost = self._scheduler.used_seconds() - started
        self._schedule.epoch_finished(evaluation.loss if evaluation else None)
        if self._team is not None:
            self._team.noted()
        if evaluation is not None:
            progress.validated(evaluation.accuracy, evaluation.loss)
            self._narrator.epoch_finished(train_loss, evaluation, self._gaps.take())

    def _cannot_go_on(self) -> bool:
        if self._team is not None:
            self._team.wait()
        return self._scheduler.time_left() <= 0 or self._stop() or self._scheduler.stop_reason() is not None

    def _evaluate_test(self, ending: Ending) -> tuple[Ending, Evaluation | None]:
        test = evaluate(self._network.module, self._data.test, self._training.batch_size, self._stop)
        if test is None:
            stopped = Ending(TrainerPhase.STOPPED, Reason.INTERRUPTED, "it was asked to stop in its last evaluation")
            return stopped, None
        return ending, test

    def _moment(self) -> Moment:
        return Moment(self._scheduler.used_seconds(), self._scheduler.time_budget())


def _optimize(network: Network, inputs: torch.Tensor, labels: torch.Tensor, judge: Criterion | None = None) -> float:
    network.optimizer.zero_grad(set_to_none=True)
    logits = network.module(inputs)
    loss = nn.functional.cross_entropy(logits, labels) if judge is None else judge(logits, labels) / len(labels)
    loss.backward()  # type: ignore[no-untyped-call]
    network.optimizer.step()
    # Waits for the device: without it steps would queue up past the deadline.
    return float(loss.item())
