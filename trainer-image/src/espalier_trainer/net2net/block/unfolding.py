"""Gradual growth of a run of blocks: two copies that first compute the same, and unfold to a run twice as long.

Let h be the run's input, B₁ and B₂ its copies, and g the *gate*, which training moves from 0 to 1:

    h₁ = h  + t (B₁(h) - h)
    h₂ = h₁ + t (B₂(i) - i),    i = h + g (h₁ - h),    t = 1 / (2 - g)

The closing parameters of all blocks are multiplied by (2 - g) / 2. With g = 0 both copies read h, and each adds half of
the run's change: h₂ = B(h), so the growth changes no output. With g = 1 the second copy reads the output of the first,
t is 1, and the two are the run that `insertion: Scaled` makes at once. All blocks learn from the first step on.

The gate is a buffer, so it travels with the weights. `advance` moves it by the used share of the budget, in all workers
alike. A trace sees the model fully unfolded (`blocks.plainly`).

Hooks of the blocks mix the inputs of the copies. So a block that is recomputed on its own in the backward pass
(gradient checkpointing around its call) would read another input than before: that is refused. Checkpointing around the
forward of a block (`training.gradientCheckpointing`), or around the whole run, is correct.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from espalier_core.growth.architecture import GrowthError
from espalier_trainer.net2net.block.insertion import BlockPlace, multiply
from espalier_trainer.net2net.blocks import is_plain
from espalier_trainer.net2net.gradients import both_passes
from espalier_trainer.net2net.modules import ExampleInput, copied, device_of

logger = logging.getLogger(__name__)

SHARE: Final = 0.15
"""Share of the budget over which a run unfolds; at most half of the rest of the budget."""
NAME: Final = "unfolding"
"""Name of the child of the first new block that holds the gate."""
_NOT_BEGUN: Final = -1.0


class Unfolding(nn.Module):
    """The gate of a run: a buffer [g, used share of the budget when it began to move, or -1]."""

    gate: Tensor

    def __init__(self, closing: Mapping[str, frozenset[str]]) -> None:
        """`closing` names the closing parameters of all blocks of both copies, by the path of their block."""
        super().__init__()
        self.closing = dict(closing)
        self.register_buffer("gate", torch.tensor([0.0, _NOT_BEGUN], dtype=torch.float64))
        self.over = False
        """Whether the gate is open, as a Python value that needs no synchronisation with the device."""
        self.given: Tensor | None = None
        """The run's input; like the next two, set only while the run computes."""
        self.stream: Tensor | None = None
        """A copy's input on the residual stream, to which it adds its change."""
        self.read: Tensor | None = None
        """The tensor that the copy reads."""

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self.over = float(self.gate[0]) >= 1

    def moved(self, used: float) -> float:
        """Move the gate to its position at the budget's used share; return the factor for closing parameters."""
        before, began = self.gate.tolist()
        began = used if began < 0 else began
        share = min(SHARE, (1 - began) / 2)
        after = max(before, min(1.0, (used - began) / share)) if math.isfinite(share) and share > 0 else 1.0
        self.gate.copy_(torch.tensor([after, began], dtype=torch.float64))
        self.over = after >= 1
        return float((2 - after) / (2 - before))

    def check_order(self) -> None:
        """Raise `GrowthError` in a backward pass: the part of the run before this one has not been recomputed.

        Outside a backward pass, that part was left out (stochastic depth).
        """
        if torch._C._current_graph_task_id() != -1:
            raise GrowthError(
                f"the run of blocks {next(iter(self.closing))!r} unfolds, and gradient checkpointing around the calls "
                "of its blocks recomputes each on its own, without the run's input; use another `insertion` than "
                "Unfold, or a checkpoint around the forward of each block, as training.gradientCheckpointing does"
            )


def unfold(model: nn.Module, place: BlockPlace, copies: Sequence[str]) -> None:
    """Start the unfolding of the run of `model` that was continued by `copies`, one of each of its blocks, in place.

    Raises `GrowthError` where a module of the block has the name of the gate.
    """
    names = dict(zip(place.run.blocks, place.closing, strict=True))
    gate = Unfolding(names | dict(zip(copies, place.closing, strict=True)))
    holder = model.get_submodule(copies[0])
    if hasattr(holder, NAME):
        raise GrowthError(f"{copies[0]!r} has an attribute {NAME!r}, which `insertion: Unfold` needs; rename it")
    holder.add_module(NAME, gate.to(device_of(model)))
    for blocks, second in ((place.run.blocks, False), (copies, True)):
        model.get_submodule(blocks[0]).register_forward_pre_hook(_Enter(gate, place.entry, second), with_kwargs=True)
        model.get_submodule(blocks[-1]).register_forward_hook(_Leave(gate, second))


def check_recomputing(model: nn.Module, example_input: ExampleInput) -> None:
    """Raise `GrowthError` where a step of `model` recomputes a block of an unfolding run on its own."""
    for device in ("meta", None):
        try:
            both_passes(copied(model) if device is None else model, example_input, training=True, device=device)
            return
        except GrowthError:
            raise
        # The user's forward, or torch's backward pass, may raise anything on tensors without data or in train mode.
        except Exception:
            logger.debug("a step of %s cannot be tried", type(model).__name__, exc_info=True)


def fold(model: nn.Module, blocks: Collection[str]) -> None:
    """End the unfolding of the run that contains these blocks of `model`, in place: open its gate and remove it."""
    for holder, gate in [found for found in _gates(model) if not found[1].closing.keys().isdisjoint(blocks)]:
        _move(model, gate, math.inf)
        for path in gate.closing:
            _unhook(model.get_submodule(path))
        delattr(holder, NAME)


def advance(model: nn.Module, used: float) -> None:
    """Move the gates of `model` to their positions at the used share `used` of the budget."""
    for _, gate in _gates(model):
        _move(model, gate, used)


def unfolding(model: nn.Module) -> frozenset[str]:
    """Return the paths of the blocks of `model` whose gates are not open yet."""
    return frozenset(path for _, gate in _gates(model) if not gate.over for path in gate.closing)


def _gates(model: nn.Module) -> Iterator[tuple[nn.Module, Unfolding]]:
    """Yield the gates of a model, each with the block that holds it."""
    for module in model.modules():
        if isinstance(found := module._modules.get(NAME), Unfolding):
            yield module, found


def _move(model: nn.Module, gate: Unfolding, used: float) -> None:
    if gate.over:
        return
    factor = gate.moved(used)
    for path, names in gate.closing.items():
        if factor != 1:
            multiply(model.get_submodule(path), names, factor)
        if gate.over:
            _unhook(model.get_submodule(path))


class _Enter:
    """Hook before the first block of a copy; changes the input of the second copy."""

    def __init__(self, gate: Unfolding, entry: int, second: bool) -> None:
        self.gate, self.entry, self.second = gate, entry, second

    def __call__(self, _block: nn.Module, args: Any, kwargs: Any) -> Any:
        if is_plain() or self.gate.over:
            return None
        leaves, shape = tree_flatten((args, kwargs))
        place = [number for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor)][self.entry]
        gate, states = self.gate, leaves[place]
        read = states
        if not self.second:
            gate.given = states
        elif gate.given is not None:
            read = gate.given + gate.gate[0] * (states - gate.given)
        else:
            gate.check_order()
        gate.stream, gate.read = states, read
        leaves[place] = read
        return tree_unflatten(leaves, shape)


class _Leave:
    """Hook after the last block of a copy; scales the change that it adds."""

    def __init__(self, gate: Unfolding, second: bool) -> None:
        self.gate, self.second = gate, second

    def __call__(self, _block: nn.Module, _args: Any, result: Any) -> Any:
        gate = self.gate
        if is_plain() or gate.over:
            return None
        if gate.stream is None:
            gate.check_order()
            return None
        leaves, shape = tree_flatten(result)
        place = next(number for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        leaves[place] = gate.stream + (leaves[place] - gate.read) / (2 - gate.gate[0])
        gate.stream = gate.read = None
        if self.second:
            gate.given = None
        return tree_unflatten(leaves, shape)


def _unhook(block: nn.Module) -> None:
    """Remove the hooks of an unfolding; handles of hooks do not survive a copy of the model."""
    for hooks, kind in ((block._forward_pre_hooks, _Enter), (block._forward_hooks, _Leave)):
        for key in [key for key, hook in hooks.items() if isinstance(hook, kind)]:
            del hooks[key]
            block._forward_pre_hooks_with_kwargs.pop(key, None)
