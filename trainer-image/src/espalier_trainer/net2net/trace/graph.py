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
    """Number of trainable scalars first used here."""
    scope: str
    """Path of the module whose forward runs it; for a leaf module its own path."""
    module: str | None = None
    """Path of the leaf module; None for a function."""
    shape: tuple[int, ...] | None = None
    """Shape of the output; None where it is not one tensor."""
    stack: str | None = None
    """Stack that it belongs to, a key of `Graph.stacks`; None for an operation of the starting model."""
    arguments: str = field(default="", compare=False)
    """All non-tensor arguments of a function as text; the description has only some of them."""
    in_hook: bool = field(default=False, compare=False)
    """Whether one of the model's own forward hooks called it."""
    written_at: str = field(default="", compare=False)
    """File and line of the call of a function, or of the first use of a parameter, `model.py:12`; else empty."""


def without_looks(
    operations: Mapping[str, Operation], looked_at: Set[str], outputs: tuple[str, ...]
) -> dict[str, Operation]:
    """Return the operations without functions whose only use is that Python reads values (`looked_at`).

    Nor are there constants that nothing reads: Mistral's cache makes one for each block, before all of them. Scalars of
    a parameter that only these functions use count at its layer.
    """
    left, only_read = dict(operations), set(looked_at)
    for name, one in operations.items():
        if one.operator not in ("Input", "Buffer") and not one.parameters and only_read.issuperset(one.inputs):
            only_read.add(name)
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
    """One call of a module: the operations that made the tensors in its arguments, and in its results.

    A tensor that no operation made (a weight that is passed on) has the name "".
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """The blocks grown at one place: the operation that they read, and the one whose output they replace."""

    input: str
    output: str


@dataclass(frozen=True)
class Graph:
    """Operations in execution order, and the calls and results of modules."""

    operations: Mapping[str, Operation]
    outputs: tuple[str, ...]
    calls: Mapping[str, int]
    """Number of calls of each module (modules inside a leaf module are not counted)."""
    results: Mapping[str, str]
    """Operation that made each module's result, where it is one tensor, before blocks grown after the module."""
    stacks: Mapping[str, Stack]
    """Stacks by path of a `GrownStack`, or of a block that growth added (`blocks.4`, its second call `blocks.4:1`)."""
    real: bool = False
    """Whether the model ran on its own device with real data, because it cannot run on meta tensors."""
    data_dependent: ValueReading | None = None
    """Place where a tensor's values decide the execution, None if nowhere; values of masks and lengths do not count."""
    answers: Mapping[ValueReading, Any] = field(default_factory=dict, compare=False, repr=False)
    """Values read at each place, for runs without data (`reading.Answering`); empty if values decide."""
    severed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """File and line of calls that keep gradients out (`torch.no_grad()`, `detach`), by the module that calls them."""
    spans: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)
    """Calls of each module that is not a single operation, in order."""
    consumers: Mapping[str, tuple[str, ...]] = field(init=False)
    """Readers of each operation, in execution order."""
    _before: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """For each operation that is the output of a stack, the operation that the stack reads."""

    def __post_init__(self) -> None:
        readers: dict[str, list[str]] = {name: [] for name in self.operations}
        for operation in self.operations.values():
            for name in dict.fromkeys(operation.inputs):
                readers[name].append(operation.name)
        object.__setattr__(self, "consumers", {name: tuple(found) for name, found in readers.items()})
        object.__setattr__(self, "_before", {stack.output: stack.input for stack in self.stacks.values()})

    def unread(self) -> bool:
        """Return whether the model computes a layer with parameters on which no output depends."""
        reached = self.reached()
        return any(
            one.module is not None and one.parameters and name not in reached for name, one in self.operations.items()
        )

    def reached(self, *names: str) -> set[str]:
        """Return these operations, or the outputs where none is given, with all operations that they depend on."""
        reached, waiting = set(names or self.outputs), list(names or self.outputs)
        while waiting:
            new = [name for name in self.operations[waiting.pop()].inputs if name not in reached]
            reached.update(new)
            waiting += new
        return reached

    def computes_as(self, other: Graph) -> bool:
        """Return whether both call the same modules, and compute outputs by the same calls with the same numbers."""
        return self.calls == other.calls and self._made() == other._made()

    def _made(self) -> list[tuple[object, ...]]:
        """Return the operations that outputs depend on, with inputs by number: names also count operations of logs."""
        reached = self.reached()
        number = {name: place for place, name in enumerate(name for name in self.operations if name in reached)}
        return [
            (one.operator, one.scope, one.module, one.arguments, one.shape, [number[given] for given in one.inputs])
            for one in (self.operations[name] for name in number)
        ] + [(number[name],) for name in self.outputs]

    def ungrown(self) -> Graph:
        """Return the graph as it was before growth, without the operations that growth added."""
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
        """Return the operation of the starting model that the stack ending in this operation first read."""
        while name in self._before:
            name = self._before[name]
        return name

    def _grown(self, path: str) -> bool:
        return any(path == stack or path.startswith(f"{stack}.") for stack in self.stacks)

    def ordered(self) -> tuple[Operation, ...]:
        """Return the operations, with grown ones directly after the operation that they were inserted after."""
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
