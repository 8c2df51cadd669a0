"""Description of a model in the types shared by all parts of Espalier, and loading of a grown state dict.

The growth is read from the names and shapes of a state dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from espalier_core.growth import operation_names, operations_of
from espalier_core.growth.architecture import Architecture, GrowthError
from espalier_core.growth.deepen import DEEPEN
from espalier_core.types.job import Insertion
from espalier_trainer.net2net.block.points import add_block, block_points
from espalier_trainer.net2net.deepening.deepen import deepen, growth_points
from espalier_trainer.net2net.history import Traced, step_of
from espalier_trainer.net2net.modules import ExampleInput, copied
from espalier_trainer.net2net.trace.tracing import trace
from espalier_trainer.net2net.widening.widen import widen, widening_groups


def describe(
    model: nn.Module,
    example_input: ExampleInput,
    insertion: Insertion = Insertion.EXACT,
    operations: Iterable[str] = (),
    *,
    before: Architecture | None = None,
) -> Architecture:
    """Return the layers of `model` in execution order, its edges and its growth targets; the model is not changed.

    Growth points are always included; `operations` names other growth operations whose targets are included, too
    (`Widen`: groups of channels). With `before`, the description from before the model grew, the targets are those of
    the same operations, and are not tried again.

    Growing the model and growing its description commute:
    `describe(deepen(model, p, x, i), x, i) == deepened(describe(model, x, i), p)`, and likewise for every operation.
    After blocks were added, this needs `before`: without it, the reach of a growth point is measured again.
    `insertion` is the kind of the next growth. The layers are those of the model now, grown or not.

    A model whose execution depends on tensor values is described as it ran on the example, in call order. It has growth
    points only at its marks, and nothing to widen. Raises `GrowthError` where the model cannot be run on the example,
    where no tensor is found in its result, or where targets cannot be tried.
    """
    graph = trace(model, example_input)
    if not graph.outputs:
        raise GrowthError(
            f"{type(model).__name__} returns no tensor that it has computed; return a tensor, or a "
            "tuple, list, dictionary or dataclass of tensors"
        )
    traced = Traced(model, graph, example_input, insertion)
    architecture = Architecture(layers=graph.layers(), outputs=graph.outputs)
    if before is not None:
        operations = (each.name for each in operations_of(before))
    for name in sorted({DEEPEN.name, *operations}, key=operation_names().index):
        architecture = step_of(name).described(traced, architecture, before)
    return Architecture.model_validate(dict(architecture))


State = Mapping[str, Tensor]
_Way = Callable[[nn.Module, State, ExampleInput], nn.Module]


@torch.inference_mode(False)
def load_grown(model: nn.Module, state_dict: State, example_input: ExampleInput) -> nn.Module:
    """Return a copy of `model` with the state `state_dict`, grown like the model that the state was taken from.

    `model` is the constructor's result, and is not changed; `example_input` is one batch as its forward takes it.
    Layers, blocks and widths are read from the names and shapes of the tensors, and all tensors are loaded (strictly).
    The state of a model that has not grown can be loaded, too.

    Raises `GrowthError` where the state is not that of this model, grown by `deepen`, `add_block` and `widen`.
    """
    failure: Exception | None = None
    for ways in ((), (_deepened, _lengthened, _widened), (_lengthened, _deepened, _widened)):
        grown = copied(model)
        try:
            for way in ways:
                grown = way(grown, state_dict, example_input)
            grown.load_state_dict(state_dict)
        except RuntimeError as error:
            failure = error
        else:
            return grown
    raise GrowthError(
        f"this is not the state of a grown {type(model).__name__} ({' '.join(str(failure).split())[:300]}); give the "
        "model as its constructor returns it, with the arguments that it had before growth"
    ) from failure


def _deepened(model: nn.Module, state: State, example_input: ExampleInput) -> nn.Module:
    for point in growth_points(model, example_input):
        stack = f"{point.block}."
        held = {name.removeprefix(stack).partition(".")[0] for name in state if name.startswith(stack)}
        for number in range(point.grown, len(held)):
            own = {name: tensor for name, tensor in state.items() if name.startswith(f"{stack}{number}.")}
            normed = any(".norm." in name for name in own)
            kernels = [tensor.shape[2:] for tensor in own.values() if tensor.dim() > 2]
            model = deepen(
                model,
                point.id,
                example_input,
                Insertion.IDENTITY_BATCH_NORM if normed else Insertion.EXACT,
                pointwise=all(max(kernel) == 1 for kernel in kernels) if kernels else None,
            )
    return model


def _lengthened(model: nn.Module, state: State, example_input: ExampleInput) -> nn.Module:
    for insertion in (Insertion.EXACT, Insertion.SCALED):
        for run in [point.id for point in block_points(model, example_input, insertion)]:
            while (new := _next(model, run, example_input, insertion)) and all(
                any(name.startswith(f"{path}.") for name in state) for path in new
            ):
                model = add_block(model, run, example_input, insertion)
    return model


def _next(model: nn.Module, run: str, example_input: ExampleInput, insertion: Insertion) -> tuple[str, ...]:
    """Return the paths of the blocks that one more growth of a run would add."""
    points = block_points(model, example_input, insertion)
    return tuple(
        f"{point.stem}{point.number + place}"
        for point in points
        if point.id == run
        for place in range(len(point.copied))
    )


def _widened(model: nn.Module, state: State, example_input: ExampleInput) -> nn.Module:
    for group in widening_groups(model, example_input):
        name = f"{group.id}.weight"
        own, wanted = model.state_dict().get(name), state.get(name)
        if own is None or wanted is None or wanted.shape[0] <= own.shape[0]:
            continue
        width = group.width * wanted.shape[0] // own.shape[0]
        model = widen(model, group.id, width, example_input, seed=0)
    return model
