"""An exponential moving average of the weights, evaluated in their place (Polyak averaging).

It is a state of the optimizer, one entry a parameter. So checkpoints, growth and the workers that train together carry
it like moments. Where a growth changes a parameter (its shape, or its values as in `insertion: Scaled`), the average of
that parameter restarts from the value that growth gave it, like that of a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from espalier_trainer.optimizers.building import SEPARATOR

AVERAGE: Final = "average"
"""Key of the average in the state of a parameter."""
COUNT: Final = "average_steps"
"""Key of the number of averaged steps."""


def averaged_step(optimizer: Optimizer, decay: float) -> None:
    """Take the optimizer's step, and add the new weights to their averages.

    a ← d a + (1 - d) w, d = min(decay, (1 + n) / (10 + n)), where n counts the steps so far: the first weights, which
    are random, are forgotten sooner (as in TensorFlow). Parameters that growth has added or changed are not random:
    their average begins with the value that growth gave them, and with the n of the others.
    """
    trained = [each for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
    states = [optimizer.state.get(each, {}) for each in trained]
    begun = max((int(state.get(COUNT, 0)) for state in states), default=0)
    given = {
        parameter: parameter.detach().clone(memory_format=torch.preserve_format)
        for parameter, state in zip(trained, states, strict=True)
        if AVERAGE not in state
    }
    optimizer.step()
    with torch.no_grad():
        for parameter in trained:
            state = optimizer.state[parameter]
            if parameter in given:  # only now: optimizers assume that a nonempty state is their own
                state |= {AVERAGE: given[parameter], COUNT: begun}
            steps = int(state[COUNT])
            state[AVERAGE].lerp_(parameter, 1 - min(decay, (1 + steps) / (10 + steps)))
            state[COUNT] = steps + 1


@contextmanager
def averaged(optimizer: Optimizer) -> Iterator[None]:
    """Replace the weights by their averages, where there are any, within the context."""
    kept: list[tuple[nn.Parameter, Tensor]] = []
    try:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if (mean := optimizer.state.get(parameter, {}).get(AVERAGE)) is not None:
                    kept.append((parameter, parameter.data))
                    parameter.data = mean
        yield
    finally:
        for parameter, weights in kept:
            parameter.data = weights


def averages_in(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the averages among the saved tensors of an optimizer (`optimizers.optimizer_state`), by parameter."""
    ending = f"{SEPARATOR}{AVERAGE}"
    return {name.removesuffix(ending): tensor for name, tensor in tensors.items() if name.endswith(ending)}


def without_stale(optimizer: Optimizer, before: nn.Module, after: nn.Module) -> Optimizer:
    """Return the optimizer of the grown module `after` without averages of parameters that the growth has changed."""
    old = dict(before.named_parameters())
    for name, parameter in after.named_parameters():
        state = optimizer.state.get(parameter)
        if not state or AVERAGE not in state:
            continue
        was = old.get(name)
        if was is None or was.shape != parameter.shape or not torch.equal(was, parameter):
            del state[AVERAGE], state[COUNT]
    return optimizer
