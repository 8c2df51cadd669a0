"""Hugging Face's `Trainer` as a worker of a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils.data import DataLoader

from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.own import Loop, OwnLoopError, join
from espalier_trainer.own.stream import Stream
from espalier_trainer.own.trying import Validate


class ElasticTrainer(transformers.Trainer):  # type: ignore[misc]
    """A `Trainer` that a job's budget ends, and whose `train` other workers of the job take part in.

    It sees one epoch as long as the budget. The learning rate falls linearly to 0 at the end of the budget, unless a
    scheduler is given. `TrainingArguments.max_steps` is the most steps of a worker; `gradient_accumulation_steps` is 1.
    """

    def __init__(
        self,
        *given: Any,
        grow: bool = False,
        accumulate: int = 1,
        epochs: int | None = None,
        example: ExampleInput | None = None,
        validate: Validate | None = None,
        **named: Any,
    ) -> None:
        """`epochs` is the most passes over the data; training without a job needs it.

        `grow`, `accumulate`, `example` and `validate` are as for `espalier_trainer.own.join`; if absent, `example` are
        the first two examples without labels.
        """
        super().__init__(*given, **named)
        if self.args.gradient_accumulation_steps != 1:
            raise OwnLoopError("gradient_accumulation_steps must be 1; give ElasticTrainer(accumulate=...) instead")
        if self.args.world_size > 1 or self.args.n_gpu > 1:
            raise OwnLoopError("a worker of a job uses one GPU and one process: start the script with python")
        if grow and self.accelerator.mixed_precision != "no":
            raise OwnLoopError(
                f"grow=True: mixed precision ({self.accelerator.mixed_precision}) changes the model's forward, which "
                "would be lost when the model grows; leave bf16 and fp16 out"
            )
        self._grow, self._accumulate, self._epochs, self._example = grow, accumulate, epochs, example
        self._validate = validate
        self._stream: Stream | None = None
        self.lr_scheduler: Any

    @property
    def loop(self) -> Loop | None:
        """The job's loop, with `fraction` and `time_left()`; None before the first batch."""
        return None if self._stream is None else self._stream.loop

    def get_train_dataloader(self) -> Any:
        """Return the job's batches as one stream."""
        self._stream = Stream(self._join, self._epochs)
        return _Ending(self, self._stream)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the scheduler that was given, or one that follows the time budget."""
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

    def _join(self) -> tuple[Loop, Iterable[Any]]:
        loader: DataLoader[Any] = DataLoader(
            self.train_dataset,
            batch_size=self.args.per_device_train_batch_size,
            shuffle=True,
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
            grow=self._grow,
            accumulate=self._accumulate,
            example=self._inputs() if self._grow and self._example is None else self._example,
            validate=self._validate,
        )

        def backward(loss: Tensor, **_: Any) -> None:
            loop.backward(loss if scaler is None else scaler.scale(loss))

        self.accelerator.backward = backward
        return loop, batches

    def _collator(self) -> Any:
        return self._get_collator_with_removed_columns(self.data_collator, description="training")

    def _inputs(self) -> dict[str, Any]:
        batch = self._collator()([self.train_dataset[index] for index in range(2)])
        return {name: each for name, each in batch.items() if name not in self.label_names}


class _Ending:
    """The stream, whose end is that of the training."""

    def __init__(self, trainer: ElasticTrainer, stream: Stream) -> None:
        self._trainer, self._stream = trainer, stream

    def __iter__(self) -> Iterator[Any]:
        yield from self._stream
        self._trainer.control.should_training_stop = True
