"""Asking a Prometheus by its HTTP API."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    samples: Sequence[tuple[float, str]]
    """Time and value, as Prometheus writes them."""


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

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def now(self, expression: str, at: float) -> list[Samples]:
        """Return the series of an expression at one moment."""
        found = self._get("query", {"query": expression, "time": repr(at)})
        return [Samples(each["metric"], [each["value"]]) for each in found["result"]]

    def over(self, expression: str, window: Window) -> list[Samples]:
        """Return its series over a stretch of time."""
        asked = {"query": expression, "start": repr(window.start), "end": repr(window.end), "step": repr(window.step)}
        return [Samples(each["metric"], each["values"]) for each in self._get("query_range", asked)["result"]]

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
        other = f"{self._url} is no Prometheus: it answered"
        try:
            body = answer.json()
        except ValueError as error:
            raise PrometheusError(f"{other} {answer.status_code} and no JSON; is --prometheus right?") from error
        body = body if isinstance(body, dict) else {}
        if body.get("status") == "success":
            return body["data"]
        if "error" not in body:
            raise PrometheusError(f"{other} {answer.text[:200]!r}; is --prometheus right?")
        refused = f"{self._url} refused: {body['error']}"
        raise PrometheusError(f"{refused}; does the query run on its page /graph? Prometheus 2.26 and newer can")
