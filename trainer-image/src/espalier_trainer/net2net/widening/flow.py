"""Flow of channels through the operations of a model, which shows the layers whose channels must change together.

One pass over the recorded operations (`trace`): each rule derives the layout of an operation's output from those of its
inputs, and determines the parameters that change with it. An operation without a rule freezes the channels that it
reads. The rules read shapes only; `trial` checks that a widening computes the same before it is offered.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from espalier_trainer.net2net.trace.graph import Graph, Operation
from espalier_trainer.net2net.trace.operators import ACTIVATIONS, BATCH_NORMS, LAYERS, NORM_FUNCTIONS
from espalier_trainer.net2net.widening.spaces import EditBook, Layout, Segment, Spaces, reshaped

_ELEMENTWISE = ACTIVATIONS | {
    "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "Identity", "Contiguous",
    "Clone", "Abs", "Neg", "Exp", "Log", "Sqrt", "Rsqrt", "Square", "Pow", "Clamp", "Clip", "ClampMin", "Float", "To",
    "Tanhshrink", "Hardshrink", "Softshrink", "Threshold", "RRelu", "Detach",
}  # fmt: skip
_BINARY = frozenset({"Add", "Sub", "Mul", "Div", "Maximum", "Minimum"})
RESHAPES = frozenset({"Flatten", "View", "Reshape", "Squeeze", "Unsqueeze", "Unflatten", "ViewAs", "ReshapeAs"})
_REDUCTIONS = frozenset({"Mean", "Sum", "Amax", "Amin"})
_SPATIAL = re.compile(
    r"(?:Adaptive)?(?:Max|Avg|LP)Pool([123])d|(?:Zero|Constant|Reflection|Replication|Circular)Pad([123])d"
    r"|Upsample|Interpolate|UpsamplingNearest2d|UpsamplingBilinear2d"
)
_PER_CHANNEL = BATCH_NORMS | NORM_FUNCTIONS | {"InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"}

_NORMS: Mapping[str, type[nn.Module]] = {
    "LayerNorm": nn.LayerNorm,
    "BatchNorm": nn.modules.batchnorm._BatchNorm,
    "InstanceNorm": nn.modules.instancenorm._InstanceNorm,
}
"""Norms that a module of the user's own class calls as a function, with its own parameters."""


class Flow:
    """The channels of a model, followed through its trace `graph` from the first to the last operation."""

    def __init__(self, model: nn.Module, graph: Graph) -> None:
        self.spaces = Spaces()
        self.book = EditBook(model, self.spaces)
        self.makers: dict[int, list[str]] = {}
        """For each space, as opened, the layers that produce its channels."""
        self.depthwise: dict[str, tuple[Segment, ...]] = {}
        """For each depthwise convolution, the channels of its input, which are also those of its output."""
        self._modules = dict(model.named_modules())
        self._graph = graph
        self._made: dict[int, int] = {}
        self._layouts: dict[str, Layout] = {}
        for operation in graph.operations.values():
            layout = self._follow(operation)
            if layout is not None:
                self._layouts[operation.name] = layout
        for name in graph.outputs:
            self._freeze([name], f"{name!r} is an output of the model")
        self.book.freeze_tied()

    def named_layouts(self, names: Container[int]) -> dict[str, Layout]:
        """Return each operation's layout, with the roots of spaces that may be widened."""
        return {
            operation: Layout(layout.axis, self.spaces.followed(layout.segments, names))
            for operation, layout in self._layouts.items()
        }

    def _follow(self, op: Operation) -> Layout | None:
        """Return the layout of an operation's output; None where no channels of it may change."""
        module = self._module_of(op)
        layout = self._layouts.get(op.inputs[0]) if op.inputs else None
        if op.shape is not None:
            if op.operator in LAYERS and module is not None:
                return self._layer(op, module, layout, (*op.shape,))
            if op.operator in _BINARY and len(op.inputs) > 1:
                return self._binary(op, op.shape)
            if layout is not None:
                found = self._single(op, module, layout, self._shape(op.inputs[0]), op.shape)
                if found is not None:
                    return found
            if op.operator == "Concat":
                return self._concat(op)
        self._freeze(op.inputs, f"{op.name!r} ({op.operator}) reads it, through which channels cannot be followed")
        return None

    def _module_of(self, op: Operation) -> nn.Module | None:
        module = self._modules[self._path(op)]
        if op.module is None and not isinstance(module, _NORMS.get(op.operator, ())):
            return None
        return None if is_parametrized(module) else module

    def _path(self, op: Operation) -> str:
        return op.module if op.module is not None else op.scope

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._graph.operations[name].shape or ()

    def _freeze(self, names: Sequence[str], reason: str) -> None:
        for name in names:
            if name in self._layouts:
                self.spaces.freeze(self._layouts[name].segments, reason)

    def _layer(self, op: Operation, module: nn.Module, given: Layout | None, shape: tuple[int, ...]) -> Layout | None:
        """Follow a linear layer or convolution: columns follow the input; rows open a new space or also follow it."""
        path, dims = self._path(op), LAYERS[op.operator]
        weight = module._parameters.get("weight")
        axis = len(shape) - dims - 1
        if weight is None:
            self._freeze(op.inputs, f"{path!r} has no plain weight (weight or spectral norm)")
            return None
        if given is not None and given.axis != axis:
            self.spaces.freeze(given.segments, f"{path!r} reads another axis than that of the channels")
            given = None
        groups = module.groups if isinstance(module, nn.modules.conv._ConvNd) else 1
        rows, inputs = weight.shape[0], weight.shape[1] * groups
        columns = given.segments if given is not None else (Segment(None, inputs),)
        names = ("in_channels", "out_channels") if dims else ("in_features", "out_features")
        if groups == inputs > 1:
            made = Layout(axis, columns).repeated(rows // inputs)
            self.book.resize(path, "groups", columns)
            self.depthwise[path] = columns
        else:
            key = self.book.key(_own(path, "weight"))
            if key not in self._made:
                self._made[key] = self.spaces.open(rows)
            space = self._made[key]
            made = (Segment(space, rows),)
            self.makers.setdefault(space, [])
            if path not in self.makers[space]:
                self.makers[space].append(path)
            if groups > 1:
                self.spaces.divide(space, groups)
                self._divide(path, columns, groups)
            self.book.edit(_own(path, "weight"), 1, columns, split=True, groups=groups)
        self.book.edit(_own(path, "weight"), 0, made)
        self.book.edit(_own(path, "bias"), 0, made)
        self.book.resize(path, names[0], columns)
        self.book.resize(path, names[1], made)
        return Layout(axis, made)

    def _divide(self, path: str, columns: tuple[Segment, ...], groups: int) -> None:
        first = columns[0]
        if len(columns) == 1 and first.space is not None and first.channels % groups == 0:
            self.spaces.divide(first.space, groups)
        else:
            self.spaces.freeze(columns, f"{path!r} divides a concatenation into {groups} groups")

    def _single(
        self, op: Operation, module: nn.Module | None, layout: Layout, before: tuple[int, ...], after: tuple[int, ...]
    ) -> Layout | None:
        """Follow an operation that reads one tensor with channels."""
        kind, path = op.operator, self._path(op)
        if kind in _PER_CHANNEL or kind == "PReLU":
            if module is None:
                return None
            size = "num_parameters" if kind == "PReLU" else "num_features"
            if getattr(module, size) == 1 and kind == "PReLU":
                return layout
            if layout.axis != 1:
                return None
            for name in ("weight", "bias", "running_mean", "running_var"):
                self.book.edit(_own(path, name), 0, layout.segments)
            self.book.resize(path, size, layout.segments)
            return layout
        if kind in ("LayerNorm", "RMSNorm", "GroupNorm"):
            return self._joint_norm(kind, path, module, layout, before)
        if kind in _ELEMENTWISE and before == after and len(set(op.inputs)) == 1:
            return layout
        if kind in _BINARY and before == after:
            return layout  # with a number
        spatial = _SPATIAL.fullmatch(kind)
        if spatial is not None:
            dims = int(spatial[1] or spatial[2] or len(before) - 2)
            return layout if layout.axis == len(before) - dims - 1 and len(before) == len(after) else None
        if kind == "Pad":
            sides = op.attributes.get("arg1", op.attributes.get("pad"))
            inside = isinstance(sides, tuple) and len(sides) // 2 < len(before) - layout.axis
            return layout if inside else None
        if kind in RESHAPES or (
            kind == "GetItem" and len(after) > len(before) and before == tuple(n for n in after if n != 1)
        ):
            return reshaped(layout, before, after)
        return self._moved(op, layout, before, after)

    def _joint_norm(
        self, kind: str, path: str, module: nn.Module | None, layout: Layout, before: tuple[int, ...]
    ) -> Layout | None:
        """Follow a norm over channels: exact if channels are repeated equally often, which keeps mean and variance."""
        first = layout.segments[0]
        axis = 1 if kind == "GroupNorm" else len(before) - 1
        size = "num_channels" if kind == "GroupNorm" else "normalized_shape"
        value = getattr(module, size, None)
        if module is None or layout.axis != axis or value not in (layout.width, (layout.width,)):
            return None
        if len(layout.segments) > 1 or first.space is None:
            self.spaces.freeze(
                layout.segments,
                f"{path!r} ({kind}) takes one mean over several groups of channels, which widening one of them shifts",
            )
        else:
            self.spaces.ask_even(first.space)
        for name in ("weight", "bias"):
            self.book.edit(_own(path, name), 0, layout.segments)
        self.book.resize(path, size, layout.segments)
        return layout

    def _moved(self, op: Operation, layout: Layout, before: tuple[int, ...], after: tuple[int, ...]) -> Layout | None:
        """Follow an operation that moves or removes axes."""
        rank, attributes = len(before), op.attributes
        if op.operator == "Permute":
            dims = attributes.get("dims")
            order = [int(dim) % rank for dim in dims] if isinstance(dims, tuple) else []
            return Layout(order.index(layout.axis), layout.segments) if layout.axis in order else None
        if op.operator == "Transpose":
            pair = [int(str(attributes[name])) % rank for name in ("dim0", "dim1")]
            other = pair[1 - pair.index(layout.axis)] if layout.axis in pair else layout.axis
            return Layout(other, layout.segments)
        if op.operator in _REDUCTIONS:
            given = attributes.get("arg1", attributes.get("dim"))
            listed = given if isinstance(given, tuple) else (given,)
            if any(type(dim) is not int for dim in listed):
                return None
            gone = {int(str(dim)) % rank for dim in listed}
            if layout.axis in gone:
                return None
            kept = len(after) == rank
            return Layout(layout.axis - (0 if kept else sum(dim < layout.axis for dim in gone)), layout.segments)
        return None

    def _binary(self, op: Operation, shape: tuple[int, ...]) -> Layout | None:
        """Follow an elementwise operation with broadcasting, aligned from the right; both sides' channels unite."""
        found: list[Layout] = []
        plain: list[str] = []
        for name in op.inputs:
            layout = self._layouts.get(name)
            if layout is None:
                plain.append(name)
                continue
            axis = layout.axis + len(shape) - len(self._shape(name))
            if layout.width == 1 and shape[axis] != 1:
                self.spaces.freeze(layout.segments, f"{op.name!r} broadcasts its single channel over all channels")
                continue
            found.append(Layout(axis, layout.segments))
        if not found:
            return None
        first = found[0]
        for other in found[1:]:
            if other.axis != first.axis:
                self._freeze(
                    op.inputs, f"{op.name!r} ({op.operator}) combines inputs whose channels are on different axes"
                )
                return None
            self.spaces.unite(
                first.segments, other.segments, f"{op.name!r} ({op.operator}) combines channels of different structure"
            )
        for name in plain:
            operation = self._graph.operations[name]
            axis = first.axis - len(shape) + len(operation.shape or ())
            if operation.shape is not None and (axis < 0 or operation.shape[axis] == 1):
                continue
            if operation.operator in ("Parameter", "Buffer") and self.book.holds(name):
                self.book.edit(name, axis, first.segments)
            else:
                self._freeze(op.inputs, f"{op.name!r} ({op.operator}) combines it with {name!r}, whose width is fixed")
        return first

    def _concat(self, op: Operation) -> Layout | None:
        layouts = [self._layouts.get(name) for name in op.inputs]
        known = [layout for layout in layouts if layout is not None]
        if not known:
            return None
        dim = op.attributes.get("dim")
        rank = len(op.shape or ())
        if type(dim) is not int or any(layout.axis != dim % rank for layout in known):
            self._freeze(op.inputs, f"{op.name!r} (Concat) concatenates along an axis other than the channel axis")
            return None
        if any(self._graph.operations[name].shape is None for name in op.inputs):
            self._freeze(
                op.inputs, f"{op.name!r} (Concat) concatenates it with one of several results in unknown order"
            )
            return None
        segments: list[Segment] = []
        for name, layout in zip(op.inputs, layouts, strict=True):
            segments += layout.segments if layout else [Segment(None, self._shape(name)[dim % rank])]
        return Layout(dim % rank, tuple(segments))


def _own(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
