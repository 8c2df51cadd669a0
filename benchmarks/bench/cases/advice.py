"""Latency of one consultation: in this process, and over HTTP against a real server process.

One table: case, p50, p99 and maximum in milliseconds, n. `cnn1` is answered by the policy of the tables, a chain of N
layers, each of which can be deepened, by the trees for models not met. HTTP requests go one after the other over one
kept connection, except in the case `8 clients`, where eight threads ask at once. Not reported: start-up of the server
(import of torch, about two seconds) and the first request, which warms caches up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import httpx

from bench.command import BenchError, Option
from bench.printing import Columns, Parts, Table
from bench.statistics import percentile
from espalier_agent.data import named_architecture
from espalier_agent.policies.advice import advise
from espalier_agent.policies.policy import default_policy
from espalier_core.growth.architecture import Architecture, GrowthPoint, Layer
from espalier_core.types.advice import AdviceRequest

CHAINS = (30, 100, 500)
"""Growths of the models that no policy has met."""
OPTIONS = {"requests": Option(500)}
QUICK = {"requests": 40}
COLUMNS: Columns = (
    ("case", "case", ""),
    ("p50", "p50_ms", ".2f"),
    ("p99", "p99_ms", ".2f"),
    ("max", "max_ms", ".2f"),
    ("n", "n", "d"),
)


def long_chain(depth: int) -> Architecture:
    """Return a network of `depth` linear layers that no policy has seen, each a growth point."""
    layers = [Layer(name="input", operator="Input")]
    points = []
    for index in range(depth):
        attributes = {"in_features": 100 + index, "out_features": 101 + index, "bias": True}
        name = f"layer{index}"
        layers.append(Layer(name=name, operator="Linear", attributes=attributes, inputs=(layers[-1].name,)))
        added = Layer(name="linear", operator="Linear", attributes=attributes, inputs=("",))
        points.append(GrowthPoint(id=name, kind="Linear", after=name, block=f"{name}.grown", insertion=(added,)))
    return Architecture(layers=tuple(layers), outputs=(layers[-1].name,), growth_points=tuple(points))


def request(architecture: Architecture) -> AdviceRequest:
    """Return a consultation about this model."""
    return AdviceRequest(job="bench", architecture=architecture, time_left_seconds=300, time_budget_seconds=400)


def timed(call: Callable[[], object], count: int) -> list[float]:
    """Return the seconds of `count` calls, one after the other, after one that is not counted."""
    call()
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return seconds


@contextmanager
def server() -> Iterator[str]:
    """Run the agent as its own process and yield its URL."""
    command = [sys.executable, "-m", "espalier_agent", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            url = process.stdout.readline().strip() if process.stdout else ""
            if not url:
                raise BenchError("the server did not start; run it by hand to see why")
            yield url
        finally:
            process.terminate()


def over_http(url: str, body: bytes, count: int) -> list[float]:
    """Return the seconds of requests over one kept connection."""
    with httpx.Client(base_url=url, headers={"content-type": "application/json"}) as client:
        return timed(lambda: client.post("/v1/advice", content=body).raise_for_status(), count)


def measure(count: int) -> dict[str, list[float]]:
    """Return the seconds of each case."""
    policy = default_policy()
    asked = {"cnn1": request(named_architecture("cnn1"))} | {f"{n} growths": request(long_chain(n)) for n in CHAINS}
    counts = {name: max(20, count // 10) if name == f"{CHAINS[-1]} growths" else count for name in asked}
    bodies = {name: json.dumps(one.to_json()).encode() for name, one in asked.items()}
    results = {}
    for name, one in asked.items():
        results[f"in process, {name}"] = timed(partial(advise, policy, one, "d"), counts[name])
    with server() as url:
        for name, body in bodies.items():
            results[f"HTTP, {name}"] = over_http(url, body, counts[name])
        with ThreadPoolExecutor(8) as pool:
            rounds = pool.map(lambda _: over_http(url, bodies["cnn1"], count // 8), range(8))
            results["HTTP, cnn1, 8 clients"] = [seconds for part in rounds for seconds in part]
    return results


def run(options: argparse.Namespace) -> Parts:
    """Measure, and give the table."""
    rows = (
        {
            "case": case,
            "p50_ms": 1e3 * percentile(seconds, 0.50),
            "p99_ms": 1e3 * percentile(seconds, 0.99),
            "max_ms": 1e3 * max(seconds),
            "n": len(seconds),
        }
        for case, seconds in measure(options.requests).items()
    )
    yield Table.of("Latency, ms", COLUMNS, rows)
