"""Problems in a file with jobs and queues: their lines (from pydantic's positions), the value, and the allowed ones."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml.comments import CommentedMap, CommentedSeq

_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "true or false"),
    (int, "a whole number"),
    (float, "a number"),
    (str, "text"),
    (Mapping, "a mapping"),
    (list, "a list"),
)
Loc = tuple[str | int, ...]
"""The path to a value: names of fields and indices of lists."""


def kind_of(value: object) -> str:
    """Return the kind of `value`, in the terms of a job file."""
    if value is None:
        return "empty"
    return next((name for kind, name in _KINDS if isinstance(value, kind)), type(value).__name__)


_WANTED = {
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
    "model_attributes": "a mapping",
    "finite_number": "a finite number",
}


def message_of(details: ErrorDetails, place: tuple[str | int, ...], model: type[BaseModel]) -> str:
    """Return the fault at `place` of a `model`, with the allowed values."""
    kind, given, context = details["type"], details["input"], details.get("ctx", {})
    shown = json.dumps(given, ensure_ascii=False) if not isinstance(given, dict | list) else kind_of(given)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    match kind:
        case "missing":
            return "required field is missing"
        case "extra_forbidden":
            return _unknown(place, model)
        case "enum" | "literal_error":
            return f"is {shown}; allowed: {context['expected']}"
        case "value_error":
            return str(context["error"])
        case "string_pattern_mismatch":
            return f"is {shown}; must match {context['pattern']}"
        case "string_too_short":
            return "is empty; text is needed"
        case "too_short":
            return f"has {len(given)} items; at least {context.get('min_length')} needed"
        case "too_long":
            return f"has {len(given)} items; at most {context.get('max_length')} allowed"
    for key, relation in (("gt", "greater than"), ("ge", "at least"), ("lt", "less than"), ("le", "at most")):
        if key in context:
            limit = context[key]
            whole = isinstance(limit, float) and limit.is_integer()
            return f"is {shown}; must be {relation} {int(limit) if whole else limit}"
    if "_" in kind and (wanted := _WANTED.get(kind.removesuffix("_type").removesuffix("_parsing"))):
        return f"is {shown}{'' if given is None else f' ({kind_of(given)})'}; must be {wanted}"
    reason = details["msg"]
    return f"is {shown}; {reason[0].lower()}{reason[1:]}"


def _unknown(place: tuple[str | int, ...], whole: type[BaseModel]) -> str:
    known = _known_fields(place[:-1], whole)
    near = difflib.get_close_matches(str(place[-1]), known, n=1, cutoff=0.5)
    if near:
        return f"unknown field; did you mean {near[0]}?"
    return f"unknown field; known here: {', '.join(known)}"


def _known_fields(parents: tuple[str | int, ...], whole: type[BaseModel]) -> list[str]:
    """Return the camelCase names of the fields of the model at `parents` of the model `whole`."""
    model: Any = whole
    for part in parents:
        if isinstance(part, int):
            continue
        field = next((f for f in model.model_fields.values() if (f.alias or "") == part), None)
        if field is None:
            return []
        model = _model_in(field.annotation)
        if model is None:
            return []
    return sorted(field.alias or name for name, field in model.model_fields.items())


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, tuple, list) or get_args(annotation):
        return next((model for arg in get_args(annotation) if (model := _model_in(arg))), None)
    return None


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a job file."""

    file: str
    line: int
    """From 1; 0 if the problem has no line."""
    field: str
    """Dotted path, empty for the file as a whole."""
    message: str
    """The fault, with the allowed values."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (place, self.field, self.message) if part)


def problems_of(error: ValidationError, document: CommentedMap, source: str, model: type[BaseModel]) -> list[Problem]:
    """Return the problems that `model` has found in a document of the file `source`."""
    found = ((_place(details["loc"]), details) for details in _most_specific(error.errors()))
    return [problem_at(place, document, source, message_of(details, place, model)) for place, details in found]


def problem_at(place: Loc, document: CommentedMap, source: str, message: str) -> Problem:
    """Return a problem of the value at `place`, which may be absent."""
    return Problem(source, _line(document, place), _dotted(place), message)


def _most_specific(errors: list[ErrorDetails]) -> Iterator[ErrorDetails]:
    """Drop the errors of a union's other branches: the first error at a position is enough.

    pydantic counts only the valid items of a list; a list that seems too short only because of that is long enough.
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
