"""What the operator says of its health, over HTTP."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from espalier_operator.kube.process.health import ALIVE_SECONDS, Address, Heartbeats, serve_health
from espalier_operator.model import Snapshot
from ports import free_port


async def _asked(pulse: Heartbeats, *paths: str) -> list[tuple[int, str]]:
    port = free_port()
    answers = []
    async with serve_health(pulse, Address("127.0.0.1", port), None), aiohttp.ClientSession() as session:
        for path in paths:
            async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                answers.append((answer.status, await answer.text()))
    return answers


@pytest.mark.parametrize(
    ("age", "waits_for", "planned", "healthy", "ready"),
    [
        (None, None, False, 503, 503),
        (1.0, None, False, 200, 503),
        (1.0, None, True, 200, 200),
        (ALIVE_SECONDS + 1, None, True, 503, 503),
        (1.0, "another", False, 200, 200),
        (ALIVE_SECONDS + 1, "another", False, 503, 503),
    ],
)
def test_an_operator_is_ready_when_it_has_planned_or_could_take_over(
    age: float | None, waits_for: str | None, planned: bool, healthy: int, ready: int
) -> None:
    snapshot = Snapshot(taken_at=0.0) if planned else None
    pulse = Heartbeats(age=lambda: age, waits_for=lambda: waits_for, snapshot=lambda: snapshot)
    answers = asyncio.run(_asked(pulse, "/healthz", "/readyz"))
    assert [status for status, _ in answers] == [healthy, ready]
    if (healthy, ready) == (200, 503):
        assert answers[1][1] == "nothing was planned yet\n"
