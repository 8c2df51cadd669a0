"""Closing parameters of a block: parameters with which, at zero, the block returns its input.

The search walks back through the trace from the block's output. It has to be a sum of the block's input and of
branches, and each branch has to end in parameters that make it zero when they are: those of a linear layer or
convolution, of a norm after it, of a scale (LayerScale). Only dropout, changes of shape, pooling, products and
activations may come after these. Where several choices close a branch, they are returned in order, the one nearest to
the sum first; a trial on values decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from espalier_trainer.net2net.block.insertion import FUSED
from espalier_trainer.net2net.trace.graph import Graph, Operation, Span
from espalier_trainer.net2net.trace.operators import BATCH_NORMS, IDEMPOTENT, LAYERS

NORMS = BATCH_NORMS | {"LayerNorm", "GroupNorm", "RMSNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"}

_MOVES = frozenset(
    {
        *("Reshape", "View", "Flatten", "Unflatten", "Permute", "Transpose", "Contiguous", "Clone", "To", "Float"),
        *("Identity", "Squeeze", "Unsqueeze", "Movedim", "Type", "TypeAs", "Roll", "GetItem"),
    }
)
"""Operators that the block's input may pass: they change no value."""

_SUMS = frozenset({"Add", "Sub", "Concat", "Stack", "Where", "Lerp"})
"""Operators whose output is zero only if all their inputs are."""

_PRODUCTS = frozenset(
    {
        "Mul",
        "MatMul",
        "Linear",
        "Einsum",
        "Conv1d",
        "Conv2d",
        "Conv3d",
        "Outer",
        "ScaledDotProductAttention",
    }
)
"""Operators whose output is zero if any input is."""

_AFFINE = frozenset({"Addmm", "Addbmm", "Baddbmm", "LayerNorm", "GroupNorm", "BatchNorm", "RmsNorm", "RMSNorm"})
"""Functions of a weight and a bias: zero if both are."""

_CHOICES = 3
"""Maximum number of ways to close a branch that are kept."""

_PROJECTIONS: Mapping[type[nn.Module], tuple[str, ...]] = {
    nn.MultiheadAttention: ("out_proj",),
    nn.TransformerEncoderLayer: ("self_attn.out_proj", "linear2"),
    nn.TransformerDecoderLayer: ("self_attn.out_proj", "multihead_attn.out_proj", "linear2"),
}
"""The last layers of modules that a trace records as one operation."""


MARK = "closed_by"
"""Attribute of a block, or of its class, that names its closing parameters where the walk finds none."""


class NotClosedError(Exception):
    """No parameters close a block. The text gives the reason, the attribute `remedy` the remedy."""

    def __init__(self, reason: str, remedy: str, *, is_block: bool = False, at: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy
        self.at = at
        """File and line of the call that decides; empty where the block's forward as a whole does."""
        self.is_block = is_block
        """Whether it is a residual block all the same, so that modules within it are parts of a block."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The input that a block passes on, and the choices of parameters that close the block."""

    read: str
    """The operation whose output the block passes on."""
    entry: int
    """Index of that tensor among the block's arguments."""
    choices: tuple[frozenset[str], ...]
    """Sets of parameter paths within the block."""
    norms: tuple[str, ...] = ()
    """Norms that the input passes, too: then no parameters make the block an identity."""


def closing(model: nn.Module, graph: Graph, block: str, span: Span) -> Closing:
    """Return the closing of one call of a block; raise `NotClosedError` where nothing closes it."""
    if not span.outputs or not span.outputs[0]:
        raise NotClosedError("it returns no tensor", "return the tensor that the next block reads, first")
    names = getattr(model.get_submodule(block), MARK, None)
    if names is not None:
        return _marked(model, graph, block, span, names)
    return _Walk(dict(model.named_modules()), graph, block, span).closing()


def _marked(model: nn.Module, graph: Graph, block: str, span: Span, names: Iterable[str]) -> Closing:
    """Return the closing that a block declares itself; a trial on values shows whether it is right."""
    known = dict(model.get_submodule(block).named_parameters())
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        if name not in known:
            raise NotClosedError(
                f"its `{MARK}` names {name!r}, which is not one of its parameters",
                "name parameters as the block's `named_parameters` does",
                is_block=True,
            )
    shape = graph.operations[span.outputs[0]].shape
    for entry, read in enumerate(span.inputs):
        if read and graph.operations[read].shape == shape:
            return Closing(read, entry, (frozenset(f"{block}.{name}" for name in chosen),))
    raise NotClosedError("it is given no tensor of its output's shape", "let it return the shape that it is given")


class _Walk:
    def __init__(self, modules: Mapping[str, nn.Module], graph: Graph, block: str, span: Span) -> None:
        self._modules, self._graph, self._block, self._span = modules, graph, block, span
        self._norms: list[str] = []

    def closing(self) -> Closing:
        module = self._modules[self._block]
        output = self._graph.operations[self._span.outputs[0]]
        if isinstance(module, FUSED):
            read, choices = self._span.inputs[0], [self._layers(self._block, module)]
            if not module.norm_first:
                self._norms.append(self._block)
        else:
            given, branches = self._terms(output)
            if len(given) != 1:
                raise self._no_sum(output)
            read = given[0]
            if not branches:
                raise NotClosedError("nothing is added to its input", "let it add a branch: `x + f(x)`")
            ways = [self._zero(branch, frozenset()) for branch in branches]
            for branch, found in zip(branches, ways, strict=True):
                if not found and self._is_frozen(branch):
                    raise NotClosedError(
                        f"the branch that ends in {branch.operator} {branch.name!r} is frozen there, so a new block "
                        "whose last projection is zero would never learn",
                        "let that layer train (`requires_grad_(True)`), or merge its adapters before growth",
                        is_block=True,
                    )
                if not found:
                    raise NotClosedError(
                        f"the branch that ends in {branch.operator} {branch.name!r} has no last projection that could "
                        "be zero",
                        "end the branch in a linear layer or convolution, or multiply it by a parameter (LayerScale)",
                    )
            choices = _joined(ways)
        if self._graph.operations[read].shape != output.shape:
            raise self._no_sum(output)
        return Closing(read, self._span.inputs.index(read), tuple(choices), tuple(self._norms))

    def _terms(self, operation: Operation) -> tuple[list[str], list[Operation]]:
        """Return the block's inputs among the terms of the sum that an operation computes, and the branches."""
        if operation.name in self._span.inputs:
            return [operation.name], []
        if operation.operator == "Add" and len(operation.inputs) > 1:
            given: list[str] = []
            branches: list[Operation] = []
            for name in operation.inputs:
                more, others = self._terms(self._graph.operations[name])
                given, branches = given + more, branches + others
            return given, branches
        passes = operation.operator in _MOVES | IDEMPOTENT
        if (passes or operation.operator in NORMS or self._is_norm(operation)) and operation.inputs:
            values = [name for name in operation.inputs if self._graph.operations[name].operator != "Parameter"]
            given, branches = self._terms(self._graph.operations[values[0]]) if values else ([], [])
            if given:
                if not passes:
                    self._norms.append(operation.name)
                return given, branches
        return [], [operation]

    def _is_norm(self, operation: Operation) -> bool:
        """Return whether a product is the last step of a norm of the user's own class: `weight * normed`."""
        scope = self._modules.get(operation.scope)
        return operation.scope != self._block and scope is not None and "norm" in type(scope).__name__.lower()

    def _no_sum(self, output: Operation) -> NotClosedError:
        given = ", ".join(str(self._graph.operations[name].shape) for name in self._span.inputs if name) or "nothing"
        return NotClosedError(
            f"its output ({output.operator} {output.name!r}, shape {output.shape}) is not a sum of its input "
            f"({given}) and branches, so it is not residual",
            "add the block's input to its output: `return x + f(x)`, in one shape",
        )

    def _zero(self, operation: Operation, seen: frozenset[str]) -> list[frozenset[str]]:
        """Return the choices of parameters of the block with which, at zero, an operation's output is zero."""
        if operation.name in seen or operation.name in self._span.inputs:
            return []
        seen |= {operation.name}
        reads = [self._graph.operations[name] for name in operation.inputs]
        if operation.operator == "Parameter":
            return [frozenset({operation.name})] if self._own(operation.name) else []
        if operation.module is not None:
            return self._of_module(operation, reads, seen)
        if operation.operator in _SUMS:
            return _joined([self._zero(one, seen) for one in reads]) if reads else []
        if operation.operator in _AFFINE:
            own = [one.name for one in reads if one.operator == "Parameter" and self._own(one.name)]
            return [frozenset(own)] if own else self._first(reads, seen)
        if operation.operator in _PRODUCTS:
            direct = [self._zero(one, seen) for one in reads if self._is_weight(one)]
            others = [self._zero(one, seen) for one in reads if not self._is_weight(one)]
            # A bias next to the weight is not a factor: `F.linear(x, weight, bias)`.
            together = [_joined(direct)] if operation.operator in ("Linear", *LAYERS) and len(direct) > 1 else direct
            return [choice for found in (*together, *others) for choice in found][:_CHOICES]
        return self._first(reads, seen)

    def _first(self, reads: list[Operation], seen: frozenset[str]) -> list[frozenset[str]]:
        return self._zero(reads[0], seen) if reads else []

    def _of_module(self, operation: Operation, reads: list[Operation], seen: frozenset[str]) -> list[frozenset[str]]:
        path, module = str(operation.module), self._modules[str(operation.module)]
        if type(module) in _PROJECTIONS:
            return [self._layers(path, module)]
        own = frozenset(f"{path}.{name}" for name, _ in module.named_parameters(recurse=False))
        if operation.operator in LAYERS:
            return [own] if all(map(self._own, own)) and own else []
        before = self._first(reads, seen)
        if operation.operator in NORMS and own and all(map(self._own, own)):
            return [own, *before][:_CHOICES]
        return before

    def _layers(self, path: str, module: nn.Module) -> frozenset[str]:
        return frozenset(
            f"{path}.{layer}.{name}"
            for layer in next(found for kind, found in _PROJECTIONS.items() if isinstance(module, kind))
            for name, _ in module.get_submodule(layer).named_parameters()
        )

    def _is_frozen(self, operation: Operation) -> bool:
        module = None if operation.module is None else self._modules[operation.module]
        own = [] if module is None else list(module.parameters())
        return bool(own) and not any(parameter.requires_grad for parameter in own)

    def _own(self, path: str) -> bool:
        """Return whether a parameter belongs to the block and is trainable."""
        module, _, name = path.rpartition(".")
        owner = self._modules.get(module)
        parameter = None if owner is None else owner._parameters.get(name)
        return path.startswith(f"{self._block}.") and parameter is not None and parameter.requires_grad

    def _is_weight(self, operation: Operation) -> bool:
        """Return whether an operation is a parameter, possibly reshaped."""
        while operation.operator in _MOVES and operation.module is None and operation.inputs:
            operation = self._graph.operations[operation.inputs[0]]
        return operation.operator == "Parameter"


def _joined(ways: list[list[frozenset[str]]]) -> list[frozenset[str]]:
    """Return the choices that close all branches: the first of each, the second of each that has one, ..."""
    if not ways or not all(ways):
        return []
    count = max(map(len, ways))
    return [frozenset().union(*(way[min(place, len(way) - 1)] for way in ways)) for place in range(count)][:_CHOICES]
