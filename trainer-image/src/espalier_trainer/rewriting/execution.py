"""How the steps of a network are computed, if not as its module's code says: its layout, and its rewritten graph.

Both are derived. What is grown, saved, exchanged and evaluated is the module, whose parameters they share.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from espalier_core.base import Record
from espalier_trainer.net2net.modules import ExampleInput, mode
from espalier_trainer.optimizers.layout import lay_moments
from espalier_trainer.rewriting import Plan, RewritesRefusedError, apply, device_kind

_KERNEL: int = 4
"""Dimensions of the kernel of a convolution in two directions."""


class ExecutionState(Record):
    """What checkpoints and other workers need to compute steps in the same way, without a search."""

    channels_last: bool = False
    """Whether kernels lie in channels-last."""
    plan: Plan | None = None
    """The rules that were applied; None: none."""


@dataclass(frozen=True, slots=True)
class Execution:
    """A computation of training steps over the parameters, buffers and layers of a module."""

    module: nn.Module
    """For train mode alone."""
    plan: Plan


def executed(module: nn.Module, plan: Plan, example: ExampleInput) -> Execution:
    """Return the execution of `module` by a plan.

    Raises `RewritesRefusedError` for a plan of another model or device, and for a model that cannot be captured.
    """
    if plan.device != (here := device_kind(module)):
        raise RewritesRefusedError(f"the plan was measured on {plan.device}, and this is {here}")
    with mode(module, training=True):
        return Execution(apply(module, plan, example), plan)


def has_layouts(module: nn.Module) -> bool:
    """Return whether channels-last is another layout for this module: it has kernels in two directions, none in three.

    Of a 1×1 kernel both are the same, but activations follow it.
    """
    ranks = [parameter.dim() for parameter in module.parameters()]
    return _KERNEL in ranks and max(ranks) <= _KERNEL


def lay(module: nn.Module, optimizer: Optimizer | None, *, channels_last: bool) -> None:
    """Give kernels, and with `optimizer` their moments, one layout or the other; parameters stay the same objects."""
    module.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    if optimizer is not None:
        lay_moments(optimizer)
