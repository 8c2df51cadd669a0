"""What is wrong with a job file, and where: the positions of pydantic's errors in the YAML document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from espalier_core.validation.wording import message_of

Loc = tuple[str | int, ...]
"""The way to a value: names of fields and places in lists."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a job file."""

    file: str
    line: int
    """From 1; 0 if the problem has no line."""
    field: str
    """Dotted path, empty for the file as a whole."""
    message: str
    """What is wrong, and what is allowed."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (place, self.field, self.message) if part)


def problems_of(error: ValidationError, document: CommentedMap, source: str, model: type[BaseModel]) -> list[Problem]:
    """Return what `model` has found in a document of the file `source`."""
    found = ((_place(details["loc"]), details) for details in _most_specific(error.errors()))
    return [problem_at(place, document, source, message_of(details, place, model)) for place, details in found]


def problem_at(place: Loc, document: CommentedMap, source: str, message: str) -> Problem:
    """Return a problem of the value at `place`, which need not be there."""
    return Problem(source, _line(document, place), _dotted(place), message)


def _most_specific(errors: list[ErrorDetails]) -> Iterator[ErrorDetails]:
    """Drop the errors of a union's other branches: the first error at a position is enough.

    pydantic counts only the valid items of a list; a list that is too short only because of that is long enough.
    """
    seen: set[Loc] = set()
    for details in errors:
        place = _place(details["loc"])
        miscounted = details["type"] == "too_short" and len(details["input"]) >= details["ctx"]["min_length"]
        if place not in seen and not miscounted:
            seen.add(place)
            yield details


def _place(loc: Loc) -> Loc:
    """Return `loc` without the name of a union's branch, which pydantic adds."""
    branches = {"int", "float", "str", "bool"}
    return loc[:-1] if loc and loc[-1] in branches else loc


def _dotted(place: Loc) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def _line(document: CommentedMap, place: Loc) -> int:
    """Return the line (from 1) of the deepest part of `place` that exists in the file."""
    node: Any = document
    line = int(node.lc.line)
    for part in place:
        try:
            if isinstance(node, CommentedMap):
                line, node = int(node.lc.key(part)[0]), node[part]
            elif isinstance(node, CommentedSeq) and isinstance(part, int):
                line, node = int(node.lc.item(part)[0]), node[part]
            else:
                break
        except (KeyError, IndexError, TypeError):
            break
    return line + 1
