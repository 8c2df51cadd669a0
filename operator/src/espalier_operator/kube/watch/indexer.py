"""The known objects of one kind. Events and lists may come in any order; the newest version counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from espalier_core.k8s.resources import Raw, key_of, version_of

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class Indexer(Generic[T]):
    """Values and versions of objects by key (`namespace/name`).

    `parse` makes the value, None for an object that is not needed; it gets the previous value and is called only for
    new versions. `changed` is called with (key, before, after) for every change.
    """

    def __init__(
        self, parse: Callable[[Raw, T | None], T | None], changed: Callable[[str, T | None, T | None], None]
    ) -> None:
        """Nothing is known yet."""
        self._parse, self._changed = parse, changed
        self._values: dict[str, T] = {}
        self._versions: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        """Versions of deletions, while an older list may still contain the objects."""
        self.listed_version: int | None = None
        """Version of the last list; None: not all objects are known."""

    def get(self, key: str) -> T | None:
        """Return the value of an object; None where it does not exist."""
        return self._values.get(key)

    def values(self) -> Iterator[T]:
        """Yield all values."""
        return iter(self._values.values())

    def mapping(self) -> Mapping[str, T]:
        """Return the values by key, which must not be changed."""
        return self._values

    def is_gone(self, key: str, version: int) -> bool:
        """Return whether the object is known not to exist as of `version` (False if not seen yet)."""
        if key in self._values:
            return False
        return key in self._gone or (self.listed_version is not None and self.listed_version >= version)

    def is_current(self, key: str, version: int) -> bool:
        """Return whether the known state of an object is as of `version` or newer."""
        return version <= self._versions.get(key, -1) or version <= self._gone.get(key, -1)

    def put(self, raw: Raw) -> None:
        """Add or update an object."""
        key, version = key_of(raw), version_of(raw)
        if self.is_current(key, version):
            return
        before = self._values.get(key)
        after = self._parse(raw, before)
        if after is None:
            self._forget(key, version)
            return
        self._values[key], self._versions[key] = after, version
        self._gone.pop(key, None)
        self._changed(key, before, after)

    def drop(self, key: str, version: int) -> None:
        """Record the deletion of an object, as of `version`."""
        if version >= self._versions.get(key, -1):
            self._forget(key, version, remember=True)

    def replace(self, raws: Iterable[Raw], version: int, put: Iterable[str] = ()) -> None:
        """Record all objects as of `version`; known objects that are missing count as deleted.

        `put` are keys of objects that were put already, as putting tens of thousands again takes long.
        """
        there = set(put)
        for raw in raws:
            there.add(key_of(raw))
            self.put(raw)
        for key, known in list(self._versions.items()):
            if key not in there and known <= version:
                self._forget(key, known)
        self._gone = {key: at for key, at in self._gone.items() if at > version}
        self.listed_version = max(version, self.listed_version or 0)

    def change(self, key: str, value: T) -> None:
        """Replace the value of an existing object that has not changed."""
        before, self._values[key] = self._values[key], value
        self._changed(key, before, value)

    def _forget(self, key: str, version: int, *, remember: bool = False) -> None:
        before = self._values.pop(key, None)
        self._versions.pop(key, None)
        if before is not None or remember:
            self._gone[key] = max(version, self._gone.get(key, -1))
        if before is not None:
            self._changed(key, before, None)


def discard(sets: dict[K, set[V]], key: K, value: V) -> None:
    """Remove `value` from a set, and the set when it is empty, as names of nodes and pools are ever new."""
    if (found := sets.get(key)) is not None:
        found.discard(value)
        if not found:
            del sets[key]
