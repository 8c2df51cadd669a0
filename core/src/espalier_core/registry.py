"""Names in settings and job files, and the objects that they select, built in or from installed packages.

A registry is one table. A built-in entry is one line in it; a user's own is an entry point of the registry's group
(https://packaging.python.org/en/latest/specifications/entry-points/) in any installed package. Both are written
`package.module:attribute`, and nothing is imported before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from pydantic_core import PydanticCustomError

T = TypeVar("T")


class RegistryError(ValueError):
    """A name is unknown, or its object cannot be loaded; the message gives name, cause and remedy."""


class Registry(Generic[T]):
    """Objects by name. Error messages call one of them `kind`; `group` is the entry points' group."""

    def __init__(self, kind: str, group: str, builtin: Mapping[str, str]) -> None:
        self.kind, self.group = kind, group
        self._builtin = {name: EntryPoint(name, value, group) for name, value in builtin.items()}

    def names(self) -> tuple[str, ...]:
        """Return all names, the built-in ones first, in the order of the table."""
        return (*self._builtin, *sorted(self._installed().keys() - self._builtin.keys()))

    def load(self, name: str) -> T:
        """Import and return the object of `name`; a built-in name cannot be replaced.

        Raise `RegistryError` if the name is unknown or its object cannot be imported.
        """
        entry = self._builtin.get(name) or self._installed().get(name)
        if entry is None:
            raise RegistryError(self.problem(name))
        try:
            return cast(T, entry.load())
        except (ImportError, AttributeError) as error:
            source = "" if entry.dist is None else f" of the package {entry.dist.name}"
            raise RegistryError(f"{self.kind} {name!r}{source}: {entry.value} cannot be loaded: {error}") from error

    def package(self, name: str) -> str:
        """Return name and version of the installed package that adds `name`; empty for a built-in or unknown one."""
        entry = None if name in self._builtin else self._installed().get(name)
        return "" if entry is None or entry.dist is None else f"{entry.dist.name} {entry.dist.version}"

    def problem(self, name: str) -> str:
        """Return the fault of `name`; empty if it is known."""
        if name in self._builtin or name in (names := self.names()):
            return ""
        return (
            f"unknown {self.kind} {name!r}; known: {', '.join(names)}. "
            f"A package adds its own as an entry point of the group {self.group!r}"
        )

    def check(self, name: str, *others: str) -> str:
        """Return a name of the registry, or one of `others`; raise pydantic's error for an enum if it is neither.

        A built-in name, as nearly all are, is found without searching the installed packages.
        """
        if name in self._builtin or name in others:
            return name
        names = (*self.names(), *others)
        if name not in names:
            *first, last = map(repr, names)
            expected = f"{', '.join(first)} or {last}" if first else last
            raise PydanticCustomError("enum", "Input should be {expected}", {"expected": expected})
        return name

    def _installed(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=self.group)}
