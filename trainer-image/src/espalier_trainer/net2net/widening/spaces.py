"""Channel spaces: sets of channels that can only change together, the composition of a tensor's axis from them, and the
tensors and attributes that change with them.

Every layer that produces channels opens a *space*. The operations of a model unite spaces (an addition needs equal
channels on both sides), freeze them (the width of the output is fixed), or restrict how they are widened (a grouped
convolution: each group separately; a layer norm: every channel equally often).

A widening edits axes of parameters and buffers, and attributes of modules that hold their size.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm, prod

from torch import Tensor, nn

from espalier_trainer.net2net.modules import held


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive entries of an axis: `repeat` entries for each of `channels` channels of one space."""

    space: int | None
    """Space of the channels; None for channels that may not change."""
    channels: int
    repeat: int = 1

    @property
    def width(self) -> int:
        """Number of entries on the axis."""
        return self.channels * self.repeat


@dataclass(frozen=True, slots=True)
class Layout:
    """The axis of a tensor that holds channels, and the segments of that axis."""

    axis: int
    segments: tuple[Segment, ...]

    @property
    def width(self) -> int:
        """Size of the axis."""
        return sum(segment.width for segment in self.segments)

    def repeated(self, times: int) -> tuple[Segment, ...]:
        """Return the segments with `times` entries in place of each."""
        return tuple(Segment(one.space, one.channels, one.repeat * times) for one in self.segments)


class Spaces:
    """The spaces of one model: a union-find whose sets carry their restrictions."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._channels: list[int] = []
        self._reason: list[str | None] = []
        self._blocks: list[int] = []
        self._even: list[bool] = []

    def open(self, channels: int) -> int:
        """Return a new space of `channels` channels."""
        self._parent.append(len(self._parent))
        self._channels.append(channels)
        self._reason.append(None)
        self._blocks.append(1)
        self._even.append(False)
        return self._parent[-1]

    def root(self, space: int) -> int:
        """Return the root of the set of spaces united with this one."""
        while self._parent[space] != space:
            self._parent[space] = self._parent[self._parent[space]]
            space = self._parent[space]
        return space

    def followed(self, segments: Sequence[Segment], names: Container[int]) -> tuple[Segment, ...]:
        """Return the segments with the roots of their spaces; None for spaces that are not among `names`."""
        roots = [None if one.space is None else self.root(one.space) for one in segments]
        return tuple(
            replace(one, space=root if root in names else None) for one, root in zip(segments, roots, strict=True)
        )

    def freeze(self, segments: Sequence[Segment], reason: str) -> None:
        """Fix the width of the spaces of these segments; the first reason is kept."""
        for segment in segments:
            if segment.space is not None:
                root = self.root(segment.space)
                self._reason[root] = self._reason[root] or reason

    def unite(self, left: Sequence[Segment], right: Sequence[Segment], reason: str) -> None:
        """Make two axes change together; if their segments differ, freeze both with the reason."""
        if [(one.channels, one.repeat) for one in left] != [(one.channels, one.repeat) for one in right]:
            self.freeze([*left, *right], reason)
            return
        for one, other in zip(left, right, strict=True):
            if one.space is None or other.space is None:
                self.freeze([one, other], reason)
                continue
            keep, gone = sorted((self.root(one.space), self.root(other.space)))
            if keep == gone:
                continue
            self._parent[gone] = keep
            self._reason[keep] = self._reason[keep] or self._reason[gone]
            self._blocks[keep] = lcm(self._blocks[keep], self._blocks[gone])
            self._even[keep] = self._even[keep] or self._even[gone]

    def divide(self, space: int, blocks: int) -> None:
        """Require a widening in which each of `blocks` equal parts copies only its own channels."""
        root = self.root(space)
        self._blocks[root] = lcm(self._blocks[root], blocks)

    def ask_even(self, space: int) -> None:
        """Require a widening that repeats every channel equally often."""
        self._even[self.root(space)] = True

    def reason(self, space: int) -> str | None:
        """Return the reason why the space is frozen; None where it is not."""
        return self._reason[self.root(space)]

    def channels(self, space: int) -> int:
        """Return the number of channels of the space."""
        return self._channels[self.root(space)]

    def blocks(self, space: int) -> int:
        """Return the number of equal parts of a widening that copy only their own channels."""
        return self._blocks[self.root(space)]

    def even(self, space: int) -> bool:
        """Return whether every channel must be repeated equally often."""
        return self._even[self.root(space)]


def reshaped(layout: Layout, before: Sequence[int], after: Sequence[int]) -> Layout | None:
    """Return the layout after a reshape that keeps the order in memory; `None` where channels would be divided.

    `(N, C, H, W) -> (N, C*H*W)` has `H*W` consecutive entries for each channel, `(N, C, H, W) -> (N, C, H*W)` one.
    """
    leading = prod(before[: layout.axis])
    for axis, size in enumerate(after):
        if prod(after[:axis]) == leading and size >= layout.width and size % layout.width == 0:
            return Layout(axis, layout.repeated(size // layout.width))
    return None


@dataclass(frozen=True, slots=True)
class Edit:
    """One axis of one tensor that follows the channels."""

    paths: tuple[str, ...]
    """The tensor's names: several where it is tied."""
    dim: int
    segments: tuple[Segment, ...]
    split: bool
    """Whether the axis is summed over (a layer's inputs), so that copies share the weight; else each has all of it."""
    groups: int = 1


@dataclass(frozen=True, slots=True)
class Resize:
    """Attribute of a module that holds a size, as a number or a tuple of one number."""

    module: str
    attribute: str
    segments: tuple[Segment, ...]


@dataclass
class EditBook:
    """All edits of a model, collected while its channels are followed. Each axis of a tensor has one layout."""

    model: nn.Module
    spaces: Spaces
    edits: dict[tuple[int, int], Edit] = field(default_factory=dict)
    resizes: dict[tuple[str, str], Resize] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._owners: dict[int, list[str]] = {}
        self._tensors: dict[str, Tensor] = {}
        for path, tensor in (*held(self.model, "_parameters"), *held(self.model, "_buffers")):
            self._owners.setdefault(id(tensor), []).append(path)
            self._tensors[path] = tensor

    def holds(self, path: str) -> bool:
        """Return whether there is a parameter or buffer at this path."""
        return path in self._tensors

    def key(self, path: str) -> int:
        """Return a key shared by all names of one tensor."""
        return id(self._tensors[path])

    def edit(self, path: str, dim: int, segments: tuple[Segment, ...], *, split: bool = False, groups: int = 1) -> None:
        """Give an axis of a tensor this layout; if it already has one, unite the two."""
        if path not in self._tensors:
            return
        self._used.add(path)
        key = (self.key(path), dim)
        new = Edit(tuple(self._owners[key[0]]), dim, segments, split, groups)
        known = self.edits.setdefault(key, new)
        reason = f"{path!r} is used in two ways; give each use a separate parameter"
        if (known.split, known.groups) != (split, groups):
            self.spaces.freeze([*known.segments, *segments], reason)
        self.spaces.unite(known.segments, segments, reason)

    def resize(self, module: str, attribute: str, segments: tuple[Segment, ...]) -> None:
        """Record that an attribute of a module holds the width of this layout."""
        known = self.resizes.setdefault((module, attribute), Resize(module, attribute, segments))
        self.spaces.unite(known.segments, segments, f"{module!r} is called with different channels")

    def freeze_tied(self) -> None:
        """Freeze the spaces on axes of tensors that are also used where channels cannot be followed."""
        for edit in self.edits.values():
            for path in edit.paths:
                if path not in self._used:
                    self.spaces.freeze(
                        edit.segments,
                        f"{next(iter(set(edit.paths) & self._used))!r} is tied to {path!r}, whose use cannot be "
                        "followed; untie them before widening",
                    )

    def named(self, names: Mapping[int, str]) -> tuple[tuple[Edit, ...], tuple[Resize, ...]]:
        """Return edits and resizes with the roots of spaces that may be widened; the other spaces become None."""
        edits = [replace(edit, segments=self.spaces.followed(edit.segments, names)) for edit in self.edits.values()]
        resizes = [replace(one, segments=self.spaces.followed(one.segments, names)) for one in self.resizes.values()]
        return tuple(edits), tuple(resizes)
