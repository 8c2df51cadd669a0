"""An optimizer for the wider model that keeps the state of the old one.

The gradient of a copied incoming weight is the old gradient times the copy's share; that of an outgoing weight is
unchanged. So first moments of incoming weights are multiplied by the share, second moments by its square, and moments
of outgoing weights are copied. This is exact where the moments depend on the gradient alone. It is approximate for
weight decay inside a momentum, and for norms that take a mean over the channels.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, RMSprop

from espalier_core.growth.architecture import GrowthError
from espalier_trainer.net2net.optimizer import grow_optimizer
from espalier_trainer.net2net.widening.edits import Edit
from espalier_trainer.net2net.widening.groups import edited
from espalier_trainer.net2net.widening.widen import Widening
from espalier_trainer.optimizers.averaging import AVERAGE

_MOMENTS = {
    "exp_avg": 1, "exp_inf": 1, "momentum_buffer": 1, "grad_avg": 1, "prev": 1,
    "exp_avg_sq": 2, "max_exp_avg_sq": 2, "square_avg": 2, "sum": 2,
    "acc_delta": 0, "step_size": 0, "ax": -1, AVERAGE: -1,
}  # fmt: skip
"""The power of the gradient with which each state of torch's optimizers scales; -1: it is a parameter's value."""


@torch.inference_mode(False)  # what is made in that mode could never be trained
def widen_optimizer(
    optimizer: Optimizer,
    old_model: nn.Module,
    new_model: nn.Module,
    widening: Widening,
    *,
    schedulers: Iterable[object] = (),
) -> Optimizer:
    """Return an optimizer like `optimizer` over `new_model`, which is `old_model` widened by the plan.

    Same class, same groups in the same order with their hyperparameters, step counts kept. `optimizer` keeps working
    on `old_model`; `schedulers`, hooks and attributes are handed over as by `grow_optimizer`. Raises `GrowthError` for
    LBFGS and for a state of unknown meaning.
    """
    edits: dict[str, list[Edit]] = {}
    for edit in widening.group.edits:
        for path in edit.paths:
            edits.setdefault(path, []).append(edit)
    return grow_optimizer(
        optimizer,
        old_model,
        new_model,
        {path: partial(_widened, optimizer, widening, mine) for path, mine in edits.items()},
        schedulers=schedulers,
    )


def _widened(optimizer: Optimizer, widening: Widening, edits: list[Edit], key: str, value: Tensor) -> Tensor:
    power = _MOMENTS.get(key)
    if key == "momentum_buffer" and isinstance(optimizer, RMSprop):
        power = 0  # of gradients divided by their own size
    if power is None:
        raise GrowthError(
            f"{type(optimizer).__name__} has a state {key!r} whose dependence on the gradient is unknown; "
            "build a new optimizer"
        )
    for edit in edits:
        value = edited(value, edit, {widening.group.space: widening.replication}, None if power < 0 else power)
    return value
