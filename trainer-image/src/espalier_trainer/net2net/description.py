"""The description of a model in the words that all parts of Espalier share."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from espalier_core.growth import described, operation_names
from espalier_core.growth.architecture import Architecture, GrowthError
from espalier_core.growth.deepen import DEEPEN
from espalier_core.types.job import Insertion
from espalier_trainer.net2net.history import Traced, step_of
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.net2net.trace.tracing import trace

__all__ = ["ExampleInput", "describe"]


def describe(
    model: nn.Module,
    example_input: ExampleInput,
    insertion: Insertion = Insertion.EXACT,
    operations: Iterable[str] = (),
    *,
    before: Architecture | None = None,
) -> Architecture:
    """Return the layers of `model` in execution order, its edges and what can be grown; the model is not changed.

    Growth points are always included; `operations` names other growth operations whose targets are, too (`Widen`:
    groups of channels). With `before`, the description from before the model grew, targets are those of the same
    operations, and are not tried again.

    Growing for real and on the description commute:
    `describe(deepen(model, p, x, i), x, i) == deepened(describe(model, x, i), p)`, and likewise for every operation.
    After blocks were added, this needs `before`: without it, it is measured again how far a growth point may look.
    `insertion` determines what the next growth would add. The layers are those of the model now, grown or not.

    A model whose execution depends on tensor values is described as it ran on the example, in call order, and has
    growth points only where it marks them, and nothing to widen. Raises `GrowthError` where the model cannot be run on
    the example, or returns no tensor that is found, or targets cannot be tried.
    """
    graph = trace(model, example_input)
    if not graph.outputs:
        raise GrowthError(
            f"none of what {type(model).__name__} returns is a tensor that it has computed; return a tensor, or a "
            "tuple, list, dictionary or dataclass of tensors"
        )
    traced = Traced(model, graph, example_input, insertion)
    architecture = Architecture(layers=graph.layers(), outputs=graph.outputs)
    if before is not None:
        operations = (each.name for each in described(before))
    for name in sorted({DEEPEN.name, *operations}, key=operation_names().index):
        architecture = step_of(name).described(traced, architecture, before)
    return Architecture.model_validate(dict(architecture))
