"""A net whose rewrites are measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from espalier_lab.rewriting.engine import (
    Comparison,
    Errors,
    OperatorCosts,
    OpGraph,
    RewritePlan,
    apply,
    capture,
    compare,
    verify,
)
from espalier_lab.rewriting.learned.nets import NETS


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    pairs: int
    graphs: int
    evaluations: int
    batch: int | None = None
    """Examples of a batch; None: as many as the net comes with."""


@dataclass
class Case:
    """One net while it is measured."""

    name: str
    module: nn.Module
    inputs: Tensor
    graph: OpGraph
    costs: OperatorCosts
    sizes: Sizes

    def forward(self, model: nn.Module) -> None:
        with torch.no_grad():
            model(self.inputs)

    def trained(self) -> Callable[[nn.Module], None]:
        """Return a training step; both sides train the same parameters."""
        optimizer = torch.optim.Adam(self.module.parameters(), 1e-5)

        def step(model: nn.Module) -> None:
            optimizer.zero_grad()
            loss(model(self.inputs)).backward()
            optimizer.step()

        return step

    def compared(
        self, execution: nn.Module, step: Callable[[nn.Module], None], pairs: int, than: nn.Module | None = None
    ) -> Comparison:
        return compare(than or self.module, execution, step, pairs=pairs, clock=clock_of(self.inputs))

    def executed(self, plan: RewritePlan) -> tuple[nn.Module, Errors]:
        """Return the execution of a plan, and its errors. Raises `AssertionError` where they are too large."""
        return self.verified(apply(self.module, plan, self.inputs), str(plan))

    def verified(self, execution: nn.Module, what: str) -> tuple[nn.Module, Errors]:
        """Return an execution with its errors. Raises `AssertionError` where they are too large."""
        errors = verify(self.module, execution, self.inputs, loss)
        if not errors.right:
            raise AssertionError(f"{self.name}: {what} computes something else: {errors}")
        return execution, errors


def loss(outputs: Tensor) -> Tensor:
    """Return a loss that every output matters to."""
    return outputs.float().logsumexp(-1).mean() if outputs.dtype != torch.float64 else outputs.logsumexp(-1).mean()


def case_of(name: str, sizes: Sizes, table: Path | None = None, device: str = "cpu") -> Case:
    """Return a net to be measured; its costs come from the folder `table`, if there is one."""
    torch.manual_seed(0)
    module, inputs = NETS[name]()
    if sizes.batch is not None:
        inputs = inputs[torch.arange(sizes.batch) % len(inputs)]
    module, inputs = module.to(device), inputs.to(device)
    costs = OperatorCosts(module, table, clock=clock_of(inputs))
    return Case(name, module, inputs, capture(module, inputs), costs, sizes)


def clock_of(inputs: Tensor) -> Callable[[], float]:
    """Return seconds of this process where it computes itself, seconds where it waits for a device."""
    return time.perf_counter if inputs.is_cuda else time.process_time
