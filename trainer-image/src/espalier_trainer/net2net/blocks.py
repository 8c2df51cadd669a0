"""Modules of growth: the block that marks a place in the user's model, and the modules that an insertion adds.

A place grows by giving its *host* module one more child, `grown`, which reads the host's output. The host keeps its
path, its parameters' names and its own Python `forward`; only its class becomes a subclass of its old class
(`torch.nn.utils.parametrize` works the same way). So a grown model is an ordinary `nn.Module`: it copies, moves, saves
its state dict and compiles as before, and its new layers are named `features.3.grown.0.conv`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, cast

from torch import Tensor, nn

STACK = "grown"
"""Name of the child that holds a host's inserted blocks."""

_ADDED = "_added_by_growth"
"""Attribute of a whole block that growth has put into one of the model's own lists of blocks."""


_PLAIN: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def plainly() -> Iterator[None]:
    """Let gradual growth compute as if it were complete, within the context."""
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def is_plain() -> bool:
    """Return whether this is within `plainly`."""
    return _PLAIN.get()


class DeepenBlock(nn.Sequential):
    """The paper's mark (Lamelas, section 4.2): layers that are executed in sequence and may be deepened.

    Linear + activation, or convolution + batch norm + activation; growth adds a block like it after it:

        self.features = DeepenBlock(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU())

    A model with at least one mark has growth points at its marks only.
    """


class GrownStack(nn.Sequential):
    """The blocks inserted at one place, `"0"`, `"1"`, ..., oldest first."""

    origin: tuple[str, str] | None = None
    """Paths of the host and of the layer that the blocks repeat, in the model that was grown."""


class InsertedBlock(nn.Sequential):
    """One insertion: its layers in sequence, an identity when it is new."""


class InsertedResidual(nn.Sequential):
    """One insertion whose layers are added to the identity: `x + layers(x)`, layers zero when it is new."""

    def forward(self, input: Tensor) -> Tensor:
        """Return `input + layers(input)`, of `input`'s shape."""
        return input + cast(Tensor, super().forward(input))  # type: ignore[no-untyped-call]


def attach(host: nn.Module, block: nn.Module, origin: tuple[str, str] | None = None) -> None:
    """Append `block` to the layers after the host's output, in place; a new stack gets `origin`."""
    stack = host._modules.get(STACK)
    if not isinstance(stack, GrownStack):
        stack = GrownStack()
        stack.origin = origin
        stack.train(host.training)
        host.add_module(STACK, stack)
        # A Sequential runs its children in order: its new last child reads its output without further changes.
        if type(host).forward is not nn.Sequential.forward:
            host.__class__ = _grown_class(cast(Any, type(host)))
    stack.append(block)


def mark_added(block: nn.Module, reads: int) -> None:
    """Mark `block` as added by growth to one of the model's lists of blocks.

    `reads` is the index of the tensor among its arguments that it returns unchanged while it is new.
    """
    setattr(block, _ADDED, reads)


def added(module: nn.Module) -> int | None:
    """Return the index of the argument tensor that a block added by growth passes on; None for any other module."""
    return getattr(module, _ADDED, None)


def base_class(module: nn.Module) -> type[nn.Module]:
    """Return the class that the module had before it hosted a growth."""
    return cast(type[nn.Module], getattr(type(module), "_ungrown", type(module)))


@cache
def _grown_class(base: Any) -> type[nn.Module]:
    """Return the subclass of `base` that passes its output through `self.grown`."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.grown(base.forward(self, *args, **kwargs))

    def reduce(self: Any, _protocol: object) -> tuple[Callable[..., object], tuple[object, ...], object]:
        # The class is created here and has no importable name: tell pickle how to create it again.
        return _empty, (base,), self.__getstate__()

    body = {
        "__doc__": f"`{base.__name__}` whose output goes through the layers grown after it.",
        "__module__": base.__module__,
        "__qualname__": f"Grown{base.__name__}",
        "_ungrown": base,
        "forward": forward,
        "__reduce_ex__": reduce,
    }
    return cast(type[nn.Module], type(f"Grown{base.__name__}", (base,), body))


def _empty(base: Any) -> nn.Module:
    """Return an uninitialised module of the grown subclass of `base`, for copying and worker processes."""
    grown = _grown_class(base)
    return grown.__new__(grown)
