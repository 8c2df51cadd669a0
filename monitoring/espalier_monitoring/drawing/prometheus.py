"""Asking a Prometheus by its HTTP API."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import httpx
import numpy as np
from numpy.typing import NDArray

_ANSWER_SECONDS: Final = 60.0


class PrometheusError(Exception):
    """It gave no answer, or refused; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time and the points at which it is looked at, in epoch seconds."""

    start: float
    end: float
    step: float

    @classmethod
    def until(cls, now: float, seconds: float, least_step: float, points: int) -> Window:
        """Return the last `seconds` with `points` points or fewer, at whole multiples of their step."""
        step = max(least_step, float(math.ceil(seconds / points)))
        end = math.floor(now / step) * step
        return cls(start=end - math.floor(seconds / step) * step, end=end, step=step)

    @property
    def points(self) -> int:
        """How many there are."""
        return round((self.end - self.start) / self.step) + 1

    @property
    def times(self) -> NDArray[np.float64]:
        """All of them."""
        return np.linspace(self.start, self.end, self.points, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Samples:
    """One series of an answer."""

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]
    """Time and value."""


class Prometheus:
    """The one at `url`; a context manager."""

    def __init__(self, url: str) -> None:
        """`PrometheusError` where `url` is none."""
        self._url = url
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise PrometheusError(f"{url!r} is no URL ({error}); write it as http://127.0.0.1:9090") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise PrometheusError(f"{url!r} is no URL of a Prometheus; write it as http://127.0.0.1:9090")
        # Prometheus is near, often forwarded to this machine: a proxy of the environment is not used.
        self._http = httpx.Client(base_url=url.rstrip("/"), timeout=_ANSWER_SECONDS, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def now(self, expression: str, at: float) -> list[Samples]:
        """Return the series of an expression at one moment."""
        found = self._get("query", {"query": expression, "time": repr(at)})
        return _series(found, "value")

    def over(self, expression: str, window: Window) -> list[Samples]:
        """Return its series over a stretch of time."""
        asked = {"query": expression, "start": repr(window.start), "end": repr(window.end), "step": repr(window.step)}
        return _series(self._get("query_range", asked), "values")

    def values(self, selector: str, label: str, window: Window) -> list[str]:
        """Return the values that a label had, in order."""
        asked = {"match[]": selector, "start": repr(window.start), "end": repr(window.end)}
        return sorted(self._get(f"label/{label}/values", asked))

    def _get(self, path: str, parameters: Mapping[str, str]) -> Any:
        try:
            answer = self._http.get(f"/api/v1/{path}", params=parameters)
        except httpx.TimeoutException as error:
            raise PrometheusError(
                f"{self._url} did not answer in {_ANSWER_SECONDS:g} s; try a shorter --last"
            ) from error
        except httpx.HTTPError as error:
            raise PrometheusError(f"{self._url} cannot be reached ({error}); is --prometheus right?") from error
        try:
            body = answer.json()
        except ValueError as error:
            message = (
                f"{self._url} is no Prometheus: it answered {answer.status_code} and no JSON; is --prometheus right?"
            )
            raise PrometheusError(message) from error
        if not isinstance(body, dict) or body.get("status") != "success":
            refused = body.get("error") if isinstance(body, dict) else None
            if refused is None:
                message = f"{self._url} is no Prometheus: it answered {answer.text[:200]!r}; is --prometheus right?"
                raise PrometheusError(message)
            raise PrometheusError(
                f"{self._url} refused: {refused}; does the query run on its page /graph? Prometheus 2.26 and newer can"
            )
        return body["data"]


def _series(data: Any, key: str) -> list[Samples]:
    if data["resultType"] == "scalar":
        return [Samples({}, (_sample(data["result"]),))]
    found = []
    for each in data["result"]:
        values = [each[key]] if key == "value" else each[key]
        found.append(Samples(each["metric"], tuple(_sample(pair) for pair in values)))
    return found


def _sample(pair: Any) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])
