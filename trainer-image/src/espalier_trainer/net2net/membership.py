"""Which optimizer, and which of its groups, trains a parameter that growth added: that of a neighbour in the old model.

The choice depends on the two models only. So of several optimizers over one model (generator and discriminator, or one
for matrices and one for the rest), exactly one takes each new parameter, and none needs to know of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from espalier_trainer.net2net.blocks import STACK, GrownStack


def neighbours(old_model: nn.Module, new_model: nn.Module) -> dict[str, str]:
    """Return, for each parameter that only `new_model` has, the parameter of `old_model` that it is trained like.

    In this order: the parameter of the same kind (a weight with as many dimensions, a bias) of the layer that the new
    one was inserted after; the nearest of the same kind in the same part of the model; any of that layer; the nearest
    of all. Frozen parameters count only if there are no others. Empty where `old_model` has no parameters.
    """
    old, new = dict(old_model.named_parameters()), dict(new_model.named_parameters())
    trained = {name: parameter for name, parameter in old.items() if parameter.requires_grad} or old
    layers = dict(_layers_before(new_model))
    found: dict[str, str] = {}
    for place, (name, parameter) in enumerate(new.items()):
        if name in old or not trained:
            continue
        layer = next((layers[stack] for stack in layers if name.startswith(f"{stack}.")), None)
        near = list(_by_distance(list(new), place, layer, trained))
        found[name] = _nearest(name, parameter, layer, near, trained)
    return found


def _nearest(name: str, parameter: Tensor, layer: str | None, near: list[str], trained: Mapping[str, Tensor]) -> str:
    kind = (name.rpartition(".")[2], parameter.dim())
    part = (layer or name).partition(".")[0]
    alike = [other for other in near if (other.rpartition(".")[2], trained[other].dim()) == kind]
    own = [other for other in near if layer is not None and other.rpartition(".")[0] == layer]
    ways = (
        [other for other in alike if other in own],
        [other for other in alike if other.partition(".")[0] == part],
        own,
        near,
    )
    return next(way[0] for way in ways if way)


def _by_distance(names: list[str], place: int, layer: str | None, trained: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield the trained parameters: those before the new one, the nearest first, then those after it."""
    own = [index for index, name in enumerate(names) if layer is not None and name.rpartition(".")[0] == layer]
    start = own[-1] + 1 if own else place
    yield from (name for name in [*reversed(names[:start]), *names[start:]] if name in trained)


def _layers_before(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield for each stack of inserted blocks the path of the layer that it was inserted after."""
    for path, module in model.named_modules():
        if isinstance(module, GrownStack) and module.origin is not None:
            host, layer = module.origin
            # The model may have become a part of another: what precedes the host's path precedes the layer's.
            stack = f"{host}.{STACK}" if host else STACK
            yield path, path.removesuffix(stack) + layer
