"""The built-in training loop in the leader."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from espalier_core.types.job import AdaptiveTrainingJob, ElasticBatch, MemoryFormat, Optimise
from espalier_core.types.reasons import Reason
from espalier_core.types.report import TrainerPhase
from espalier_trainer.builtin_loop.on_reclaim import on_reclaim
from espalier_trainer.builtin_loop.state import BuiltinState, identity
from espalier_trainer.builtin_loop.steps import StepContext, take
from espalier_trainer.data.objective import Evaluation
from espalier_trainer.data.source import Data, EpochOrder, Source, epoch_order
from espalier_trainer.elastic.group import GroupBrokenError
from espalier_trainer.elastic.membership import LEAST_ROWS
from espalier_trainer.elastic.step import StepPlan, StepResult
from espalier_trainer.errors import LossNotFiniteError
from espalier_trainer.net2net.modules import mode
from espalier_trainer.run.attempts import refusal
from espalier_trainer.run.batching import batching_of
from espalier_trainer.run.growing import Study
from espalier_trainer.run.run import Run
from espalier_trainer.run.services import Services
from espalier_trainer.run.steps import LoopSpec, computed, recover, usable
from espalier_trainer.training.hooks import HookContext, Hooks
from espalier_trainer.training.method import method_of
from espalier_trainer.training.network import Network, new_network
from espalier_trainer.training.progress import Ending, TrainingResult, result_of

if TYPE_CHECKING:
    from espalier_trainer.distillation.shrinking import ShrinkOptions
    from espalier_trainer.run.optimising import Optimiser


class Trainer:
    """Trains one model for one job. After `run`, `network` is the trained (and grown) one.

    `shrink_options` configure the trial of a smaller model when GPUs are taken back, for `onReclaim: Distill`.
    """

    def __init__(
        self,
        job: AdaptiveTrainingJob,
        model: nn.Module,
        data: Data,
        services: Services,
        *,
        device: torch.device | str = "cpu",
        seed: int | None = None,
        study: Study | None = None,
        shrink_options: ShrinkOptions | None = None,
    ) -> None:
        self._training, self._services = job.spec.training, services
        self._method = method_of(job.spec.training, model)
        self._seed = self._training.seed if seed is None else seed
        self._device = torch.device(device)
        self._data = data.to(self._device)
        example = self._data.example_input()
        start, cannot_grow = new_network(
            model.to(self._device),
            self._training.optimizer,
            example,
            job.spec.adaptation.described_insertion,
            job.spec.adaptation.actions,
        )
        used, clock = services.scheduler.used_seconds, services.clock
        context = HookContext(job, self._data, start, self._seed, self._device, used, clock)
        self.hooks: Hooks = on_reclaim(context, shrink_options)
        """Features outside the loop that take part in the run."""
        self._context = StepContext(self._training, self._method, self._data.train, self.hooks)
        self._state = BuiltinState(job, start, example, self._device, self.hooks)
        loop = LoopSpec(
            example=example,
            cannot_grow=cannot_grow,
            hooks=self.hooks,
            study=study or Study(),
            loss=self._loss,
            batching=batching_of(self._training, self._training.batch_size, start.optimizer),
            # The leader revokes a step without computing, which would leave the others' batch norms waiting.
            announces=not self._training.sync_batch_norm,
            optimiser=self._optimiser(job),
        )
        self._run = Run(job, self._state, services, identity(job, self._seed), loop)

    @property
    def network(self) -> Network:
        """The network in training."""
        return self._state.network

    def run(self) -> TrainingResult:
        """Train to the end of the budget, or until stopped, from the newest checkpoint on.

        Raises `CheckpointMismatchError` where the checkpoint is of another run.
        """
        run, test = self._run, None
        run.resume()
        try:
            for epoch in run.epochs():
                self._train(epoch)
            ending = run.ending
            if ending is None:
                raise RuntimeError("the epochs are over, and the run has no ending")
            if ending.phase is TrainerPhase.COMPLETED:
                ending, test = self._evaluate_test(ending)
        except LossNotFiniteError as error:
            ending = Ending(TrainerPhase.FAILED, Reason.LOSS_NOT_FINITE, str(error))
        finally:
            run.close(done=False)
        run.finish(ending, test)
        used = self._services.scheduler.used_seconds()
        return result_of(ending, test, self.network, run.progress, used, run.allocation)

    def broken_by(self, error: BaseException) -> Ending:
        """Report that an exception ended `run`, and return the ending."""
        return self._run.broken_by(error)

    def _optimiser(self, job: AdaptiveTrainingJob) -> Optimiser | None:
        """Return the search for a faster computation of steps; None where the job requests none."""
        training, spec = self._training, job.spec.adaptation
        if spec.optimise is Optimise.OFF and training.memory_format is MemoryFormat.CONTIGUOUS:
            return None
        from espalier_trainer.run.optimising import Optimiser, Probe

        probe = Probe(self._share, self._method, refusal(training))
        return Optimiser(spec, training.memory_format, probe, self._services.scheduler, self._services.clock)

    def _share(self, workers: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of one worker in one pass of a step."""
        training, batching = self._training, self._run.batching
        parts = training.accumulation
        if training.elastic_batch is not ElasticBatch.SCALE_LINEAR:
            parts *= workers
        rows = (batching.batch_size or training.batch_size) // parts
        indices = torch.arange(min(len(self._data.train), max(LEAST_ROWS, rows)))
        return self._data.train.batch(indices, None)

    def _loss(self, module: nn.Module) -> float:
        """Return the loss on the first batch of the validation split."""
        validation = self._data.validation
        indices = torch.arange(min(len(validation), self._training.batch_size))
        inputs, labels = validation.batch(indices, None)
        with torch.no_grad(), mode(module, training=False):
            return float(self._method.losses(self._method.forward(module, inputs), labels)) / len(labels)

    def _train(self, epoch: int) -> None:
        """Train to the end of the epoch, or to the step at which the run ends."""
        run = self._run
        order = epoch_order(len(self._data.train), self._training.batch_size, self._seed, epoch, self._device)
        self.network.module.train()
        for plan in run.steps(len(order), lambda: self._state.schedule.rate(run.moment()), at_boundary=True):
            try:
                joint = self._step(plan, order)
            except GroupBrokenError:
                continue  # the step was not taken; the boundary gathers the members again
            except torch.OutOfMemoryError as error:
                recover(run, error)
                continue
            if joint.out_of_memory:
                recover(run, torch.OutOfMemoryError("a worker is out of memory"))
            elif usable(run, joint.loss):
                run.stepped(joint.loss, plan.portion)
        if run.ending is None:
            self._validate(epoch + 1, len(order))

    def _step(self, plan: StepPlan, order: EpochOrder) -> StepResult:
        run = self._run
        if plan.rate is not None:
            run.progress.metrics["learning_rate"] = plan.rate
        cursor = run.progress.cursor
        return run.compute_step(plan, lambda: take(self._context, computed(run), order, cursor, plan))

    def _validate(self, epochs: int, batches: int) -> None:
        """Evaluate on the validation split, if due after `epochs` epochs of `batches` batches."""
        run, scheduler = self._run, self._services.scheduler
        evaluation = None
        # An evaluation that would exceed the budget is skipped: training to the deadline is worth more.
        if epochs % self._training.evaluate_every_epochs == 0 and run.evaluation_seconds < scheduler.time_left():
            began = scheduler.used_seconds()
            data = self._data.validation
            evaluation = self._evaluated(data, run.cannot_go_on)
            run.evaluation_seconds = scheduler.used_seconds() - began
        if run.batching.schedule_due(batches):
            self._state.schedule.epoch_finished(evaluation.loss if evaluation else None)
        if evaluation is not None:
            run.validated(evaluation)

    def _evaluated(self, split: Source, until: Callable[[], bool]) -> Evaluation | None:
        return self._method.evaluation(self.network, split, self._training.batch_size, until)

    def _evaluate_test(self, ending: Ending) -> tuple[Ending, Evaluation | None]:
        test = self._evaluated(self._data.test, self._services.stop)
        if test is None:
            message = "it was asked to stop in its last evaluation"
            return Ending(TrainerPhase.STOPPED, Reason.INTERRUPTED, message), None
        return ending, test
