"""The computation of a model as plain data: nodes that never change, and graphs that share them.

A rewrite makes a new graph (`editing.GraphEdit`) and leaves the old one unchanged, so a search may continue from any of
them. Equal computations are one node, which is found by its content (hash-consing, as in Click & Paleczny 1995).
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

OUTPUT: Final = "output"
"""Operator and name of the node that returns the model's result."""

LEAVES: Final = frozenset({"input", "parameter", "constant"})
"""Operators that compute nothing."""

Attributes = tuple[tuple[str, Hashable], ...]
"""Settings of an operator, sorted by name."""

IMAGE_DIMENSIONS: Final = 4


@dataclass(frozen=True, slots=True)
class Value:
    """The known properties of a tensor before it is computed."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool = False
    """Whether its four dimensions lie in memory as N, H, W, C."""
    grad: bool = False
    """Whether a gradient flows back through it."""

    @property
    def is_images(self) -> bool:
        """Whether it has the four dimensions of images, N, C, H and W: then it has a layout."""
        return len(self.shape) == IMAGE_DIMENSIONS


Meta = Hashable
"""A `Value`, or for a node that returns no tensor its result: a number, a size, a tuple of metas."""


@dataclass(frozen=True, slots=True)
class OpNode:
    """One computation."""

    operator: str
    """One of `operators.OPERATORS`, a leaf, `output`, or `module`, `call`, `method`, which are opaque to rules."""
    attributes: Attributes
    inputs: tuple[str, ...]
    """Names of nodes."""
    meta: Meta
    order: float
    """Place in the model's forward; a new node has the place of the node that it replaces."""
    effect: str = ""
    """`random` or `buffers` if it draws random numbers or changes buffers: it stays in order, even if unused. Random
    numbers are drawn in memory order, so the layout of its input must stay, too."""

    @property
    def content(self) -> tuple[str, Attributes, tuple[str, ...]]:
        """Return the content that identifies it: equal nodes of a graph are one."""
        return self.operator, self.attributes, self.inputs

    def get(self, name: str, default: Any = None) -> Any:
        """Return one of its attributes."""
        for key, value in self.attributes:
            if key == name:
                return value
        return default

    @property
    def value(self) -> Value:
        """Return the meta of a node that returns one tensor. Raise `TypeError` for another."""
        if not isinstance(self.meta, Value):
            raise TypeError(f"{self.operator} returns no tensor: {self.meta}")
        return self.meta

    @property
    def is_images(self) -> bool:
        """Whether it returns one tensor, of images."""
        return isinstance(self.meta, Value) and self.meta.is_images

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of its tensor; () if it returns none."""
        return self.meta.shape if isinstance(self.meta, Value) else ()


@dataclass(frozen=True, eq=False)
class OpGraph:
    """All nodes that the result needs, by name. It is immutable."""

    nodes: Mapping[str, OpNode]
    users: Mapping[str, tuple[str, ...]]
    """The readers of each node, each once."""
    index: Mapping[tuple[Any, ...], str] = field(repr=False)
    """Names of nodes by content."""
    constants: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    """Tensors that are neither parameters nor buffers, by their attribute."""
    both_modes: bool = True
    """Whether train and eval mode both compute this graph; otherwise only train mode does."""
    changed: frozenset[str] = frozenset()
    """Nodes that the last rewrite created, or whose inputs or readers it changed."""

    def operators(self) -> int:
        """Return the number of nodes that compute something."""
        return sum(node.operator not in LEAVES and node.operator != OUTPUT for node in self.nodes.values())

    def ordered(self) -> list[str]:
        """Return the names so that each comes after its inputs, otherwise in the order of the forward.

        Raise `ValueError` if nodes read one another in a circle.
        """
        nodes = self.nodes
        waits = {name: len(set(node.inputs)) for name, node in nodes.items()}
        ready = [(nodes[name].order, name) for name, count in waits.items() if count == 0]
        heapq.heapify(ready)
        found: list[str] = []
        while ready:
            _, name = heapq.heappop(ready)
            found.append(name)
            for user in self.users[name]:
                waits[user] -= 1
                if waits[user] == 0:
                    heapq.heappush(ready, (nodes[user].order, user))
        if len(found) != len(nodes):
            raise ValueError(f"nodes read one another in a circle: {sorted(set(nodes) - set(found))[:4]}")
        return found

    def effects(self) -> list[str]:
        """Return the nodes that draw random numbers or change buffers, in their order."""
        return [name for name in self.ordered() if self.nodes[name].effect]

    def key(self) -> int:
        """Return a hash of the computation, independent of node names, and valid within this process.

        Two graphs of which one computes something twice have different keys.
        """
        found, roots = self._hashes(hash)
        return hash((*roots, len(found), sum(found.values())))

    def fingerprint(self) -> str:
        """Return a hash that other processes reproduce: of the computation, its constants and its parameters' shapes.

        It does not cover the sizes of activations: a plan outlives a change of the batch size.
        """
        found, roots = self._hashes(lambda part: hashlib.sha256(written(part).encode()).hexdigest())
        return hashlib.sha256("".join([*roots, *sorted(found.values())]).encode()).hexdigest()[:16]

    def _hashes(self, digest: Any) -> tuple[dict[str, Any], list[Any]]:
        """Return digests of all nodes, each including its inputs, and the digests of the output and of effects."""
        found: dict[str, Any] = {}
        roots: list[Any] = []
        nodes = self.nodes
        for name in self.ordered():
            node = nodes[name]
            shape = node.meta if node.operator == "parameter" else None
            found[name] = digest((node.operator, node.attributes, shape, tuple([found[one] for one in node.inputs])))
            if node.effect or node.operator == OUTPUT:
                roots.append(found[name])
        return found, roots


def assembled(nodes: Mapping[str, OpNode], constants: Mapping[str, Tensor]) -> OpGraph:
    """Return the graph of the nodes that the result or an effect needs, and of the inputs."""
    needed: set[str] = set()
    waiting = [name for name, node in nodes.items() if node.effect or node.operator in (OUTPUT, "input")]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(nodes[name].inputs)
    kept = {name: node for name, node in nodes.items() if name in needed}
    users: dict[str, tuple[str, ...]] = dict.fromkeys(kept, ())
    index: dict[tuple[Any, ...], str] = {}
    for name, node in kept.items():
        for one in dict.fromkeys(node.inputs):
            users[one] = (*users[one], name)
        if not node.effect:
            index.setdefault(node.content, name)
    return OpGraph(kept, users, index, constants)


def written(part: object) -> str:
    """Return a text of nested settings that is the same in every process."""
    if isinstance(part, tuple):
        return f"({','.join(map(written, part))})"
    if isinstance(part, Value):
        return f"{part.shape}{part.dtype}{part.grad}"
    if callable(part):
        return f"{getattr(part, '__module__', '')}.{getattr(part, '__qualname__', type(part).__name__)}"
    return repr(part)


def attributes(settings: Mapping[str, Hashable]) -> Attributes:
    """Return settings in the form of a node's attributes."""
    return tuple(sorted(settings.items()))
