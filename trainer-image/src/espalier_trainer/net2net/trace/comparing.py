"""What of a model computes something else because there is more of it: by a number, or by the new parameters.

A forward that divides by the number of its blocks or parameters, or adds a term over all of them, runs the same
operations after growth, but not on the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from espalier_trainer.net2net.refusals import Reason
from espalier_trainer.net2net.trace.graph import Graph, Operation
from espalier_trainer.net2net.trace.tracing import Traces


def change(before: Traces, after: Traces, again: Callable[[], Traces]) -> Reason | None:
    """Return what the first call outside of what was grown does that computes something else than before, or None.

    `again` traces the grown model once more: what differs between these two traces (a counter of calls) is not the
    growth's doing.
    """
    return _change(before.training, after.training, lambda: again().training) or _change(
        before.evaluation, after.evaluation, lambda: again().evaluation
    )


def _change(before: Graph, after: Graph, again: Callable[[], Graph]) -> Reason | None:
    old, new = _ungrown(before), _ungrown(after)
    for name, operation in new.items():
        if operation.operator in ("Parameter", "Buffer") and name not in old:
            return Reason(
                f"the model's forward reads {name!r}, which growth adds, outside of the module that holds it, as a sum "
                "over all parameters or their count does",
                "compute such a term in the loss, or over layers that you name",
                operation.written_at,
            )
    other = {
        name
        for name, operation in old.items()
        if name in new and len(new[name].inputs) == len(operation.inputs) and new[name].arguments != operation.arguments
    }
    if not other:
        return None
    steady = _ungrown(again())
    for name, operation in old.items():
        if name in other and name in steady and steady[name].arguments == new[name].arguments:
            return Reason(
                f"{operation.operator} {name!r} of the model's forward is called with other numbers then "
                f"({operation.arguments} before, {new[name].arguments} after), as where it counts modules",
                "compute such a number once, in __init__",
                operation.written_at,
            )
    return None


def _ungrown(graph: Graph) -> dict[str, Operation]:
    """Return the operations that growth has not added; what they read may be grown."""
    return {name: operation for name, operation in graph.operations.items() if operation.stack is None}
