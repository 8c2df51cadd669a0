"""Which metrics and labels a PromQL expression names. Enough of its grammar for that, and no more."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from espalier_monitoring.boards import Board, board_text

_TOKEN: Final = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<range>\[[^\]]*\])
    |(?P<word>\$?[a-zA-Z_:][a-zA-Z0-9_:]*|\$\{[^}]*\})
    |(?P<number>[0-9][0-9a-zA-Z.]*)
    |(?P<sign>[^\s])
    |(?P<space>\s+)""",
    re.VERBOSE,
)
_GROUPING: Final = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS: Final = {
    *("and", "or", "unless", "bool", "offset", "inf", "nan", "Inf", "NaN"),
    *("sum", "max", "min", "avg", "count", "group", "topk", "bottomk", "quantile", "stddev", "count_values"),
}


@dataclass(frozen=True, slots=True)
class Names:
    """What an expression names."""

    selected: dict[str, frozenset[str]]
    """By metric: labels that its selectors name."""
    grouped: frozenset[str]
    """Labels that results are grouped or matched by."""


def names(expression: str) -> Names:
    """Return what `expression` names; `ValueError` where a selector has no metric's name."""
    tokens = [match for match in _TOKEN.finditer(expression) if match.lastgroup != "space"]
    selected: dict[str, frozenset[str]] = {}
    grouped: set[str] = set()
    at = 0
    while at < len(tokens):
        word = tokens[at].group()
        following = tokens[at + 1].group() if at + 1 < len(tokens) else ""
        at += 1
        if word == "{":
            raise ValueError(f"a selector without a metric's name in {expression!r}; name the metric before it")
        if tokens[at - 1].lastgroup != "word":
            continue
        if word in _GROUPING and following == "(":
            labels, at = _until(tokens, at + 1, ")")
            grouped |= {label.group() for label in labels if label.lastgroup == "word"}
        elif word in _GROUPING or word in _WORDS or following == "(" or word.startswith("$"):
            continue
        else:
            matchers: frozenset[str] = frozenset()
            if following == "{":
                inside, at = _until(tokens, at + 1, "}")
                matchers = frozenset(each.group() for each in inside if each.lastgroup == "word")
            selected[word] = selected.get(word, frozenset()) | matchers
    return Names(selected, frozenset(grouped))


def _until(tokens: list[re.Match[str]], at: int, end: str) -> tuple[list[re.Match[str]], int]:
    found = []
    while tokens[at].group() != end:
        found.append(tokens[at])
        at += 1
    return found, at + 1


def expressions(board: Board) -> Iterator[tuple[str, str]]:
    """Yield (where, PromQL) of all panels and annotations of a dashboard."""
    whole = json.loads(board_text(board))
    for panel in whole["panels"]:
        for target in panel.get("targets", ()):
            yield f"{whole['title']}: {panel['title']}", target["expr"]
    for annotation in whole["annotations"].get("list", ()):
        yield f"{whole['title']}: {annotation['name']}", annotation["expr"]
