"""The operator from outside: its CPU time and memory, how long its event loop lets a question wait, its requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.load.processes import Process, ProcessError

_PERIOD_SECONDS: Final = 0.1
_END_SECONDS: Final = 10.0
_FIRST_PLAN_SECONDS: Final = 0.05
_REST_SECONDS: Final = 1.0
_REST_CORES: Final = 0.3
"""An operator that uses less is idle: it always receives the heartbeats of thousands of nodes."""
OPERATOR: Final = "system:serviceaccount:espalier-system:espalier-operator"
_WRITES: Final = frozenset(("create", "patch"))
_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [OPERATOR]}, {"level": "None"}],
}


class Probe:
    """Asks `/healthz` ten times a second, until cancelled."""

    def __init__(self, session: aiohttp.ClientSession, operator: Process, health: int, snapshot: int) -> None:
        """Ports of its two addresses."""
        self._session, self._operator = session, operator
        self._health, self._snapshot = f"http://127.0.0.1:{health}/healthz", f"http://127.0.0.1:{snapshot}/snapshot"
        self._waits: list[float] = []
        self._cpu, self._since = 0.0, time.monotonic()

    async def run(self) -> None:
        """Ask, one question after the other."""
        while True:
            begun = time.monotonic()
            try:
                async with self._session.get(self._health) as answer:
                    await answer.read()
            except aiohttp.ClientError as error:
                await self._ended()
                raise ProcessError(f"the operator does not answer: {error}; its log: {self._operator.log}") from error
            took = time.monotonic() - begun
            self._waits.append(took)
            await asyncio.sleep(max(0.0, _PERIOD_SECONDS - took))

    async def _ended(self) -> None:
        """Raise `ProcessError` with its last words if it ends: its server closes a little before."""
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline:
            self._operator.check()
            await asyncio.sleep(_PERIOD_SECONDS)

    def begin(self) -> None:
        """Measure from now on."""
        self._waits.clear()
        self._cpu, self._since = self._operator.cpu_seconds(), time.monotonic()

    def waits(self) -> list[float]:
        """Return the seconds of all answers since `begin`."""
        return list(self._waits)

    def cpu_seconds(self) -> float:
        """Return the CPU time since `begin`."""
        return self._operator.cpu_seconds() - self._cpu

    def cores(self) -> float:
        """Return the cores used since `begin`, on average."""
        return self.cpu_seconds() / (time.monotonic() - self._since)

    async def snapshot(self) -> str | None:
        """Return what the scheduler saw last, None while it has not planned, or does not answer yet."""
        try:
            async with self._session.get(self._snapshot) as answer:
                text = await answer.text()
                return text if answer.status == 200 else None
        except aiohttp.ClientConnectorError:
            return None

    async def wait_planned(self, seconds: float) -> None:
        """Wait until the operator has made its first plan; `ProcessError` when it has not after so long."""
        deadline = time.monotonic() + seconds
        while await self.snapshot() is None:
            self._operator.check()
            if time.monotonic() > deadline:
                raise ProcessError(
                    f"the operator has planned nothing after {seconds:g} s; its log: {self._operator.log}"
                )
            await asyncio.sleep(_FIRST_PLAN_SECONDS)

    async def rest(self, seconds: float) -> None:
        """Wait until the operator has little to do, for at most so long."""
        deadline = time.monotonic() + seconds
        cores = 1.0
        while cores > _REST_CORES and time.monotonic() < deadline:
            used, begun = self._operator.cpu_seconds(), time.monotonic()
            await asyncio.sleep(_REST_SECONDS)
            self._operator.check()
            cores = (self._operator.cpu_seconds() - used) / (time.monotonic() - begun)


def audit_flags(directory: Path) -> tuple[str, ...]:
    """Write the policy into `directory` and return the API server's options for it."""
    policy = directory / "audit-policy.json"
    policy.write_text(json.dumps(_POLICY))
    return (f"--audit-policy-file={policy}", f"--audit-log-path={directory / 'audit.log'}")


@dataclass(frozen=True, slots=True)
class Requests:
    """What the operator asked of the API server."""

    counted: Counter[str]
    """By `verb resource`."""
    write_seconds: list[float]
    """Of each object made and each change: the API server's own time, from the request to its whole answer."""


@dataclass
class Audit:
    """The operator's requests in the API server's audit log: lists and watches of kopf, and retries, count."""

    directory: Path
    _read: int = field(init=False, default=0)

    def take(self) -> Requests:
        """Return the requests since the last call, those of the Lease left out."""
        taken = Requests(Counter(), [])
        with (self.directory / "audit.log").open("rb") as log:
            log.seek(self._read)
            for line in log:
                if not line.endswith(b"\n"):
                    break  # being written
                self._read += len(line)
                entry = json.loads(line)
                if name := _name_of(entry):
                    taken.counted[name] += 1
                    if entry["verb"] in _WRITES:
                        taken.write_seconds.append(_seconds_of(entry))
        return taken


def _name_of(entry: dict[str, Any]) -> str:
    """Return `verb resource`; '' for what is not counted."""
    reference = entry.get("objectRef", {})
    # A watch is entered when it begins and when it ends.
    begins = entry["stage"] == ("ResponseStarted" if entry["verb"] == "watch" else "ResponseComplete")
    if reference.get("resource") == "leases" or not begins:
        return ""
    subresource = reference.get("subresource")
    return f"{entry['verb']} {reference.get('resource', 'other')}{f'/{subresource}' if subresource else ''}"


def _seconds_of(entry: dict[str, Any]) -> float:
    begun, ended = (datetime.fromisoformat(entry[name]) for name in ("requestReceivedTimestamp", "stageTimestamp"))
    return (ended - begun).total_seconds()
