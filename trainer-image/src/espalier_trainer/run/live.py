"""A run in progress: what it consists of, how that is captured, saved and replaced, and its step boundaries.

All concerns of a run act on `LiveRun`: its loop (`run`), growth (`growing`), and the functions below. At a step
boundary a run sees its allocation, its deadline and demands to stop, saves and reports. When a step fails, because its
loss is not finite or memory is used up, they say what the run continues with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import torch

from espalier_core.causes import in_one_line
from espalier_core.types.allocation import Allocation
from espalier_core.types.job import AdaptiveTrainingJob, Optimise
from espalier_core.types.reasons import Reason
from espalier_core.types.report import BATCH_METRIC, Adaptation, TrainerPhase
from espalier_trainer.checkpoints.document import Checkpoint, CheckpointIdentity
from espalier_trainer.elastic.states import TrainingState
from espalier_trainer.elastic.team import Team
from espalier_trainer.errors import LossNotFiniteError, SupersededError
from espalier_trainer.growth.consultation import Consultation, undone
from espalier_trainer.net2net import randomness
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.run import saving
from espalier_trainer.run.attempts import NOT_OURS
from espalier_trainer.run.batching import Batching, FixedBatching, Resized
from espalier_trainer.run.journal import RunJournal
from espalier_trainer.run.meter import RunMeter, WorkerPlacement
from espalier_trainer.run.services import Services
from espalier_trainer.training.hooks import Boundary, Change, Hooks
from espalier_trainer.training.network import Network
from espalier_trainer.training.progress import Ending, RunProgress

if TYPE_CHECKING:
    from espalier_trainer.run.optimising import Optimiser


@dataclass
class LossJump:
    """Takes the losses of the steps before and after a growth: on other examples, with the weights of that moment.

    A consultation is reported at once, or, where the next step computes the loss after it, with that step. Its
    adaptation is the last of `adaptations`, those of the run.
    """

    journal: RunJournal
    _last: float | None = None
    """The loss of the last step."""
    _before: float | None = None
    """That of the last step before a growth; None while no loss after one is awaited."""
    _unreported: Consultation | None = None

    def settled(self, consultation: Consultation, adaptations: list[Adaptation]) -> None:
        """Report a consultation, now or with the next step."""
        self._unreported = consultation
        known = consultation.adaptation.loss_after is not None
        self._before = self._last if consultation.inexact and not known else None
        if self._before is None:
            self.report(adaptations)

    def stepped(self, loss: float, adaptations: list[Adaptation]) -> bool:
        """Take the loss that a step began with; return whether it was the one after a growth."""
        before, self._before = self._before, None
        self._last = loss if math.isfinite(loss) else None
        jumped = before is not None and bool(adaptations)
        if jumped and self._unreported is not None:
            adaptations[-1] = adaptations[-1].model_copy(update={"loss_before": before, "loss_after": self._last})
        self.report(adaptations)
        return jumped

    def report(self, adaptations: list[Adaptation]) -> None:
        """Report the consultation that has not been reported yet, as it is known now."""
        unreported, self._unreported = self._unreported, None
        if unreported is not None:
            self.journal.adapted(adaptations[-1], unreported.problem)


_ENDLESS: Final = 1 << 60
"""Batches of an epoch that does not end."""


class LiveRun:
    """A run in progress. `progress`, `allocation` and `ending` are its current state."""

    def __init__(
        self,
        job: AdaptiveTrainingJob,
        state: TrainingState,
        services: Services,
        identity: CheckpointIdentity,
        *,
        example: ExampleInput | None,
        hooks: Hooks | None,
        batching: Batching | None,
        optimiser: Optimiser | None,
    ) -> None:
        """The arguments are those of `run.Run`."""
        self.job, self.state, self.services = job, state, services
        self.hooks, self.batching = hooks or Hooks(), batching or FixedBatching()
        self._identity, self._example, self.optimiser = identity, example, optimiser
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
        self._note_batch_size()
        self.saver = saving.Saver(services.checkpoints, job.spec.checkpoint.interval_seconds, services.clock)
        self.team: Team | None = None if services.team is None else services.team(self.journal)
        self.allocation = Allocation()
        self.ending: Ending | None = None
        self.evaluation_seconds = 0.0
        """Budget seconds that the loop's last evaluation took."""
        self.loss_jump = LossJump(self.journal)
        self.first_step = 0
        """The step that this process began at."""
        self.grown_from: Network | None = None
        """The network before the last growth. Kept until a step has shown that the grown one fits into memory."""

    def cannot_go_on(self) -> bool:
        """Return whether what the loop does between two steps has to be broken off."""
        if self.team is not None:
            self.team.wait()
        scheduler = self.scheduler
        return scheduler.time_left() <= 0 or self.services.stop() or scheduler.stop_reason() is not None

    def moment(self) -> Moment:
        """Return the current position of training in its budget."""
        return Moment(self.scheduler.used_seconds(), self.scheduler.time_budget())

    @property
    def place(self) -> WorkerPlacement:
        """Nodes and workers that compute a step."""
        return WorkerPlacement() if self.team is None else WorkerPlacement(self.team.nodes, self.team.world)

    def resized(self, changed: Resized, message: str = "") -> None:
        """Continue with another batch size, which all members learn, and report it."""
        workers = self.place.workers
        self.journal.batch_changed(changed, workers, self.batching.portion(workers, 0, _ENDLESS).rate, message)
        if self.team is not None:
            self.team.state_changed()

    def _note_batch_size(self) -> None:
        if self.batching.batch_size is not None:
            self.progress.metrics[BATCH_METRIC] = self.batching.batch_size

    def update_members(self) -> None:
        """Admit workers that wait, and release those beyond the allocation."""
        if self.team is not None:
            replicas, step = self.allocation.replicas, self.progress.step
            self.team.update_members(replicas, self.state.network, step, self.capture, self.take_over)

    def use(self, network: Network) -> None:
        """Continue with another network."""
        self.state.adopt(network)
        self.journal.network = self.state.network
        self.meter.network_changed(self.state.network)
        if self.optimiser is not None:
            self.optimiser.changed()
        if self.team is not None:
            self.team.network_changed()

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
        if self.team is not None:
            self.team.state_changed()
        self.journal.adapted(done, None)

    @property
    def computed(self) -> Network:
        """What computes the next step: the network, or the same network in another way that is on probation."""
        network = self.state.network
        return network if self.optimiser is None else self.optimiser.computed(network)

    def warn_of_steps(self) -> None:
        """Warn where the job asks for rewrites and will get none."""
        refused = NOT_OURS if self.optimiser is None else self.optimiser.refused
        if refused and self.job.spec.adaptation.optimise is not Optimise.OFF:
            self.journal.warn("RewritesNotPossible", refused)

    def optimise(self) -> None:
        """If it is due, look for a faster computation of steps, once a step has shown that the network fits."""
        if self.optimiser is None or self.grown_from is not None or not self.hooks.may_grow:
            return  # where it may not grow a smaller network is on trial

        def until() -> bool:
            self.journal.report()
            return self.cannot_go_on()

        network, made = self.state.network, self.progress.adaptations
        self.change(self.optimiser.look(network, made, self.allocation, self.place.workers, until))

    def computed_plainly(self, problem: str) -> bool:
        """Let the module compute its steps again, if they were computed in another way; return whether they were."""
        if self.optimiser is None:
            return False
        change = self.optimiser.reverted(self.state.network, self.allocation, problem)
        self.change(change)
        return change is not None

    def capture(self) -> Checkpoint:
        """Return the run as its members need it."""
        used = self.scheduler.used_seconds()
        progress, hooks, batching = self.progress, self.hooks, self.batching
        return saving.capture(self._identity, self.state, progress, used, hooks, batching, self._example)

    def capture_all(self) -> Checkpoint:
        """Return the run with what was measured of it, which members do not need."""
        checkpoint = self.capture()
        state = checkpoint.state.model_copy(update={"measurements": self.meter.measured()})
        return replace(checkpoint, state=state)

    def take_over(self, checkpoint: Checkpoint) -> Network:
        """Continue with a checkpoint; returns its network. Raises `CheckpointMismatchError` if another run wrote it."""
        self._identity.require(checkpoint.state.identity)
        self.state.load(checkpoint)
        randomness.restore(checkpoint.state.random, checkpoint.training, self.state.device)
        self.progress = saving.progress_of(checkpoint.state)
        self.journal.network, self.journal.progress = self.state.network, self.progress
        self.meter.network_changed(self.state.network)
        self.meter.restore(checkpoint.state.measurements)
        self.batching.load(checkpoint.state.batching)
        self._note_batch_size()
        return self.state.network

    def save(self, *, wait: bool = True) -> str:
        """Save; returns why no checkpoint was written, '' if one was, or, without `wait`, will be."""
        network, used = self.state.network, self.scheduler.used_seconds
        return self.saver.save(self.capture_all, network, self.progress, self.journal, used, wait=wait)


def check_boundary(run: LiveRun) -> Ending | None:
    """Read the allocation, the deadline and demands; save and report when it is time. Returns an end that is due.

    Raises `SupersededError` if a later leader has taken over.
    """
    if by := run.services.superseded():
        raise SupersededError(by)
    scheduler = run.scheduler
    run.allocation = scheduler.allocation()
    run.update_members()
    if run.journal.acknowledge(run.allocation.generation):
        run.services.spans.acknowledged(run.allocation)
    if scheduler.time_left() <= 0:
        return _out_of_budget(run, Reason.BUDGET_EXHAUSTED)
    # Before demands to stop: no step follows a comparison that such a demand interrupts.
    run.change(
        run.hooks.at_boundary(
            Boundary(
                run.state.network,
                lambda: run.capture().state,
                run.allocation,
                run.progress.epoch,
                scheduler.time_left(),
                run.evaluation_seconds,
                run.cannot_go_on,
            )
        )
    )
    if reason := scheduler.stop_reason():
        if reason is Reason.GPU_BUDGET_EXHAUSTED:
            return _out_of_budget(run, reason)
        return Ending(TrainerPhase.STOPPED, reason, "the scheduler asked it to stop")
    if run.services.stop():
        return Ending(TrainerPhase.STOPPED, Reason.INTERRUPTED, "it was asked to stop")
    for warning in scheduler.take_warnings():
        run.journal.warn("AllocationUnreadable", warning)
    run.saver.look(run.journal, scheduler.used_seconds)
    if run.saver.is_due(scheduler.used_seconds()) and run.grown_from is None:
        run.save(wait=False)
        if scheduler.time_left() <= 0:  # a large model takes a while to copy
            return _out_of_budget(run, Reason.BUDGET_EXHAUSTED)
    elif run.progress.step > run.first_step:  # the optimizer has its state then
        run.saver.prepare(run.capture_all, scheduler.used_seconds())
    run.journal.report()
    return None


def _out_of_budget(run: LiveRun, reason: Reason) -> Ending:
    if run.progress.step == 0:  # earlier leaders, which failed, have used the budget
        return Ending(TrainerPhase.FAILED, Reason.NOTHING_TRAINED, "its budget was used up before it took a step")
    return Ending(TrainerPhase.COMPLETED, reason)


def usable(run: LiveRun, loss: float) -> bool:
    """Return whether a step with this loss counts; raises `LossNotFiniteError` where training cannot continue."""
    if math.isfinite(loss):
        return True
    if run.computed_plainly(f"the loss is {loss}"):
        return False
    change = run.hooks.failed(f"the smaller model's loss is {loss}")
    if change is None:
        raise LossNotFiniteError(
            f"the loss of step {run.progress.step + 1} (epoch {run.progress.epoch}) is {loss}",
            run.state.network.optimizer.param_groups[0]["lr"],
        )
    run.change(change)
    return False


def recover(run: LiveRun, error: torch.OutOfMemoryError) -> None:
    """Continue with a network that fits into the memory of the device; raises `error` if there is none."""
    message = f"out of memory: {in_one_line(str(error))}"
    if run.computed_plainly(message):
        return
    if smaller := run.batching.out_of_memory(run.place.workers):
        run.resized(smaller, message)
    elif run.grown_from is not None:
        before, run.grown_from = run.grown_from, None
        run.use(before)
        run.hooks.growth_undone()
        undo = undone(run.progress.adaptations[-1], before, message)
        run.progress.adaptations[-1] = undo
        run.journal.adapted(undo, None)
    elif change := run.hooks.failed(message):
        run.change(change)
    else:
        raise error
