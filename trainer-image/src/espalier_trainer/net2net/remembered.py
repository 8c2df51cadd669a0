"""Answers about one model that several questions share, such as its trace: found once while `remembering` it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from torch import nn

from espalier_trainer.net2net.modules import ExampleInput

T = TypeVar("T")


class _Memory:
    """What is known of a model on an example."""

    def __init__(self, model: nn.Module, example_input: ExampleInput) -> None:
        self.model, self.example_input = model, example_input
        self.found: dict[Hashable, Any] = {}


_MEMORY: ContextVar[_Memory | None] = ContextVar("espalier_remembered", default=None)


@contextmanager
def remembering(model: nn.Module, example_input: ExampleInput) -> Iterator[None]:
    """Answer each question about `model` on this example once within the block, which must not change them."""
    before = _MEMORY.get()
    if before is not None and before.model is model and before.example_input is example_input:
        yield
        return
    token = _MEMORY.set(_Memory(model, example_input))
    try:
        yield
    finally:
        _MEMORY.reset(token)


def once(model: nn.Module, example_input: ExampleInput, question: Hashable, answer: Callable[[], T]) -> T:
    """Return what `answer` returns, or has returned to the same `question` about a model that is remembered."""
    memory = _MEMORY.get()
    if memory is None or memory.model is not model or memory.example_input is not example_input:
        return answer()
    if question not in memory.found:
        memory.found[question] = answer()
    return cast(T, memory.found[question])
