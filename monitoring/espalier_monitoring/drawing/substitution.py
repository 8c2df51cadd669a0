"""Texts of a dashboard: variables in queries, labels in legends, lengths of time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_LABEL: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_VALUES: Final = re.compile(r"label_values\((?P<match>.+),\s*(?P<label>\w+)\s*\)")
_LENGTH: Final = re.compile(r"(\d+)([smhd])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SCRAPES_A_RATE: Final = 4
"""A rate over as many scrapes is there even when one fails; Grafana's number."""


def substituted(text: str, values: Mapping[str, str]) -> str:
    """Return `text` with the value of each `$name` and `${name}`; `ValueError` where one has no value."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in values:
            raise ValueError(f"${name} in {text!r} has no value; known: {', '.join(sorted(values)) or 'none'}")
        return values[name]

    return _VARIABLE.sub(value, text)


def quoted(value: str) -> str:
    """Return a value as it is written between the quotes of a PromQL string."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def legend(form: str, labels: Mapping[str, str]) -> str:
    """Return the name of a series: `form` with its labels, and those alone where there is no form."""
    if not form:
        inside = ", ".join(f'{name}="{quoted(value)}"' for name, value in labels.items() if name != "__name__")
        return f"{labels.get('__name__', '')}{{{inside}}}"
    return _LABEL.sub(lambda found: labels.get(found[1], ""), form).strip()


def label_values(query: str) -> tuple[str, str]:
    """Return (selector, label) of a variable's `label_values(selector, label)`; `ValueError` for another query."""
    found = _VALUES.fullmatch(query.strip())
    if found is None:
        raise ValueError(f"the query of a variable must be label_values(SELECTOR, LABEL), not {query!r}")
    return found["match"].strip(), found["label"]


def seconds_of(text: str) -> float:
    """Return the seconds of a length of time such as `15m` or `1h30m`; `ValueError` says how it is written."""
    parts = _LENGTH.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text or not any(int(n) for n, _ in parts):
        raise ValueError(f"{text!r} is no length of time; write it as 30s, 15m, 3h, 2d or 1h30m")
    return float(sum(int(number) * _UNITS[unit] for number, unit in parts))


def length_of(seconds: float) -> str:
    """Return seconds as PromQL reads them, to the millisecond."""
    return f"{round(seconds)}s" if seconds == round(seconds) else f"{round(1000 * seconds)}ms"


def rate_interval(step: float, scrape: float) -> float:
    """Return `$__rate_interval` in seconds, where points are `step` apart and scrapes `scrape`."""
    return max(step + scrape, _SCRAPES_A_RATE * scrape)
