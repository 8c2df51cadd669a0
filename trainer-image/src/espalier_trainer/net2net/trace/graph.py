"""The trace of a model as plain data: the recorder fills it, the growth operations read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from espalier_core.growth.architecture import AttributeValue, Layer
from espalier_trainer.net2net.trace.reading import ValueReading


@dataclass(frozen=True, slots=True)
class Operation:
    """One executed operation: a leaf module's call or a torch function's."""

    name: str
    """Unique: the module's path (`conv1`, a second call `conv1:1`), or the function's (`layer1.0.add`)."""
    operator: str
    attributes: Mapping[str, AttributeValue]
    inputs: tuple[str, ...]
    parameters: int
    """Trainable scalars first used here."""
    scope: str
    """Path of the module in whose forward it runs; for a leaf module its own path."""
    module: str | None = None
    """Path of the leaf module, `None` for a function."""
    shape: tuple[int, ...] | None = None
    """Shape of the output; `None` where it is not one tensor."""
    stack: str | None = None
    """What growth added it: a key of `Graph.stacks`, `None` for an operation of the starting model."""
    arguments: str = field(default="", compare=False)
    """All non-tensor arguments of a function as text; the description has only some of them."""
    in_hook: bool = field(default=False, compare=False)
    """One of the model's own forward hooks called it."""
    written_at: str = field(default="", compare=False)
    """File and line of the call of a function, or of the first use of a parameter, `model.py:12`; else empty."""


def without_looks(
    operations: Mapping[str, Operation], looked_at: Set[str], outputs: tuple[str, ...]
) -> dict[str, Operation]:
    """Return the operations without the functions of which nothing but reads of their values (`looked_at`) comes.

    The scalars of a parameter that only these use count at its layer.
    """
    left, only_read = dict(operations), set(looked_at)
    readers = Counter(given for one in operations.values() for given in set(one.inputs))
    for name, one in reversed(list(operations.items())):
        if name not in only_read or readers[name] or name in outputs:
            continue
        if one.module is not None or one.operator == "Input":
            continue
        del left[name]
        for given in set(one.inputs):
            readers[given] -= 1
            only_read.add(given)
        layer = name.rpartition(".")[0]
        if one.parameters and layer in left:
            left[layer] = replace(left[layer], parameters=left[layer].parameters + one.parameters)
    return left


@dataclass(frozen=True, slots=True)
class Span:
    """One call of a module: the operations that made the tensors among its arguments, and among its results.

    A tensor that no operation made (a weight that is passed on) has the name "".
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """The blocks grown at one place: the operation that they read, and the one that they return."""

    input: str
    output: str


@dataclass(frozen=True)
class Graph:
    """Operations in execution order, and what the modules did."""

    operations: Mapping[str, Operation]
    outputs: tuple[str, ...]
    calls: Mapping[str, int]
    """How often each module was called (those inside a leaf module not counted)."""
    results: Mapping[str, str]
    """For each module that returned one tensor: the operation that made it, without blocks grown after the module."""
    stacks: Mapping[str, Stack]
    """By the path of a `GrownStack`, or of a block that growth added (`blocks.4`, its second call `blocks.4:1`)."""
    real: bool = False
    """The model ran on its own device with real data, because it cannot run on meta tensors."""
    data_dependent: ValueReading | None = None
    """Where a tensor's values decide what is executed, if they do; those of masks and lengths do not count."""
    answers: Mapping[ValueReading, Any] = field(default_factory=dict, compare=False, repr=False)
    """What the places that read values got, for runs without data (`reading.Answering`); empty if values decide."""
    severed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """File and line of the calls that keep gradients out (`torch.no_grad()`, `detach`), by the module that does."""
    spans: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)
    """The calls of each module that is no single operation, in order."""
    consumers: Mapping[str, tuple[str, ...]] = field(init=False)
    """For each operation: those that read it, in execution order."""
    _before: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """For each operation that is the output of a stack: the one that the stack reads."""

    def __post_init__(self) -> None:
        readers: dict[str, list[str]] = {name: [] for name in self.operations}
        for operation in self.operations.values():
            for name in dict.fromkeys(operation.inputs):
                readers[name].append(operation.name)
        object.__setattr__(self, "consumers", {name: tuple(found) for name, found in readers.items()})
        object.__setattr__(self, "_before", {stack.output: stack.input for stack in self.stacks.values()})

    def unread(self) -> bool:
        """Return whether a layer with parameters is computed that no output depends on."""
        reached = self.reached()
        return any(
            one.module is not None and one.parameters and name not in reached for name, one in self.operations.items()
        )

    def reached(self, *names: str) -> set[str]:
        """Return these operations and those that they depend on; those of the outputs where none is given."""
        reached, waiting = set(names or self.outputs), list(names or self.outputs)
        while waiting:
            new = [name for name in self.operations[waiting.pop()].inputs if name not in reached]
            reached.update(new)
            waiting += new
        return reached

    def computes_as(self, other: Graph) -> bool:
        """Return whether both call the same modules, and make their outputs by the same calls with the same numbers."""
        return self.calls == other.calls and self._made() == other._made()

    def _made(self) -> list[tuple[object, ...]]:
        """Return the operations that outputs depend on, their inputs by number: names count what only a log reads."""
        reached = self.reached()
        number = {name: place for place, name in enumerate(name for name in self.operations if name in reached)}
        return [
            (one.operator, one.scope, one.module, one.arguments, one.shape, [number[given] for given in one.inputs])
            for one in (self.operations[name] for name in number)
        ] + [(number[name],) for name in self.outputs]

    def ungrown(self) -> Graph:
        """Return the graph without the operations that growth added, as it was before."""
        original = self._original
        return Graph(
            operations={
                name: replace(operation, inputs=tuple(map(original, operation.inputs)))
                for name, operation in self.operations.items()
                if operation.stack is None
            },
            outputs=tuple(map(original, self.outputs)),
            calls=self.calls,
            results={path: original(name) for path, name in self.results.items() if not self._grown(path)},
            stacks={},
            real=self.real,
            data_dependent=self.data_dependent,
            answers=self.answers,
            severed=self.severed,
            spans={
                path: tuple(Span(tuple(map(original, one.inputs)), tuple(map(original, one.outputs))) for one in spans)
                for path, spans in self.spans.items()
                if not self._grown(path)
            },
        )

    def _original(self, name: str) -> str:
        """Return the operation of the starting model that an operation, the output of a stack, began with."""
        while name in self._before:
            name = self._before[name]
        return name

    def _grown(self, path: str) -> bool:
        return any(path == stack or path.startswith(f"{stack}.") for stack in self.stacks)

    def ordered(self) -> tuple[Operation, ...]:
        """Return the operations with what was grown directly after the operation that was there before it."""
        grown: dict[str, list[Operation]] = {}
        for operation in self.operations.values():
            if operation.stack is not None:
                grown.setdefault(self._original(self.stacks[operation.stack].input), []).append(operation)
        order: list[Operation] = []
        waiting = [operation for operation in self.operations.values() if operation.stack is None]
        for operation in waiting:
            order.append(operation)
            order.extend(grown.pop(operation.name, []))
        return tuple(order)

    def layers(self) -> tuple[Layer, ...]:
        """Return the executed operations as layers of a description, in the order of `ordered`."""
        return tuple(
            Layer(
                name=operation.name,
                operator=operation.operator,
                attributes=dict(operation.attributes),
                inputs=operation.inputs,
                parameters=operation.parameters,
            )
            for operation in self.ordered()
        )
