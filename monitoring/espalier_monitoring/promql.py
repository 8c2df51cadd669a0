"""PromQL: expressions that are needed in several places, and which metrics and labels one names.

Enough of its grammar for that, and no more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

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


def risen(metric: str, selector: str, window: str) -> str:
    """Return PromQL for how much a counter rose in `window`, for each of its series.

    `increase` alone misses the first event of a series, which comes into being at 1, and rare events are all first.
    A series is new that was not there in the hour before: a shorter gap in the scrapes does not make it so.
    """
    series = f"{metric}{selector}"
    new = f"({series} unless max_over_time({series}[1h] offset {window}))"
    return f"({new} or increase({series}[{window}]))"


def rises(metric: str, by: str = "") -> str:
    """Return a panel's query for how much a counter of rare events rose, apart by the labels `by`."""
    return f"sum {f'by ({by}) ' if by else ''}({risen(metric, '', '$__rate_interval')})"


def quantiles(metric: str, by: str = "", selector: str = "", *, rare: bool = False) -> tuple[tuple[str, str], ...]:
    """Return queries and legends for the median and 99th percentile of a histogram, apart by the label `by`.

    `rare`: of what happens now and then, so that the first of it counts, too.
    """
    buckets = f"{metric}_bucket"
    rise = risen(buckets, selector, "$__rate_interval") if rare else f"rate({buckets}{selector}[$__rate_interval])"
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return tuple(
        (f"histogram_quantile({share}, sum by ({labels}) ({rise}))", name)
        for share, name in ((0.5, f"p50{legend}"), (0.99, f"p99{legend}"))
    )


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
