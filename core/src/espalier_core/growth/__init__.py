"""Growth of a network on its description alone: one module for each growth operation, and one table of them.

`espalier_trainer.net2net` carries the operations out on modules, with the same table.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Final

from pydantic import AfterValidator, WithJsonSchema

from espalier_core.growth.architecture import Architecture
from espalier_core.growth.operation import GrowthOperation
from espalier_core.registry import Registry

_BUILT_IN: Final = {
    "Deepen": "espalier_core.growth.deepen:DEEPEN",
    "Widen": "espalier_core.growth.widen:WIDEN",
    "AddBlock": "espalier_core.growth.block:ADD_BLOCK",
}

OPERATIONS: Final[Registry[GrowthOperation]] = Registry("growth operation", "espalier.growth", _BUILT_IN)

NOTHING: Final = "Nothing"
"""The name of the action that does not grow the model."""


@cache
def operation(name: str) -> GrowthOperation:
    """Return the operation of this name; raise `RegistryError` if it is unknown or cannot be loaded."""
    return OPERATIONS.load(name)


@cache
def operation_names() -> tuple[str, ...]:
    """Return the names of all operations, those of installed packages last."""
    return OPERATIONS.names()


def operations_of(architecture: Architecture) -> Iterator[GrowthOperation]:
    """Yield the operations whose targets are in the description, in the order of the table.

    Installed packages may add operations that it does not name; these are not loaded.
    """
    for name in dict.fromkeys((*_BUILT_IN, *(architecture.targets or ()))):
        if operation(name).is_described(architecture):
            yield operation(name)


def target_counts(architecture: Architecture) -> str:
    """Return the number of targets of each operation: `3 growth points and 2 groups of channels`."""
    counts = [(len(each.targets(architecture)), each.targets_are) for each in operations_of(architecture)]
    return " and ".join(f"{count} {name}" for count, name in counts if count or name == counts[0][1])


OperationName = Annotated[
    str,
    AfterValidator(OPERATIONS.check),
    WithJsonSchema(
        {
            "type": "string",
            "enum": list(_BUILT_IN),
            "description": "\n\n".join(
                [
                    "The kinds of growth that a job allows.",
                    *(f"`{name}`: {operation(name).summary}" for name in _BUILT_IN),
                ]
            ),
        }
    ),
]
"""The name of an operation. Schemas name the built-in ones: they cannot know what is installed."""
