"""Progress of programs that do not use the library, from their log lines, metrics and posts. Pure.

A program may write anything into its log. So everything is bounded here, whatever the source: the length of a line, the
number of lines read at once, the number and size of values. Patterns are RE2's, whose time is linear in the line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from espalier_core.base import MAX_NUMBER
from espalier_core.types.program import (
    KNOWN_VALUES,
    MAX_VALUES,
    LogProgress,
    MetricsProgress,
    compile_pattern,
    is_value_name,
    selector_of,
)
from espalier_core.types.report import Metric

MAX_NUMBER_LENGTH: Final = 64
"""Maximum length of a number in a text, in characters."""
MAX_LINE_BYTES: Final = 4096
"""Maximum length of a line; longer lines are skipped."""
MAX_POST_BYTES: Final = 64 * 1024
"""Maximum size of a post; larger ones are refused."""
_OF_POSTS: Final = {"current_step": "step", "total_steps": "steps", "current_epoch": "epoch"}
"""Known values by their names in the Trainer of Hugging Face."""
_ENDS: Final = re.compile(rb"[\r\n]+")
MAX_PAGE_BYTES: Final = 256 * 1024
"""Maximum size of a metrics page; the rest is not read."""
_MAX_CANDIDATES: Final = 1000
"""Maximum number of parsed lines, which begin with the name of a wanted series."""


def number_of(value: Any) -> float | None:
    """Return a finite number; None for anything else. A text is parsed as a number, with or without `%` at its end."""
    if isinstance(value, str):
        text = value.strip().removesuffix("%").strip()
        if len(text) > MAX_NUMBER_LENGTH:
            return None
        try:
            value = float(text)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


@dataclass(frozen=True, slots=True)
class ProgramReading:
    """The newest value of each name."""

    values: Mapping[str, float] = field(default_factory=dict)
    planned_steps: int | None = None
    """Total steps by the job's specification, for a program that does not report them."""

    def then(self, newer: Mapping[str, float], steps: int | None = None) -> ProgramReading:
        """Return the reading after `newer` values; `steps` is the total for a program that does not report it."""
        merged = {**self.values, **newer}
        if merged == self.values and steps == self.planned_steps:
            return self
        return ProgramReading(dict(list(merged.items())[:MAX_VALUES]), steps)

    @property
    def step(self) -> int:
        """Steps done; 0 if unknown."""
        return self._count("step")

    @property
    def epoch(self) -> int:
        """Epochs done; 0 if unknown."""
        return self._count("epoch")

    @property
    def fraction(self) -> float | None:
        """The part of its work that is done, 0 to 1; None if unknown.

        The program's own report of it comes first, then the part of its steps, then the part of its epochs.
        """
        if "fraction" in self.values:
            return _clamped(self.values["fraction"])
        if "percent" in self.values:
            return _clamped(self.values["percent"] / 100)
        wholes = {"step": self.values.get("steps", self.planned_steps or 0.0), "epoch": self.values.get("epochs", 0.0)}
        for done, whole in wholes.items():
            if done in self.values and whole > 0:
                return _clamped(self.values[done] / whole)
        return None

    @property
    def figures(self) -> tuple[Metric, ...]:
        """All other values."""
        return tuple(Metric(name=name, value=value) for name, value in self.values.items() if name not in KNOWN_VALUES)

    def _count(self, name: str) -> int:
        return int(max(0.0, min(self.values.get(name, 0.0), float(MAX_NUMBER))))


NOTHING: Final = ProgramReading()


def _clamped(share: float) -> float:
    return max(0.0, min(1.0, share))


def lines_of(data: bytes) -> Iterator[str]:
    """Yield the lines of a piece of output; each state of a progress bar that rewrites its line is a line.

    Invalid UTF-8 is replaced. Lines longer than `MAX_LINE_BYTES` are left out.
    """
    for raw in _ENDS.split(data):
        if 0 < len(raw) <= MAX_LINE_BYTES:
            yield raw.decode("utf-8", errors="replace")


class LineReader:
    """Reads values from lines by a job's `progress.log`."""

    def __init__(self, log: LogProgress) -> None:
        """Compile the pattern; raises `ValueError` if it is invalid."""
        self._pattern: Any = None if log.pattern is None else compile_pattern(log.pattern)
        self._keys = log.json_lines or {}

    def values(self, lines: Iterable[str]) -> dict[str, float]:
        """Return the newest value of each name in `lines`, oldest line first; other values than numbers are dropped."""
        found: dict[str, float] = {}
        for line in lines:
            found.update(self._of_line(line))
        return found

    def _of_line(self, line: str) -> dict[str, float]:
        given = self._matched(line) if self._pattern is not None else self._of_json(line)
        numbers = ((name, number_of(value)) for name, value in given.items())
        return {name: number for name, number in numbers if number is not None}

    def _matched(self, line: str) -> dict[str, Any]:
        match = self._pattern.search(line)
        return {} if match is None else match.groupdict()

    def _of_json(self, line: str) -> dict[str, Any]:
        if not line.lstrip().startswith("{"):
            return {}
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            return {}
        return {name: document[key] for name, key in self._keys.items() if key in document}


def values_of_page(page: bytes, metrics: MetricsProgress) -> dict[str, float]:
    """Return the value of each series in `page`, the first of several that match.

    Only lines that begin with a wanted name are parsed, each alone, so that a damaged line affects only itself.
    """
    wanted = {name: selector_of(series) for name, series in metrics.series.items()}
    names = {series for series, _ in wanted.values()}
    found: dict[str, float] = {}
    candidates = 0
    for raw in page[:MAX_PAGE_BYTES].split(b"\n"):
        line = raw.decode("utf-8", errors="replace") if len(raw) <= MAX_LINE_BYTES else ""
        head = line.partition("{")[0].partition(" ")[0]
        if head not in names:
            continue
        candidates += 1
        if candidates > _MAX_CANDIDATES:
            break
        for sample_name, labels, value in _samples(line):
            for name, (series, needed) in wanted.items():
                if series == sample_name and name not in found and needed.items() <= labels.items():
                    number = number_of(value)
                    if number is not None:
                        found[name] = number
    return found


def _samples(line: str) -> list[tuple[str, dict[str, str], float]]:
    try:
        families = list(text_string_to_metric_families(line))
    except (ValueError, IndexError, KeyError):
        return []
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def values_of_post(body: bytes) -> dict[str, float]:
    """Return the values of a post in the protocol of Kubeflow Trainer, without unnamed values and non-numbers.

    It is `{"trainerStatus": {"progressPercentage": 40, "estimatedRemainingSeconds": 60, "metrics": [{"name": "loss",
    "value": "0.7"}]}}`, each part optional (TrainJobStatus of trainer.kubeflow.org/v1alpha1). Raises `ValueError` for
    any other body.
    """
    try:
        document = json.loads(body)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    status = document.get("trainerStatus") if isinstance(document, dict) else None
    metrics = (status.get("metrics") or []) if isinstance(status, dict) else None
    if not isinstance(status, dict) or not isinstance(metrics, list):
        raise ValueError('has no trainerStatus; post {"trainerStatus": {"progressPercentage": 40, "metrics": []}}')
    given = {"percent": status.get("progressPercentage"), "remaining_seconds": status.get("estimatedRemainingSeconds")}
    for metric in metrics[:_MAX_CANDIDATES]:
        name = metric.get("name") if isinstance(metric, dict) else None
        if isinstance(name, str) and is_value_name(name):
            given[_OF_POSTS.get(name, name)] = metric.get("value")
    numbers = ((name, number_of(value)) for name, value in given.items())
    return {name: number for name, number in numbers if number is not None}
