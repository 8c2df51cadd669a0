"""Weight distillation: the smaller model of those weights of the larger that survive (cf. Lin et al. 2021, 2009.09152).

Lin et al. predict a student's weights from the teacher's by learnt maps. Here none is needed: growth left every layer
of the smaller model in the larger one, under its name, and those have been trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from espalier_core.growth.architecture import WEIGHT_OPERATORS, Architecture
from espalier_trainer.net2net.optimizer import construct, hand_over
from espalier_trainer.optimizers.layout import lay_moments


class ShrinkError(ValueError):
    """A model cannot be taken back to a smaller one. The message names the parameter and what is wrong with it."""


def surviving(tensors: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Return the tensors with these names; raises `ShrinkError` if one is missing or has another shape."""
    found = {}
    for name, shape in shapes.items():
        if name not in tensors:
            raise ShrinkError(f"{name!r} is in the smaller model, not in the larger; it did not grow from it")
        if tuple(tensors[name].shape) != tuple(shape):
            raise ShrinkError(
                f"{name!r} is {tuple(tensors[name].shape)} in the larger model and {tuple(shape)} in the smaller: "
                "only layers that were added can be taken out again"
            )
        found[name] = tensors[name]
    return found


@torch.no_grad()
def fill(smaller: nn.Module, larger: nn.Module) -> None:
    """Give `smaller` the weights and buffers that `larger` has under the same names, in place.

    Raises `ShrinkError`, with nothing changed, where one is missing or of another shape: `larger` is then not grown
    from `smaller`, or was widened, which removing layers cannot undo.
    """
    found = surviving(larger.state_dict(), {name: tensor.shape for name, tensor in smaller.state_dict().items()})
    smaller.load_state_dict({name: tensor.clone() for name, tensor in found.items()})


def shrink_optimizer(
    optimizer: torch.optim.Optimizer,
    larger: nn.Module,
    smaller: nn.Module,
    *,
    schedulers: Iterable[object] = (),
) -> torch.optim.Optimizer:
    """Return an optimizer like `optimizer` over `smaller`, with the state of the parameters that survived (by name).

    Moments are those of the same weights in another network: right in scale, and forgotten within some ten steps of
    Adam's first moment. Same class and groups. `optimizer` keeps working on `larger`; `schedulers`, hooks and
    attributes are handed over as by `grow_optimizer`.
    """
    kept = dict(smaller.named_parameters())
    names = {id(parameter): name for name, parameter in larger.named_parameters()}
    groups = []
    pairs: list[tuple[Tensor, Tensor]] = []
    for group in optimizer.param_groups:
        survivors = [
            (parameter, kept[names[id(parameter)]]) for parameter in group["params"] if names.get(id(parameter)) in kept
        ]
        pairs += survivors
        options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        groups.append({**options, "params": [new for _, new in survivors]})
    shrunk = construct(type(optimizer), [group for group in groups if group["params"]], optimizer.defaults)
    for old, new in pairs:
        if old in optimizer.state:
            shrunk.state[new] = {
                key: value.detach().clone() if isinstance(value, Tensor) else value
                for key, value in optimizer.state[old].items()
            }
    lay_moments(shrunk)
    hand_over(optimizer, shrunk, dict(pairs), schedulers)
    return shrunk


def readers(larger: Architecture, smaller: Architecture) -> tuple[str, ...]:
    """Return the layers with weights of `smaller` that read one which only `larger` has, in execution order.

    Operations in between (activations, batch norms, pooling, sums) are skipped. These neighbours can take over the
    function of a removed block.
    """
    survivors = {layer.name for layer in smaller.layers}
    reached: set[str] = set()
    """Layers whose output depends on a removed one with no kept weight in between."""
    found = []
    for layer in larger.layers:
        removed = layer.operator in WEIGHT_OPERATORS and layer.name not in survivors
        touched = removed or any(name in reached for name in layer.inputs)
        if touched and layer.operator in WEIGHT_OPERATORS and not removed:
            found.append(layer.name)
        elif touched:
            reached.add(layer.name)
    return tuple(found)
