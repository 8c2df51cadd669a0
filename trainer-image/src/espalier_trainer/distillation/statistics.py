"""Batch norms of a model that lost layers: their running statistics, estimated again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from espalier_trainer.net2net.modules import mode

Norm = nn.modules.batchnorm._BatchNorm


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Sequence[Tensor]) -> None:
    """Set running means and variances to the averages over `batches`, in place, as `torch.optim.swa_utils.update_bn`.

    Only batch norms are in train mode meanwhile: no dropout. Weights, modes and momenta are left as they are.
    """
    norms = [module for module in model.modules() if isinstance(module, Norm) and module.track_running_stats]
    if not norms or not batches:
        return
    momenta = {norm: norm.momentum for norm in norms}
    try:
        with mode(model, training=False):
            for norm in norms:
                counted = None if norm.num_batches_tracked is None else norm.num_batches_tracked.clone()
                norm.reset_running_stats()
                if counted is not None and momenta[norm] is not None:
                    norm.num_batches_tracked = torch.zeros_like(counted)
                norm.momentum = None  # a plain average over the batches
                norm.training = True
            for inputs in batches:
                model(inputs)
    finally:
        for norm, momentum in momenta.items():
            norm.momentum = momentum
