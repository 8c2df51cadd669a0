"""The network in training: module, optimizer and description, which change together when it grows or resumes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import nn

from espalier_core.growth import operation, operation_names, operations_of
from espalier_core.growth.architecture import WEIGHT_OPERATORS, Architecture, GrowthError
from espalier_core.growth.block import ADD_BLOCK
from espalier_core.growth.deepen import DEEPEN
from espalier_core.growth.widen import WIDEN
from espalier_core.types.advice import Action, offered
from espalier_core.types.job import Insertion, OptimizerSpec
from espalier_trainer.checkpoints.document import Checkpoint, ExecutionState
from espalier_trainer.errors import CheckpointMismatchError
from espalier_trainer.net2net.block.points import refused_blocks
from espalier_trainer.net2net.deepening.deepen import history_of, insertion_points
from espalier_trainer.net2net.description import describe
from espalier_trainer.net2net.history import GrowthStep, check_equal, gradual, replay, step_of
from espalier_trainer.net2net.modules import ExampleInput, remembering
from espalier_trainer.net2net.refusals import Refusal
from espalier_trainer.net2net.widening.widen import refused_widenings
from espalier_trainer.optimizers.averaging import without_stale
from espalier_trainer.optimizers.building import build_optimizer, lay, load_optimizer_state
from espalier_trainer.training.execution import Execution, RewritesRefusedError, rewriter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Network:
    """A module, its optimizer, and its description where it has one."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    architecture: Architecture | None
    """Description; None where the module cannot be described: it is trained, but never grown."""
    history: tuple[GrowthStep, ...] = ()
    """Growth steps of the starting module, in order."""
    channels_last: bool = False
    """Whether its kernels are in channels-last layout. Growth keeps the layout."""
    execution: Execution | None = None
    """Computation of training steps; None for the module itself. Growth drops it: its graph is of the smaller model."""

    @property
    def computing(self) -> nn.Module:
        """Module that computes training steps: outputs, gradients and buffers are those of `module`."""
        return self.module if self.execution is None else self.execution.module

    @property
    def execution_state(self) -> ExecutionState:
        """Computation of steps, for checkpoints and other workers."""
        plan = None if self.execution is None else dict(self.execution.plan)
        return ExecutionState(channels_last=self.channels_last, plan=plan)

    def computed_as(self, state: ExecutionState, example_input: ExampleInput) -> Network:
        """Return this network with the execution described by `state`.

        Where its plan does not fit here (another device) or cannot be read, the module computes the steps, with the
        same result.
        """
        if state.channels_last != self.channels_last:
            lay(self.module, self.optimizer, channels_last=state.channels_last)
        execution = None
        if state.plan is not None:
            try:
                execution = rewriter().executed(self.module, state.plan, example_input)
            except RewritesRefusedError as error:
                logger.info("steps are computed by the module itself: %s", error)
        return replace(self, channels_last=state.channels_last, execution=execution)

    @property
    def depth(self) -> int:
        """Number of layers with weights."""
        if self.architecture is not None:
            return self.architecture.depth
        return sum(type(module).__name__ in WEIGHT_OPERATORS for module in self.module.modules())

    @property
    def parameters(self) -> int:
        """Number of trainable scalars."""
        return sum(parameter.numel() for parameter in self.module.parameters() if parameter.requires_grad)

    def grown(self, action: Action, example_input: ExampleInput, insertion: Insertion, seed: int) -> Network:
        """Return the network after `action`, computing the same; raise `GrowthError` where that is impossible.

        This network, which needs a description, is not changed. `insertion` is the kind of insertion of layers, `seed`
        seeds the growth's random choices.
        """
        if self.architecture is None:
            raise GrowthError(f"the model has no description, so {action} cannot be carried out on it")
        step = step_of(action.kind).planned(action, self.architecture, insertion, seed)
        module, optimizer = step.grown(self.module, self.optimizer, example_input)
        without_stale(optimizer, self.module, module)
        description = describe(module, example_input, insertion, before=self.architecture)
        if self.channels_last:
            lay(module, optimizer, channels_last=True)
        return Network(module, optimizer, description, (*self.history, step), self.channels_last)

    @property
    def unfolds(self) -> bool:
        """Whether a growth is not complete: training still moves the module to its described form."""
        return any(step.unfolds(self.module) for step in gradual(self.history))

    @property
    def waiting(self) -> frozenset[Action]:
        """Growths that the description offers but that have to wait for an earlier one."""
        steps = [step for step in gradual(self.history) if step.unfolds(self.module)]
        growths = () if self.architecture is None or not steps else offered(self.architecture)
        return frozenset(one for one in growths if any(step.holds_up(self.module, one) for step in steps))

    def advance(self, used: float) -> None:
        """Move gradual growths, before a step, to their positions at the used share `used` of the budget.

        All workers that train together call it with the same share.
        """
        for step in gradual(self.history):
            step.advance(self.module, used)

    def is_finite(self) -> bool:
        """Return whether no parameter holds NaN or infinity, and no buffer NaN: attention masks hold infinities."""
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        found = [
            torch.isfinite(tensor).all() if name in parameters else ~torch.isnan(tensor).any()
            for name, tensor in self.module.state_dict().items()
            if tensor.is_floating_point() or tensor.is_complex()
        ]
        return not found or bool(torch.stack(found).all())


_NAMED: Final = 2
"""Number of refused places named in a message."""


def new_network(
    module: nn.Module,
    spec: OptimizerSpec,
    example_input: ExampleInput,
    insertion: Insertion,
    operations: Sequence[str] = (DEEPEN.name,),
) -> tuple[Network, str]:
    """Return the starting network, and the problem text of `starting_architecture`."""
    architecture, problem = starting_architecture(module, example_input, insertion, operations)
    return Network(module, build_optimizer(spec, module), architecture), problem


def starting_architecture(
    module: nn.Module, example_input: ExampleInput, insertion: Insertion, operations: Sequence[str]
) -> tuple[Architecture | None, str]:
    """Return a starting model's description, None where it has none, and the growth it does not support ('' if none).

    A model that does not support an operation is described for the operations before it; growth points come first.
    """
    with remembering(module, example_input):
        return _starting_architecture(module, example_input, insertion, operations)


def _starting_architecture(
    module: nn.Module, example_input: ExampleInput, insertion: Insertion, operations: Sequence[str]
) -> tuple[Architecture | None, str]:
    others = [name for name in operations if name != DEEPEN.name]
    architecture, problem = None, ""
    for count in range(len(others), -1, -1):
        try:
            architecture = describe(module, example_input, insertion, others[:count])
        except GrowthError as error:
            problem = str(error)
        else:
            break
    if architecture is not None and not any(one.kind in operations for one in offered(architecture)):
        why = f"the model will be trained as it is: {problem}"
        problem = why if problem else nowhere(module, example_input, operations, insertion)
    elif architecture is None:
        problem = f"the model will be trained as it is: {problem}"
    elif problem:
        done = " and ".join(each.participle for each in operations_of(architecture))
        left_out = " or ".join(operation(name).participle for name in others[count:])
        problem = f"the model will be {done}, not {left_out}: {problem}"
    return architecture, problem


def nowhere(
    module: nn.Module, example_input: ExampleInput, operations: Sequence[str], insertion: Insertion = Insertion.EXACT
) -> str:
    """Return why a described model has no place to grow by `operations`, and the remedy."""
    try:
        refused = [one for name in operations for one in _refused(module, example_input, name, insertion)]
    except GrowthError as error:
        why = str(error)
    else:
        more = f"; and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        lacks = " and ".join(_LACKS.get(name, f"nothing for {name}") for name in operations)
        named = "; ".join(f"{path!r}: {one}" for path, one in refused[:_NAMED])
        why = f"no place of it can grow ({named or (f'it has {lacks}' if lacks else 'no action is allowed')}{more})"
    others = [name for name in operation_names() if name not in operations]
    allow = f"allow {' or '.join(others)} in adaptation.actions, " if others else ""
    return (
        f"the model will be trained as it is: {why}; {allow}mark places with espalier_trainer.net2net.DeepenBlock, or "
        "see `espalier points`"
    )


_LACKS: Final = {
    DEEPEN.name: "no linear layer and no convolution",
    ADD_BLOCK.name: "no run of residual blocks",
    WIDEN.name: "no layer whose channels only linear layers and convolutions read",
}


def _refused(
    module: nn.Module, example_input: ExampleInput, name: str, insertion: Insertion
) -> list[tuple[str, Refusal]]:
    """Return the refusals of an operation, by layer."""
    if name == ADD_BLOCK.name:
        return [(one.layer, one) for one in refused_blocks(module, example_input, insertion)]
    if name == WIDEN.name:
        return list(refused_widenings(module, example_input).items())
    return list(insertion_points(module, example_input).refused.items()) if name == DEEPEN.name else []


def resumed_network(
    start: Network, checkpoint: Checkpoint, spec: OptimizerSpec, example_input: ExampleInput
) -> Network:
    """Return the network of a checkpoint, rebuilt from the starting network.

    Raises `CheckpointMismatchError` where the starting model is another than the checkpoint's.
    """
    state = checkpoint.state
    module, architecture = start.module, state.architecture
    history = state.growth or (() if architecture is None else history_of(architecture))
    try:
        if history:
            module = replay(module, history, example_input)
        if history and architecture is not None:
            check_equal(module, architecture, example_input)
        module.load_state_dict(checkpoint.model)
        optimizer = build_optimizer(spec, module)
        tensors = checkpoint.under(OPTIMIZER_PREFIX)
        load_optimizer_state(optimizer, module, state.optimizer_groups, tensors, state.optimizer_values)
    except (GrowthError, RuntimeError, ValueError, KeyError) as error:
        lines = str(error).strip().splitlines()
        raise CheckpointMismatchError(
            f"the checkpoint does not fit the job's model ({' '.join(line.strip() for line in lines[:3])}); "
            "if the model's code was changed, remove the checkpoint folder to begin again"
        ) from error
    if architecture is not None:
        architecture = with_targets(architecture, start.architecture, history)
    network = Network(module, optimizer, architecture, history)
    return network.computed_as(state.execution, example_input)


def with_targets(
    architecture: Architecture, start: Architecture | None, history: tuple[GrowthStep, ...]
) -> Architecture:
    """Return the description of a checkpoint, with the targets of operations that the job has allowed since."""
    if start is None or set(operations_of(start)) <= set(operations_of(architecture)):
        return architecture
    grown = start
    try:
        for growth in history:
            grown = growth.action.carried_out(grown)
    except GrowthError:
        return architecture
    # If the insertion has changed, the description grown here is not that of this model.
    return grown if grown.layers == architecture.layers else architecture


OPTIMIZER_PREFIX = "optimizer."
"""Prefix of optimizer tensors in `training.safetensors`, which also holds those of `randomness`."""
