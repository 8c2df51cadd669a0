"""What a widening changes: axes of parameters and buffers, and attributes of modules that hold their size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from espalier_trainer.net2net.modules import held
from espalier_trainer.net2net.widening.spaces import Segment, Spaces


@dataclass(frozen=True, slots=True)
class Edit:
    """One axis of one tensor that follows the channels."""

    paths: tuple[str, ...]
    """The tensor's names, several where it is tied."""
    dim: int
    segments: tuple[Segment, ...]
    split: bool
    """The axis is summed over (inputs of a layer), so copies divide the weight; otherwise each copy has the weight."""
    groups: int = 1


@dataclass(frozen=True, slots=True)
class Resize:
    """A number in a module's attribute, or a tuple of one number."""

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
        """Return a key that is the same for all names of one tensor."""
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
        """Record that an attribute of a module is the width of this layout."""
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
        """Return edits and resizes with the roots of spaces that may be widened; others do not change."""
        edits = [replace(edit, segments=self.spaces.followed(edit.segments, names)) for edit in self.edits.values()]
        resizes = [replace(one, segments=self.spaces.followed(one.segments, names)) for one in self.resizes.values()]
        return tuple(edits), tuple(resizes)
