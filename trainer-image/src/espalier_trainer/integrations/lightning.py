"""A callback that makes `lightning.Trainer.fit` a worker of a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import lightning
from torch import Tensor, nn
from torch.utils.data import DataLoader

from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.own import Loop, OwnLoopError, join
from espalier_trainer.own.stream import Stream
from espalier_trainer.own.trying import Validate

_MANY: Final = 2**31 - 1
"""Batches of the one epoch. Lightning loads no batch in advance where it knows a number."""


class ElasticWorker(lightning.Callback):  # type: ignore[misc]
    """Lets a job's budget, workers and growth into a `fit`, which sees one epoch as long as the budget.

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
    ) -> None:
        """`network` names the attribute of the LightningModule that is trained and grows; None: its only one.

        `epochs` is the most passes over the data; a `fit` without a job needs it. `report` gives the job's name of each
        logged metric (`{"val_acc": "validation_accuracy"}`). The rest is as for `espalier_trainer.own.join`; `validate`
        takes the module that `network` names.
        """
        self._loader, self._network, self._grow, self._accumulate = loader, network, grow, accumulate
        self._example, self._validate, self._report = example, validate, dict(report or {})
        self._trainer: Any = None
        self._module: Any = None
        self.batches = _Batches(Stream(self._join, epochs))
        """What `fit` takes as its train_dataloaders."""

    @property
    def loop(self) -> Loop | None:
        """The job's loop, with `fraction` and `time_left()`; None before the first batch."""
        return self.batches.stream.loop

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Take note of the module; its optimizer is made by now."""
        if trainer.world_size > 1:
            raise OwnLoopError(
                f"Trainer(devices=...) has {trainer.world_size} processes; use devices=1: each is a worker"
            )
        if trainer.accumulate_grad_batches != 1:
            raise OwnLoopError("accumulate_grad_batches must be 1; give ElasticWorker(accumulate=...) instead")
        self._trainer, self._module = trainer, pl_module

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the metrics that the job knows."""
        found = {name: trainer.callback_metrics.get(logged) for logged, name in self._report.items()}
        figures = {name: float(value) for name, value in found.items() if value is not None}
        if figures and self.loop is not None and not trainer.sanity_checking:
            self.loop.report(**figures)

    def _join(self) -> tuple[Loop, Iterable[Any]]:
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
            grow=self._grow,
            accumulate=self._accumulate,
            example=self._example,
            validate=self._validate,
        )

        def backward(loss: Tensor, *_: Any, **__: Any) -> None:
            loop.backward(loss)

        module.backward = backward
        return loop, batches

    def _trained(self, module: nn.Module) -> nn.Module:
        if self._network is not None:
            found = getattr(module, self._network, None)
            if not isinstance(found, nn.Module):
                raise OwnLoopError(f"ElasticWorker: {type(module).__name__} has no module {self._network!r}")
            return found
        parts = {name: part for name, part in module.named_children() if any(True for _ in part.parameters())}
        own = [name for name, _ in module.named_parameters(recurse=False)]
        if len(parts) != 1 or own:
            found = ", ".join([*parts, *own]) or "nothing"
            raise OwnLoopError(
                f"ElasticWorker: {type(module).__name__} has parameters in {found}; put all that "
                "is trained into one module, and name its attribute: network=..."
            )
        return next(iter(parts.values()))


class _Batches:
    """The stream, with a length."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[Any]:
        return iter(self.stream)

    def __len__(self) -> int:
        return _MANY
