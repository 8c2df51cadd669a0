"""A callback that makes `lightning.Trainer.fit` a worker of a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import lightning
from lightning.fabric.utilities.rank_zero import rank_zero_only as fabric_rank_zero_only
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.plugins import CheckpointIO
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torch.utils.data import DataLoader

from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.own import OwnLoopError, join
from espalier_trainer.user_loop.batch_stream import BatchStream
from espalier_trainer.user_loop.joining import Validate, leads
from espalier_trainer.user_loop.loop import UserLoop
from espalier_trainer.user_loop.stateful import Stateful

_MANY: Final = 2**31 - 1
"""Number of batches of the one epoch. With a known number, Lightning loads no batch in advance."""


class ElasticWorker(lightning.Callback):  # type: ignore[misc]
    """Brings a job's budget, workers and growth into a `fit`, which sees one epoch as long as the budget.

    elastic = ElasticWorker(DataLoader(...), grow=True)
    lightning.Trainer(max_epochs=1, callbacks=[elastic]).fit(module, elastic.batches)
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        network: str | None = None,
        grow: bool = False,
        accumulate: int = 1,
        epochs: int | None = None,
        example: ExampleInput | None = None,
        validate: Validate | None = None,
        report: Mapping[str, str] | None = None,
        others: Sequence[Stateful] = (),
    ) -> None:
        """`network` names the attribute of the LightningModule that is trained and grows; None for its only one, or the
        LightningModule itself where several attributes have parameters. Its `forward` determines where it can grow.

        `epochs` is the maximum number of passes over the data; a `fit` without a job needs it. `report` gives the job's
        name of each logged metric (`{"val_acc": "validation_accuracy"}`). The other arguments are those of
        `espalier_trainer.own.join`; `validate` takes the module that `network` names.
        """
        self._loader, self._network, self._grow, self._accumulate = loader, network, grow, accumulate
        self._example, self._validate, self._report = example, validate, dict(report or {})
        self._others = others
        if not leads():
            # Loggers begin to write before `setup`, unless their rank is set, as by Lightning's own launchers.
            for decorator in (rank_zero_only, fabric_rank_zero_only):
                decorator.rank = 1
        self._trainer: Any = None
        self._module: Any = None
        self.batches = _Batches(BatchStream(self._join, epochs, accumulate, self._epoch_ended))
        """Batches for the `train_dataloaders` of `fit`."""

    @property
    def loop(self) -> UserLoop | None:
        """The job's loop, with `fraction` and `time_left()`; None before the first batch."""
        return self.batches.stream.loop

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Prevent a worker that does not lead from saving: all share one folder."""
        if not leads():
            trainer.strategy.checkpoint_io = _Unwritten()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Keep the module, whose optimizer exists by now."""
        if trainer.world_size > 1:
            raise OwnLoopError(
                f"Trainer(devices=...) has {trainer.world_size} processes; use devices=1: each is a worker"
            )
        if trainer.max_epochs != 1:
            raise OwnLoopError(
                f"Trainer has max_epochs={trainer.max_epochs}, and would join the job again for each; set "
                "max_epochs=1, as the whole budget is one epoch of Lightning; ElasticWorker(epochs=...) is the number "
                "of passes over the data"
            )
        if trainer.accumulate_grad_batches != 1:
            raise OwnLoopError("accumulate_grad_batches must be 1; give ElasticWorker(accumulate=...) instead")
        if trainer.ckpt_path is not None:
            raise OwnLoopError(
                f"fit(ckpt_path={trainer.ckpt_path!r}): the job resumes from its own checkpoints, which also hold "
                "growth; leave it out"
            )
        if not pl_module.automatic_optimization:
            raise OwnLoopError("automatic_optimization=False: the steps of a job are Lightning's own; leave it True")
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau and config.interval == "epoch":
                raise OwnLoopError(
                    f"{type(config.scheduler).__name__} has the interval 'epoch', of which Lightning sees one; set "
                    "interval='step', and frequency to the number of batches between two validations"
                )
        for callback in trainer.callbacks:
            if isinstance(callback, WeightAveraging | StochasticWeightAveraging):
                raise OwnLoopError(
                    f"the average of {type(callback).__name__} would neither grow with the model nor reach other "
                    "workers; give ElasticWorker(others=[...]) a torch.optim.swa_utils.AveragedModel of the network, "
                    "and update it in a callback of your own"
                )
        self._trainer, self._module = trainer, pl_module

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the metrics that have a name in the job."""
        found = {name: trainer.callback_metrics.get(logged) for logged, name in self._report.items()}
        figures = {name: float(value) for name, value in found.items() if value is not None}
        if figures and self.loop is not None and not trainer.sanity_checking:
            self.loop.report(**figures)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave the job's loop where Lightning ends first, by a callback or a limit of its own."""
        if leads():
            self.batches.stream.leave()

    def _epoch_ended(self) -> None:
        """Let schedulers count passes over the data."""
        for config in self._trainer.lr_scheduler_configs:
            if config.interval == "epoch" and self.batches.stream.passes % config.frequency == 0:
                self._module.lr_scheduler_step(config.scheduler, None)

    def _join(self) -> tuple[UserLoop, Iterable[Any]]:
        trainer, module = self._trainer, self._module
        if trainer is None:
            raise OwnLoopError("ElasticWorker: its batches are for `fit` of a Trainer that has it among its callbacks")
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        loop, batches = join(
            self._trained(module),
            list(trainer.optimizers),
            self._loader,
            *schedulers,
            *([] if scaler is None else [scaler]),
            *self._others,
            _LightningProgress(trainer.fit_loop.epoch_loop),
            grow=self._grow,
            accumulate=self._accumulate,
            example=self._example,
            validate=self._validate,
        )

        def backward(loss: Tensor, *_: Any, **__: Any) -> None:
            loop.backward(loss)

        module.backward = backward
        epoch = trainer.fit_loop.epoch_loop
        # Schedulers, averages and global_step do not count batches without a step.
        epoch._accumulated_batches_reached = lambda: self.batches.stream.should_step
        if not loop.leads:
            # Callbacks' counts differ among workers: only the leader may end before the budget.
            epoch.min_steps, epoch.max_steps = _MANY, -1
        return loop, batches

    def _trained(self, module: nn.Module) -> nn.Module:
        if self._network is not None:
            found = getattr(module, self._network, None)
            if not isinstance(found, nn.Module):
                raise OwnLoopError(f"ElasticWorker: {type(module).__name__} has no module {self._network!r}")
            return found
        parts = [part for part in module.children() if any(True for _ in part.parameters())]
        alone = len(parts) == 1 and not any(True for _ in module.parameters(recurse=False))
        return parts[0] if alone else module


class _Unwritten(CheckpointIO):  # type: ignore[misc]
    """Checkpoint plugin that writes no checkpoints."""

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Do nothing."""

    def load_checkpoint(self, path: Any, *given: Any, **named: Any) -> Any:
        """Raise `OwnLoopError`: there are none."""
        raise OwnLoopError(f"{path}: a worker that does not lead has written no checkpoints; load them after `fit`")

    def remove_checkpoint(self, path: Any) -> None:
        """Do nothing."""


class _LightningProgress:
    """The batches and steps that Lightning has counted, as a part of the training state.

    So they are the same in all workers, and in a run that resumes or continues from a copy that has won a trial.
    """

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self._loop.batch_progress.current.completed, "steps": self._loop.global_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        step = self._loop.automatic_optimization.optim_progress.optimizer.step
        for progress, done in ((self._loop.batch_progress, state["batches"]), (step, state["steps"])):
            for tracker in (progress.total, progress.current):
                tracker.reset()
                tracker.increment_by(done)
        self._loop._batches_that_stepped = state["steps"]


class _Batches:
    """The stream, with a length."""

    def __init__(self, stream: BatchStream) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[Any]:
        return iter(self.stream)

    def __len__(self) -> int:
        return _MANY
