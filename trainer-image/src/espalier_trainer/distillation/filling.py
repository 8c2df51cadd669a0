"""Weight distillation: the smaller model takes the larger one's surviving weights (cf. Lin et al. 2021, 2009.09152).

Lin et al. predict a student's weights from the teacher's by learnt maps. Here none is needed: growth left every layer
of the smaller model in the larger one, under its name, and training has continued there.

The function of a removed block is folded into the layer that reads it. A block `g` was before a reader `A`: the larger
model computes `A g(x)`, the smaller can compute `A' x`. Where g is linear on its inputs (a linear layer, or a 1x1
convolution, whose activation cuts nothing off) `A' = A g` is the same function. Else no `A'` is; the least-squares one
over a few batches is the nearest, and where `g` is linear it is that very product, so one calculation does both:

    min over A'   sum over rows   | A' x - A g(x) |²  +  ridge | A' - A |²

rows being examples, or their patches for a convolution (padding included, so borders are right, too). Batch norms
are calibrated on the same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from espalier_core.growth.architecture import WEIGHT_OPERATORS, Architecture
from espalier_trainer.data.source import Data, EpochOrder
from espalier_trainer.net2net.blocks import STACK
from espalier_trainer.net2net.modules import mode
from espalier_trainer.net2net.optimizer import construct, hand_over
from espalier_trainer.optimizers.building import lay_moments
from espalier_trainer.training.network import Network


class ShrinkError(ValueError):
    """A model cannot be shrunk to a smaller one. The message names the parameter and the problem."""


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
    """Copy to `smaller`, in place, the weights and buffers that `larger` has under the same names.

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

    Moments belong to the same weights in another network: right in scale, and forgotten within some ten steps of
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
    """Return the layers with weights of `smaller` that read a layer which only `larger` has, in execution order.

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


RIDGE: Final = 1e-6
"""Share of the mean square of the reader's inputs: directions that the batches do not determine stay unchanged."""
ROWS: Final = 4
"""Minimum ratio of rows to unknowns: with fewer rows the fit would memorise them."""
WIDEST: Final = 4096
"""Maximum number of a reader's inputs, kernel positions counted; beyond it, solving takes too long."""
_CHUNK: Final = 1 << 22
"""Maximum number of values of patches in memory at once."""


Norm = nn.modules.batchnorm._BatchNorm
"""Batch norms, whose running statistics `recalibrate` estimates again for a model that lost layers."""


@torch.no_grad()
def fold(smaller: nn.Module, larger: nn.Module, readers: Sequence[str], batches: Sequence[Tensor]) -> tuple[str, ...]:
    """Fit the readers of `smaller`, in place, to their outputs in `larger`; return the fitted ones.

    Linear layers and ungrouped Conv2d with zero padding can be fitted; others are left to distillation. Both models run
    in eval mode, once for each reader (the fit of one reader is the input of the next).
    """
    fitted = []
    with mode(smaller, training=False), mode(larger, training=False):
        for name in readers:
            layer, original = smaller.get_submodule(name), larger.get_submodule(name)
            if not isinstance(layer, nn.Linear | nn.Conv2d) or not isinstance(original, nn.Linear | nn.Conv2d):
                continue
            if not _can_fit(layer):
                continue
            if _fit(layer, original, smaller, larger, batches):
                fitted.append(name)
    return tuple(fitted)


def _can_fit(layer: nn.Linear | nn.Conv2d) -> bool:
    if isinstance(layer, nn.Conv2d) and (
        layer.groups != 1 or isinstance(layer.padding, str) or layer.padding_mode != "zeros"
    ):
        return False
    return layer.weight[0].numel() < WIDEST


def _fit(
    layer: nn.Linear | nn.Conv2d,
    original: nn.Linear | nn.Conv2d,
    smaller: nn.Module,
    larger: nn.Module,
    batches: Sequence[Tensor],
) -> bool:
    """Fit one layer; return False if the batches have too few rows for it."""
    size = layer.weight[0].numel()
    count = 0
    weight = layer.weight.reshape(layer.weight.shape[0], size).double()
    gram = weight.new_zeros(size + 1, size + 1)
    moment = weight.new_zeros(size + 1, weight.shape[0])
    bias = layer.bias.double() if layer.bias is not None else weight.new_zeros(weight.shape[0])
    for inputs in batches:
        given, wanted = _input(smaller, layer, inputs), _output(larger, original, inputs)
        positions = wanted[0, 0].numel() if wanted.dim() > 2 else 1
        piece = max(1, _CHUNK // (positions * size))
        for part, aim in zip(torch.split(given, piece), torch.split(wanted, piece), strict=True):
            rows = _rows(layer, part).double()
            target = (aim.flatten(2).transpose(1, 2) if isinstance(layer, nn.Conv2d) else aim).reshape(
                -1, weight.shape[0]
            )
            error = target.double() - rows @ weight.T - bias
            rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
            gram += rows.T @ rows
            moment += rows.T @ error
            count += len(rows)
    if count < ROWS * (size + 1):
        return False
    ridge = RIDGE * gram[:-1, :-1].diagonal().mean().clamp_min(torch.finfo(torch.float32).tiny)
    penalty = torch.full_like(gram[0], float(ridge))
    if layer.bias is None:
        gram, moment, penalty = gram[:-1, :-1], moment[:-1], penalty[:-1]
    change = torch.linalg.solve(gram + penalty.diag(), moment)
    layer.weight += change[:size].T.reshape(layer.weight.shape).to(layer.weight.dtype)
    if layer.bias is not None:
        layer.bias += change[size].to(layer.bias.dtype)
    return True


def _rows(layer: nn.Linear | nn.Conv2d, inputs: Tensor) -> Tensor:
    """Return the inputs of each output position, as rows [outputs, inputs of the layer]."""
    if isinstance(layer, nn.Linear):
        return inputs.reshape(-1, layer.in_features)
    if isinstance(layer.padding, str):
        raise ValueError(f"padding {layer.padding!r} is not a number")
    patches = nn.functional.unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return patches.transpose(1, 2).reshape(-1, patches.shape[1])


def _input(model: nn.Module, layer: nn.Module, inputs: Tensor) -> Tensor:
    """Return the input of `layer` when `model` runs on `inputs`."""
    return _watched(model, inputs, layer.register_forward_pre_hook, lambda args: args[0])


def _output(model: nn.Module, layer: nn.Module, inputs: Tensor) -> Tensor:
    """Return the output of `layer` itself, without the layers grown after it."""
    grown = layer._modules.get(STACK)
    if grown is not None:
        return _input(model, grown, inputs)
    return _watched(model, inputs, layer.register_forward_hook, lambda args: args[1])


def _watched(
    model: nn.Module,
    inputs: Tensor,
    register: Callable[[Callable[..., None]], RemovableHandle],
    pick: Callable[[tuple[Any, ...]], Any],
) -> Tensor:
    seen: list[Any] = []

    def note(_module: nn.Module, *args: Any) -> None:
        seen.append(pick(args))

    watch = register(note)
    try:
        model(inputs)
    finally:
        watch.remove()
    found: Tensor = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    return found.detach()


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


_BATCHES: Final = 8
"""Number of training batches to estimate statistics and fit neighbours."""


def adjust(smaller: Network, large: Network, data: Data, order: EpochOrder, *, folding: bool) -> None:
    """Adjust `smaller` in place; `large` is the network that it was made from. With `folding`, also fit the readers."""
    batches = [data.train.batch(order.chosen(cursor), None)[0] for cursor in range(min(_BATCHES, len(order)))]
    recalibrate(smaller.module, batches)
    if folding and large.architecture is not None and smaller.architecture is not None:
        fold(smaller.module, large.module, readers(large.architecture, smaller.architecture), batches)
        recalibrate(smaller.module, batches)
