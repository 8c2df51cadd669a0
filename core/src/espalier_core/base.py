"""The two base classes of documents, and helpers for names, docstrings and numbers in them.

A person writes a `Strict` model (the job file): an unknown field is a mistake and an error. One part of Espalier writes
a `Record` for another (allocation, report, advice): an unknown field comes from a newer writer of the same version and
is ignored. Both are frozen, and both are camelCase outside, snake_case inside.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Hashable, Iterable
from difflib import get_close_matches
from itertools import pairwise
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

MAX_NUMBER: Final = 2**53
"""The largest whole number that every reader of JSON understands."""
DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
"""The pattern of a Kubernetes name, which has at most 63 characters."""
YEAR_SECONDS: Final = 31_536_000
"""Longest time budget, and longest time in a message about a job, in seconds."""
MAX_PATH: Final = 4096
"""Maximum length of the path of a file or a folder, in characters."""

Unicode = Annotated[str, Field(min_length=0)]
"""Text that can be written as UTF-8. JSON can contain a lone surrogate; any bound on the length rejects it."""
T = TypeVar("T", bound=Hashable)


class Strict(BaseModel):
    """Written by people: unknown fields are errors, numbers are finite."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def to_json(self) -> dict[str, Any]:
        """Return the model as plain JSON types under its camelCase names, without unset optionals."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Record(Strict):
    """Written by one part for another: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


def field_docs(owner: type) -> dict[str, str]:
    """Return the docstrings under the fields of a dataclass, or under the members of an enum, by name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    docs = {}
    for statement, following in pairwise(body.body if isinstance(body, ast.ClassDef) else []):
        match statement, following:
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = text
    return docs


def number_of(number: int, noun: str) -> str:
    """Return `0 GPUs`, `1 GPU`, `2 GPUs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a question with the known name that is most like an unknown one; '' if none is similar."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else ""


def repeated(items: Iterable[T]) -> dict[T, int]:
    """Return how often each repeated item occurs, in order of first occurrence; in linear time."""
    return {item: number for item, number in Counter(items).items() if number > 1}
