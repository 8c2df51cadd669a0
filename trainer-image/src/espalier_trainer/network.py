"""The network in training: module, optimizer and description, which change together, when it grows or resumes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from espalier_api.architecture import WEIGHT_OPERATORS, Architecture
from espalier_api.job import Insertion, OptimizerSpec
from espalier_trainer.architecture import describe
from espalier_trainer.checkpoint import Checkpoint
from espalier_trainer.errors import CheckpointMismatchError
from espalier_trainer.net2net import (
    Deepened,
    Growth,
    GrowthError,
    Widened,
    deepen,
    grow_optimizer,
    plan_widening,
    rebuild,
    replay,
    widen_optimizer,
    widened,
)
from espalier_trainer.net2net.rebuild import check_equal, history_of
from espalier_trainer.optimizers import build_optimizer, load_optimizer_state


@dataclass(frozen=True, slots=True)
class Network:
    """A module, its optimizer, and its description where it has one."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    architecture: Architecture | None
    """None where the module cannot be described; it is then trained, but never grown."""
    history: tuple[Growth, ...] = ()
    """What was done to the starting module, in order."""

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

    def deepened(self, point_id: str, example_input: Tensor, insertion: Insertion) -> Network:
        """Return the network grown at `point_id`, computing the same; `GrowthError` where that cannot be.

        This network is left as it is.
        """
        module = deepen(self.module, point_id, example_input, insertion=insertion)
        optimizer = grow_optimizer(self.optimizer, self.module, module)
        growth = Deepened(point=point_id, insertion=insertion)
        return self._grown(module, optimizer, growth, example_input, insertion)

    def widened(self, group_id: str, width: int, example_input: Tensor, insertion: Insertion, seed: int) -> Network:
        """Return the network with `width` channels in a group, computing the same; raises `GrowthError` as `deepened`.

        `seed` says which channels are copied. `insertion` is what the description's growth points tell of.
        """
        plan = plan_widening(self.module, group_id, width, example_input, seed=seed)
        module = widened(self.module, plan)
        optimizer = widen_optimizer(self.optimizer, self.module, module, plan)
        growth = Widened(group=group_id, width=width, seed=seed)
        return self._grown(module, optimizer, growth, example_input, insertion)

    def _grown(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        growth: Growth,
        example_input: Tensor,
        insertion: Insertion,
    ) -> Network:
        before = self.architecture
        groups = None if before is None or before.channels is None else {group.id for group in before.channel_groups}
        description = describe(module, example_input, insertion, widening=groups is not None, tried=groups)
        return Network(module, optimizer, description, (*self.history, growth))

    def is_finite(self) -> bool:
        """Tell whether no parameter or buffer holds NaN or infinity."""
        tensors = [t for t in self.module.state_dict().values() if t.is_floating_point()]
        return not tensors or bool(torch.stack([torch.isfinite(tensor).all() for tensor in tensors]).all())


def new_network(
    module: nn.Module, spec: OptimizerSpec, example_input: Tensor, insertion: Insertion, *, widening: bool = False
) -> tuple[Network, str]:
    """Return the starting network, and why it cannot grow ('' where it can); `widening`: it may be widened.

    One that cannot be widened, though it may, is described as one that deepens.
    """
    problem = ""
    architecture = None
    for asked in (True, False) if widening else (False,):
        try:
            architecture = describe(module, example_input, insertion, widening=asked)
        except GrowthError as error:
            problem = str(error)
        else:
            break
    return Network(module, build_optimizer(spec, module), architecture), problem


def resumed_network(start: Network, checkpoint: Checkpoint, spec: OptimizerSpec, example_input: Tensor) -> Network:
    """Return the network of a checkpoint, rebuilt from the starting network.

    Raises `CheckpointMismatchError` where the starting model is another than the checkpoint's.
    """
    state = checkpoint.state
    module, architecture = start.module, state.architecture
    history = state.growth or (() if architecture is None else history_of(architecture))
    try:
        if any(not isinstance(growth, Deepened) for growth in history):
            module = replay(module, history, example_input)
            if architecture is not None:
                check_equal(module, architecture, example_input)
        elif architecture is not None and history:
            module = rebuild(module, architecture, example_input)
        module.load_state_dict(checkpoint.model)
        optimizer = build_optimizer(spec, module)
        tensors = {
            name.removeprefix(OPTIMIZER_PREFIX): tensor
            for name, tensor in checkpoint.training.items()
            if name.startswith(OPTIMIZER_PREFIX)
        }
        load_optimizer_state(optimizer, module, state.optimizer_groups, tensors, state.optimizer_values)
    except (GrowthError, RuntimeError, ValueError, KeyError) as error:
        lines = str(error).strip().splitlines()
        raise CheckpointMismatchError(
            f"the checkpoint does not fit the job's model ({' '.join(line.strip() for line in lines[:3])}); "
            "if the model's code was changed, remove the checkpoint folder to begin anew"
        ) from error
    return Network(module, optimizer, _with_groups(architecture, start.architecture, history), history)


def _with_groups(
    architecture: Architecture | None, start: Architecture | None, history: tuple[Growth, ...]
) -> Architecture | None:
    """Return the description of a checkpoint, with groups of channels where the job began to ask for them since."""
    if architecture is None or architecture.channels is not None or start is None or start.channels is None:
        return architecture
    grown = start
    for growth in history:
        if not isinstance(growth, Deepened):
            return architecture
        grown = grown.deepen(growth.point)
    # Not where the insertion is another than it was: then it is not this model that was grown on paper.
    return grown if grown.layers == architecture.layers else architecture


OPTIMIZER_PREFIX = "optimizer."
"""Of optimizer tensors in `training.safetensors`, beside those of `randomness`."""
