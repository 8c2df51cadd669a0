"""Rewrites in a job, found by the trainer through the entry point `rewrites` of the group `espalier.executions`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from espalier_lab.rewriting.engine import (
    TOLERANCE,
    OperatorCosts,
    OpGraph,
    RewritePlan,
    apply,
    capture,
    device_kind,
    search,
    verify,
)
from espalier_trainer.net2net.modules import ExampleInput, mode
from espalier_trainer.training.execution import BrokenOffError, Execution, Limits, Loss, Rewrite, RewritesRefusedError

_CHECKED_ROWS: Final = 4
"""Number of examples in the check in double precision, whose result does not depend on it."""
_SEARCHING_STEPS: Final = 9
"""Duration of a search, which measures each operator, in steps: 4.4 with a ResNet-18 on a CPU, 9 with a SqueezeNet."""
_LAYER_SECONDS: Final = 0.007
"""Additional seconds per layer for capture, search and application: 5 and 6 ms with these two."""
_EXPORT_SECONDS: Final = 6.0
"""Seconds of the first torch.export of a process besides its layers: up to 5.5 s of CPU, to load its compiler."""
_EXPORT_LAYER_SECONDS: Final = 0.02
"""Seconds of it per layer: 17 and 16 ms with GPT-2s of 4 and of 12 blocks."""


@dataclass
class _TimedCosts(OperatorCosts):
    """Operator costs whose measurement can be interrupted."""

    check: Callable[[], None] = lambda: None

    def of(self, graph: OpGraph, name: str) -> float:
        """Return the seconds of a node."""
        self.check()
        return super().of(graph, name)


class Rewrites:
    """Searches for rewrites of a model's graph that are faster by its measured operators."""

    def __init__(self) -> None:
        self._operators: dict[str, float] = {}
        """Seconds of the measured operators: a grown model has most operators of the smaller one."""

    def seconds(self, module: nn.Module, step: float) -> float:
        """Return the approximate duration of an attempt, if a step of the module takes `step` seconds."""
        return search_seconds(module, step)

    def forget(self) -> None:
        """Forget the seconds of operators."""
        self._operators.clear()

    def executed(self, module: nn.Module, plan: Mapping[str, Any], example: ExampleInput) -> Execution:
        """Return the execution of `module` by a plan.

        Raise `RewritesRefusedError` for a plan of another model or device, and for a model that cannot be captured.
        """
        try:
            rules = RewritePlan.model_validate(plan)
        except ValidationError as error:
            raise RewritesRefusedError(f"the plan cannot be read: {error.errors()[0]['msg']}") from error
        if rules.device != (here := device_kind(module)):
            raise RewritesRefusedError(f"the plan was measured on {rules.device}, and this is {here}")
        with mode(module, training=True):
            return Execution(apply(module, rules, example), rules.model_dump(mode="json"))

    def attempt(
        self,
        module: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        loss: Loss,
        limits: Limits,
    ) -> Rewrite:
        """Return the first exact one among the best rewrites, or the reason why there is none.

        Raise `RewritesRefusedError` for a model that cannot be captured, and any error of `limits.check`.
        """
        costs = _TimedCosts(module, clock=limits.clock, table=self._operators, check=limits.check)
        exports = may_export(module, limits.step, limits.allowed)
        searched = search(capture(module, inputs, exports=exports), costs)
        if not searched.plan.rules:
            why = f"no rule makes the costs of its operators smaller ({searched.evaluations} graphs)"
            return Rewrite(why, evaluations=searched.evaluations)
        failed: list[Rewrite] = []
        for _, plan in searched.best:
            if not plan.rules:
                break  # the others cost more than the original model
            limits.check()
            rules = ", ".join(sorted({step.rule for step in plan.rules}))
            found = Rewrite(rules, rules=len(plan.rules), evaluations=searched.evaluations)
            try:
                execution = self.executed(module, plan.model_dump(mode="json"), inputs)
                found = replace(found, error=_error(module, execution.module, inputs, targets, loss))
            except (torch.OutOfMemoryError, BrokenOffError):
                raise
            except RewritesRefusedError as error:
                failed.append(replace(found, message=str(error)))
                continue
            # A rule that does not fit the user's model, or an error of it in double precision: another plan may work.
            except Exception as error:
                failed.append(replace(found, message=f"failed ({type(error).__name__}: {error})"))
                continue
            if found.error is not None and found.error <= TOLERANCE:
                limits.check()
                return replace(found, execution=execution)
            message = f"not exact: relative error {found.error:.1e} in double precision"
            failed.append(replace(found, message=message))
        return failed[0]


def search_seconds(module: nn.Module, step: float) -> float:
    """Return the approximate duration of a search for rewrites, from the seconds of a step."""
    return _SEARCHING_STEPS * step + _LAYER_SECONDS * _layers(module)


def may_export(module: nn.Module, step: float, allowed: float) -> bool:
    """Return whether torch.export may trace a model that torch.fx cannot, in an attempt of `allowed` seconds."""
    return search_seconds(module, step) + _EXPORT_SECONDS + _EXPORT_LAYER_SECONDS * _layers(module) <= allowed


def _error(
    module: nn.Module,
    execution: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss: Loss,
) -> float:
    few, wanted = inputs[:_CHECKED_ROWS], targets[:_CHECKED_ROWS]
    return verify(module, execution, few, lambda outputs: loss(outputs, wanted)).largest


def _layers(module: nn.Module) -> int:
    return sum(not list(each.children()) for each in module.modules())
