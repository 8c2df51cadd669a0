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
from espalier_trainer.net2net import GrowthError, deepen, grow_optimizer, rebuild
from espalier_trainer.optimizers import build_optimizer, load_optimizer_state


@dataclass(frozen=True, slots=True)
class Network:
    """A module, its optimizer, and its description where it has one."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    architecture: Architecture | None
    """None where the module cannot be described; it is then trained, but never grown."""

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
        return Network(module, optimizer, describe(module, example_input, insertion))

    def is_finite(self) -> bool:
        """Tell whether no parameter or buffer holds NaN or infinity."""
        tensors = [t for t in self.module.state_dict().values() if t.is_floating_point()]
        return not tensors or bool(torch.stack([torch.isfinite(tensor).all() for tensor in tensors]).all())


def new_network(
    module: nn.Module, spec: OptimizerSpec, example_input: Tensor, insertion: Insertion
) -> tuple[Network, str]:
    """Return the starting network, and why it cannot grow ('' where it can)."""
    problem = ""
    architecture = None
    try:
        architecture = describe(module, example_input, insertion)
    except GrowthError as error:
        problem = str(error)
    return Network(module, build_optimizer(spec, module), architecture), problem


def resumed_network(start: Network, checkpoint: Checkpoint, spec: OptimizerSpec, example_input: Tensor) -> Network:
    """Return the network of a checkpoint, rebuilt from the starting network.

    Raises `CheckpointMismatchError` where the starting model is another than the checkpoint's.
    """
    state = checkpoint.state
    module = start.module
    try:
        if state.architecture is not None and state.architecture.growth_history:
            module = rebuild(module, state.architecture, example_input)
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
    return Network(module, optimizer, state.architecture)


OPTIMIZER_PREFIX = "optimizer."
"""Of optimizer tensors in `training.safetensors`, beside those of `randomness`."""
