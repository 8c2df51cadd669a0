"""The cost of each node: a table of operators, measured once per device and stored as JSON.

The sum over a graph orders candidates; it ignores caches and overlap, so the best are measured end to end as well.
"""

from __future__ import annotations

import copy
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from espalier_lab.rewriting.engine.graph import LEAVES, OUTPUT, Meta, OpGraph, OpNode, Value, written
from espalier_lab.rewriting.engine.operators import OPERATORS, spelled
from espalier_lab.rewriting.engine.plans import device_kind
from espalier_lab.rewriting.engine.templates import filled
from espalier_trainer.measuring.gradients import settle
from espalier_trainer.net2net.modules import device_of

REPEATS: Final = 7
"""Number of runs of an operator, of which the median is taken."""

SHORT: Final = 2e-3
"""Minimum total seconds of an operator's runs, so that short ones are measured more often."""

_IN_A_ROW: Final = 5
"""Number of runs of an operator on a GPU between two synchronisations."""
_MOST: Final = 200


@dataclass
class OperatorCosts:
    """Seconds of the operators of one model on its device; `training`: forward and backward, otherwise forward."""

    module: nn.Module
    """The model; its layers with state are copied for measuring, and it stays unchanged."""
    folder: Path | None = None
    """Folder for the table of each device; None: only in memory."""
    training: bool = True
    clock: Callable[[], float] = time.perf_counter
    measured: int = 0
    """Number of operators that were not in the table."""
    table: dict[str, float] = field(default_factory=dict)
    """Seconds of the operators of this device; given ones are not measured, and measured ones are added."""
    _known: dict[tuple[Any, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the table of the device; an unreadable one is measured again."""
        self.device = device_kind(self.module)
        if self.folder is not None:
            try:
                read = json.loads(self._path(self.folder).read_text())
                self.table.update({str(key): float(value) for key, value in read.items()})
            except (OSError, ValueError, AttributeError, TypeError):
                return

    def of(self, graph: OpGraph, name: str) -> float:
        """Return the seconds of a node, measuring it if it is new; infinite if it raises.

        Raise `torch.OutOfMemoryError` if there is no room to measure it, which says nothing about the node.
        """
        node = graph.nodes[name]
        if node.operator in LEAVES or node.operator == OUTPUT or not _tensors(node.meta):
            return 0.0
        inputs: tuple[Meta, ...] = tuple([graph.nodes[one].meta for one in node.inputs])
        key = (node.operator, node.attributes, inputs)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._of_table(node, inputs)
        return known

    def save(self) -> None:
        """Write the table, if there is a folder; another process doing the same can only lose its new rows."""
        if self.folder is None or not self.measured:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(self.folder)
        part = path.with_suffix(f".{time.monotonic_ns()}.part")
        part.write_text(json.dumps(self.table, indent=1, sort_keys=True))
        part.replace(path)

    def _path(self, folder: Path) -> Path:
        name = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in self.device)
        return folder / f"operators-{name}-torch{torch.__version__}.json"

    def _of_table(self, node: OpNode, inputs: tuple[Meta, ...]) -> float:
        layer = self.module.get_submodule(node.get("path")) if node.operator == "module" else None
        what = f"{type(layer).__name__}({layer.extra_repr()})" if layer is not None else written(node.attributes)
        mode = "step" if self.training else "forward"
        key = f"{mode} {node.operator} {what} {_metas(inputs)}"
        if key not in self.table:
            seconds = self._seconds(node, inputs, copy.deepcopy(layer))
            if seconds == math.inf:
                return seconds  # not stored as JSON: it fails again as fast
            self.measured += 1
            self.table[key] = seconds
        return self.table[key]

    def _seconds(self, node: OpNode, inputs: tuple[Meta, ...], layer: nn.Module | None) -> float:
        device = device_of(self.module)
        tensors = [_made(meta, device, grad=self.training) for meta in inputs]
        function, arguments, settings = _call(node, tensors, layer)
        leaves = [one for one in tree_leaves(tensors) if isinstance(one, Tensor) and one.requires_grad]
        if layer is not None:
            leaves += [one for one in layer.parameters() if one.requires_grad]

        def run() -> None:
            with torch.set_grad_enabled(self.training):
                results = [one for one in tree_leaves(function(*arguments, **settings)) if isinstance(one, Tensor)]
                backwards = [one for one in results if one.requires_grad]
                if self.training and backwards:
                    ones = [torch.ones_like(one) for one in backwards]
                    torch.autograd.grad(backwards, leaves, ones, allow_unused=True)

        try:
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):  # a dropout draws
                return _timed(run, device, self.clock)
        except torch.OutOfMemoryError:
            raise
        # Any error of a part of the user's model, or of torch for an input in a new layout.
        except Exception:
            return math.inf


class Sums:
    """The seconds of each node of a graph; after a rewrite, only changed nodes are looked up again."""

    def __init__(self, graph: OpGraph, costs: OperatorCosts) -> None:
        """Look up every node of a graph without rewrites.

        A node that raises here rejects meaningless data, as a part of the user's model may, and costs nothing, also
        after rewrites. A node that raises only after a rewrite is broken by it, and costs infinitely much.
        """
        self._costs = costs
        found = {name: costs.of(graph, name) for name in graph.nodes}
        self._failed = frozenset(name for name, seconds in found.items() if seconds == math.inf)
        self._of: Mapping[str, float] = found | dict.fromkeys(self._failed, 0.0)

    def after(self, graph: OpGraph) -> Sums:
        """Return the sums of a graph that one rewrite made from this one's."""
        other = object.__new__(Sums)
        other._costs, other._failed = self._costs, self._failed
        found = dict(self._of)
        for name in found.keys() - graph.nodes.keys():
            del found[name]
        for name in graph.changed:
            found[name] = 0.0 if name in self._failed else self._costs.of(graph, name)
        other._of = found
        return other

    @property
    def total(self) -> float:
        """Return the seconds of the whole graph."""
        return sum(self._of.values())

    def node(self, name: str) -> float:
        """Return the seconds of one node."""
        return self._of[name]


def _tensors(meta: Meta) -> bool:
    return isinstance(meta, Value) or (isinstance(meta, tuple) and any(map(_tensors, meta)))


def _metas(metas: tuple[Meta, ...]) -> str:
    return written(tuple((one.shape, str(one.dtype), one.channels_last, one.grad) if isinstance(one, Value) else one
                         for one in metas))  # fmt: skip


def _made(meta: Any, device: torch.device, *, grad: bool) -> Any:
    """Return an example input of a node: small random numbers, zeros for integers (a valid index of every table)."""
    if isinstance(meta, tuple):
        return tuple(_made(one, device, grad=grad) for one in meta)
    if not isinstance(meta, Value):
        return meta
    if not meta.dtype.is_floating_point:
        return torch.zeros(meta.shape, dtype=meta.dtype, device=device)
    generator = torch.Generator(device="cpu").manual_seed(0)
    made = torch.rand(meta.shape, generator=generator).to(device=device, dtype=meta.dtype) + 0.1
    if meta.channels_last:
        made = made.contiguous(memory_format=torch.channels_last)
    return made.requires_grad_(grad and meta.grad)


def _call(
    node: OpNode, tensors: list[Any], layer: nn.Module | None
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    if node.operator in OPERATORS:
        return spelled(node.operator, tensors, dict(node.attributes))
    arguments, settings = filled(node.get("arguments"), tensors)
    if layer is not None:
        return layer, arguments, settings
    target = node.get("target")
    return (getattr(torch.Tensor, target) if isinstance(target, str) else target), arguments, settings


def _timed(run: Callable[[], None], device: torch.device, clock: Callable[[], float]) -> float:
    # In a step, a device computes while the next operators are launched; a single run would also include the wait.
    times = _IN_A_ROW if device.type == "cuda" else 1

    def once() -> float:
        start = clock()
        for _ in range(times):
            run()
        settle(device)
        return (clock() - start) / times

    once()
    seconds = [once()]
    while len(seconds) < _MOST and (len(seconds) < REPEATS or sum(seconds) < SHORT):
        seconds.append(once())
    return statistics.median(seconds)
