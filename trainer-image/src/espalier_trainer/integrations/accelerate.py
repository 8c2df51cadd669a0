"""The loop of a script that uses Hugging Face's Accelerate, as a worker of a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.own import OwnLoopError
from espalier_trainer.own import join as join_own
from espalier_trainer.user_loop.joining import Validate
from espalier_trainer.user_loop.loop import UserLoop
from espalier_trainer.user_loop.stateful import Stateful


class _Placed:
    """Batches on the accelerator's device."""

    def __init__(self, batches: Any, device: Any) -> None:
        self._batches, self._device = batches, device

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def dataset(self) -> Any:
        """Data set of the loader."""
        return self._batches.dataset

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield send_to_device(batch, self._device)


def join(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    loader: DataLoader[Any],
    *others: Stateful,
    grow: bool = False,
    example: ExampleInput | None = None,
    validate: Validate | None = None,
) -> tuple[UserLoop, Iterable[Any]]:
    """Join the job as `espalier_trainer.own.join` does; afterwards `accelerator.backward` is the loop's.

    `model` and `optimizer` are results of `accelerator.prepare`; `loader` is not prepared. The accelerator's
    `gradient_accumulation_steps` and gradient scaler are used. Raises `OwnLoopError` for an unsuitable accelerator.
    """
    if accelerator.num_processes > 1:
        raise OwnLoopError(
            f"Accelerate was started with {accelerator.num_processes} processes; start the script with python: each "
            "worker of the job is a separate process"
        )
    if grow and accelerator.mixed_precision != "no":
        raise OwnLoopError(
            f"grow=True: Accelerator(mixed_precision={accelerator.mixed_precision!r}) changes the model's forward, "
            "which would be lost when the model grows; leave it out, and use torch.autocast in the loop"
        )
    scaler = accelerator.scaler
    given = [*others] if scaler is None else [*others, scaler]
    loop, batches = join_own(
        model,
        optimizer,
        loader,
        *given,
        grow=grow,
        accumulate=accelerator.gradient_accumulation_steps,
        example=example,
        validate=validate,
    )

    def backward(loss: Tensor, **_: Any) -> None:
        loop.backward(loss if scaler is None else scaler.scale(loss))
        # Its own count of batches misses repeated ones.
        accelerator.gradient_state._set_sync_gradients(loop.should_step)

    accelerator.backward = backward
    return loop, _Placed(batches, accelerator.device)
