"""Hugging Face's `Trainer` as a worker of a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.own import OwnLoopError, join
from espalier_trainer.user_loop.batch_stream import BatchStream
from espalier_trainer.user_loop.joining import Validate, leads
from espalier_trainer.user_loop.loop import UserLoop
from espalier_trainer.user_loop.stateful import Stateful

_ORDERS: Final = ("random", "sequential")
"""Values of `TrainingArguments.train_sampling_strategy` that workers can share."""


class ElasticTrainer(transformers.Trainer):  # type: ignore[misc]
    """A `Trainer` that ends with a job's budget, and shares its steps with the job's other workers.

    It sees one epoch as long as the budget. The learning rate falls linearly to 0 at the end of the budget, unless a
    scheduler is given. `TrainingArguments.max_steps` is the maximum number of steps; `gradient_accumulation_steps` must
    be 1. Only the leader saves, and may end by its callbacks before the budget.
    """

    def __init__(
        self,
        *given: Any,
        grow: bool = False,
        accumulate: int = 1,
        epochs: int | None = None,
        example: ExampleInput | None = None,
        validate: Validate | None = None,
        others: Sequence[Stateful] = (),
        **named: Any,
    ) -> None:
        """`epochs` is the maximum number of passes over the data; training without a job needs it.

        `grow`, `accumulate`, `example`, `validate` and `others` are those of `espalier_trainer.own.join`; if absent,
        `example` is the first two examples without labels, and `validate` returns the loss on `eval_dataset`.
        """
        self._leads = leads()
        super().__init__(*given, **named)
        if self.args.gradient_accumulation_steps != 1:
            raise OwnLoopError("gradient_accumulation_steps must be 1; give ElasticTrainer(accumulate=...) instead")
        if self.args.auto_find_batch_size:
            raise OwnLoopError(
                "auto_find_batch_size=True would restart with smaller batches, unknown to the other workers; set it to "
                "False and per_device_train_batch_size to what fits, accumulate=... for larger steps"
            )
        if self.args.train_sampling_strategy not in _ORDERS:
            raise OwnLoopError(
                f"train_sampling_strategy={self.args.train_sampling_strategy!r} would make batches that workers cannot "
                f"share; set it to one of {', '.join(_ORDERS)}, and sort or pack the texts of the train_dataset before"
            )
        if self.args.data_seed is not None:
            raise OwnLoopError(
                f"data_seed={self.args.data_seed}: the order of the examples must be the same in all workers, so the "
                "job's spec.training.seed decides it; leave data_seed out"
            )
        if self.args.world_size > 1 or self.args.n_gpu > 1:
            raise OwnLoopError("a worker of a job uses one GPU and one process: start the script with python")
        if isinstance(self.train_dataset, IterableDataset):
            raise OwnLoopError(
                f"ElasticTrainer: the train_dataset is iterable ({type(self.train_dataset).__name__}), and has no "
                "order that workers could share; give a map-style one (load_dataset without streaming=True)"
            )
        if grow and self.accelerator.mixed_precision != "no":
            raise OwnLoopError(
                f"grow=True: mixed precision ({self.accelerator.mixed_precision}) changes the model's forward, which "
                "would be lost when the model grows; leave bf16 and fp16 out"
            )
        if grow and self.args.load_best_model_at_end:
            raise OwnLoopError(
                "grow=True: load_best_model_at_end=True would load weights from before a growth into the grown model; "
                "set it to False: the model at the end of the budget is the trained one"
            )
        self._grow, self._accumulate, self._epochs, self._example = grow, accumulate, epochs, example
        single = self.eval_dataset is not None and not isinstance(self.eval_dataset, dict)
        self._validate = self._eval_loss if validate is None and single else validate
        self._others = others
        self._stream: BatchStream | None = None
        self._ended_at = -1
        """Step at which the last epoch ended."""
        self.lr_scheduler: Any
        self.control: Any

    @property
    def loop(self) -> UserLoop | None:
        """The job's loop, with `fraction` and `time_left()`; None before the first batch."""
        return None if self._stream is None else self._stream.loop

    def train(self, resume_from_checkpoint: str | bool | None = None, *given: Any, **named: Any) -> Any:
        """Train to the end of the budget; the job resumes from its own checkpoint, not from one of a Trainer."""
        if resume_from_checkpoint:
            raise OwnLoopError(
                f"train(resume_from_checkpoint={resume_from_checkpoint!r}): the job resumes from its own checkpoints, "
                "which also hold growth; call train()"
            )
        return super().train(None, *given, **named)

    def is_world_process_zero(self) -> bool:
        """Return whether this worker leads: callbacks log and save only there."""
        return self._leads and super().is_world_process_zero()

    def get_train_dataloader(self) -> Any:
        """Return the job's batches as one stream."""
        self._ended_at = -1
        self._stream = BatchStream(self._join, self._epochs, self._accumulate, self._epoch_ended, self._is_stopped)
        return _Ending(self, self._stream)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the given scheduler, or one that follows the time budget."""
        if self.lr_scheduler is None:
            target: Any = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                getattr(target, "optimizer", target), lambda _: 1.0 if self.loop is None else 1.0 - self.loop.fraction
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def evaluate(self, *given: Any, **named: Any) -> dict[str, float]:
        """Evaluate, and report accuracy and loss to the job."""
        metrics: dict[str, float] = super().evaluate(*given, **named)
        names = {"eval_accuracy": "validation_accuracy", "eval_loss": "validation_loss"}
        figures = {name: float(metrics[key]) for key, name in names.items() if key in metrics}
        if figures and self.loop is not None:
            self.loop.report(**figures)
        return metrics

    def _save_checkpoint(self, *given: Any, **named: Any) -> None:
        if self._leads:  # all workers have one output_dir
            super()._save_checkpoint(*given, **named)

    def log(self, *given: Any, **named: Any) -> None:
        """Log, counting a pass over the data as an epoch: the Trainer's own epoch is as long as the budget."""
        if self._stream is not None:
            self.state.epoch = float(self._stream.passes)
        super().log(*given, **named)

    def _is_stopped(self) -> bool:
        """Return whether a callback, or `max_steps`, has ended the training before the budget."""
        return bool(self.control.should_training_stop)

    def _epoch_ended(self) -> None:
        """Carry out the actions due at the end of an epoch (`eval_strategy`, callbacks)."""
        self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
        self._maybe_log_save_evaluate(self._tr_loss, None, self.model, None, 0, None, None)
        self._ended_at = self.state.global_step

    def _maybe_log_save_evaluate(self, *given: Any, **named: Any) -> None:
        if self._ended_at == self.state.global_step:
            return  # the Trainer's own epoch ends with the last pass over the data
        super()._maybe_log_save_evaluate(*given, **named)
        if not self._leads:
            # Callbacks' counts differ among workers, especially in one that tries a growth.
            self.control.should_training_stop = self.control.should_epoch_stop = False

    def _join(self) -> tuple[UserLoop, Iterable[Any]]:
        sampler = self._get_train_sampler(self.train_dataset)
        if not isinstance(sampler, RandomSampler | SequentialSampler):
            raise OwnLoopError(
                f"ElasticTrainer: _get_train_sampler returns a {type(sampler).__name__}, whose order workers cannot "
                "share; return a RandomSampler or a SequentialSampler of the train_dataset, or leave the method out"
            )
        loader: DataLoader[Any] = DataLoader(
            self.train_dataset,
            batch_size=self.args.per_device_train_batch_size,
            sampler=sampler,
            drop_last=self.args.dataloader_drop_last,
            collate_fn=self._collator(),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type != "cpu",
        )
        scaler = self.accelerator.scaler
        loop, batches = join(
            self.model,
            self.optimizer,
            loader,
            self.lr_scheduler,
            *([] if scaler is None else [scaler]),
            *self._others,
            _TransformersProgress(self),
            grow=self._grow,
            accumulate=self._accumulate,
            example=self._inputs() if self._grow and self._example is None else self._example,
            validate=self._validate,
        )

        def backward(loss: Tensor, **_: Any) -> None:
            loop.backward(loss if scaler is None else scaler.scale(loss))
            # Schedulers do not count batches without a step.
            due = self._stream is None or self._stream.should_step
            self.accelerator.gradient_state._set_sync_gradients(due)
            for optimizer in self.accelerator._optimizers:
                optimizer._is_overflow = not due

        self.accelerator.backward = backward
        return loop, batches

    def _eval_loss(self, _model: nn.Module) -> float:
        """Return the loss on `eval_dataset`, without callbacks and logs."""
        found = self.evaluation_loop(self.get_eval_dataloader(), "Trial", prediction_loss_only=True).metrics
        if "eval_loss" not in found:
            raise OwnLoopError(
                "ElasticTrainer: the eval_dataset has no loss, by which trials are judged; give it labels, or give "
                "validate=, a function that takes the model and returns its validation loss"
            )
        return float(found["eval_loss"])

    def _collator(self) -> Any:
        return self._get_collator_with_removed_columns(self.data_collator, description="training")

    def _inputs(self) -> dict[str, Any]:
        batch = self._collator()([self.train_dataset[index] for index in range(2)])
        return {name: each for name, each in batch.items() if name not in self.label_names}


class _TransformersProgress:
    """The steps that a Trainer has counted, as a part of the training state.

    So they are the same in all workers, and in a run that resumes or continues from a copy that has won a trial.
    """

    def __init__(self, trainer: ElasticTrainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        return {"global_step": self._trainer.state.global_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        trainer = self._trainer
        come = state["global_step"] - trainer.state.global_step
        trainer.state.global_step += come
        # Logged values are means over the steps that this process has computed.
        trainer._globalstep_last_logged += come
        trainer._initial_global_step += come


class _Ending:
    """The stream, whose end is the end of the training."""

    def __init__(self, trainer: ElasticTrainer, stream: BatchStream) -> None:
        self._trainer, self._stream = trainer, stream

    def __iter__(self) -> Iterator[Any]:
        yield from self._stream
        self._trainer.control.should_training_stop = True
