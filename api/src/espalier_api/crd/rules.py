"""What the types of a job cannot say, in CEL: the API server answers a bad file at once, with the field and the remedy.

Each rule stands on the model that it is about; `self` there is the value, `oldSelf` the stored one. Rules that need
the status to know whether a job runs stand on the job as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NotRequired, TypedDict


class Rule(TypedDict):
    """A CEL rule of the API server (`x-kubernetes-validations`)."""

    rule: str
    message: str
    """What is wrong and what to do."""
    messageExpression: NotRequired[str]
    """A CEL expression for the same with the values in it; where it fails, `message` is said."""
    fieldPath: NotRequired[str]
    """The field that the answer names, seen from the place of the rule."""


RULES: Final[Mapping[str, Sequence[Rule]]] = {}
