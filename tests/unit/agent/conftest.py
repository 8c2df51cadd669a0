"""Models and tables that several tests of the agent share."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from fastapi import FastAPI

from espalier_agent.data import lamelas_tables
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.policy import Policy, default_policy, make_policy
from espalier_core.growth.architecture import Architecture, GrowthPoint, Layer
from espalier_core.types.outcomes import OutcomeTable

# Modules that tests share stand beside them.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def policy() -> Policy:
    """Return the shipped policy."""
    return default_policy()


@pytest.fixture(scope="session")
def fixed_policy(policy: Policy) -> Policy:
    """Return a policy with the paper's head, one output for each of three growth points, and random weights."""
    network = PolicyNetwork.seeded(NetworkConfig(encoder="lstm", growth_points=3), 0)
    return make_policy("fixed", network, policy.vocabulary, policy.lineage)


@pytest.fixture(scope="session")
def tables() -> dict[str, OutcomeTable]:
    """Return the paper's tables by name."""
    return {table.name: table for table in lamelas_tables()}


@pytest.fixture(scope="session")
def chain() -> Callable[..., Architecture]:
    """Return a maker of plain networks: linear layers in a row, each a growth point."""

    def make(depth: int, features: int = 8, operator: str = "Linear") -> Architecture:
        attributes = {"in_features": features, "out_features": features, "bias": True}
        layers = [Layer(name="input", operator="Input")]
        points = []
        for index in range(depth):
            name = f"layer{index}"
            layers.append(Layer(name=name, operator=operator, attributes=attributes, inputs=(layers[-1].name,)))
            added = Layer(name="linear", operator=operator, attributes=attributes, inputs=("",))
            points.append(GrowthPoint(id=name, kind="Linear", after=name, block=f"{name}.grown", insertion=(added,)))
        return Architecture(layers=tuple(layers), outputs=(layers[-1].name,), growth_points=tuple(points))

    return make


@pytest.fixture(scope="session")
def make_table(chain: Callable[..., Architecture]) -> Callable[..., OutcomeTable]:
    """Return a maker of small tables: the accuracy of each sequence of actions is given by a function."""

    def make(
        accuracy: Callable[[tuple[int, ...]], float], points: int = 1, decisions: int = 1, **changes: Any
    ) -> OutcomeTable:
        sequences = [
            {
                "actions": actions,
                "time_left_s": [50.0 - 5.0 * place for place in range(decisions)],
                "accuracy": accuracy(actions),
            }
            for actions in itertools.product(range(points + 1), repeat=decisions)
        ]
        fields: dict[str, Any] = {
            "source": "made for a test",
            "model": "chain",
            "scenario": "middle",
            "time_budget_s": 100.0,
            "adapt_from_s": 50.0,
            "actions": [f"action {index}" for index in range(points + 1)],
            "decisions_per_episode": decisions,
            "sequences": sequences,
            "architecture": chain(points),
        }
        return OutcomeTable.model_validate({**fields, **changes})

    return make


Call = tuple[str, str, dict[str, Any]]


@pytest.fixture(scope="session")
def call() -> Callable[[FastAPI, Sequence[Call]], list[httpx.Response]]:
    """Return a function that starts an app, sends it requests all at once, and stops it."""

    async def run(app: FastAPI, calls: Sequence[Call]) -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://agent") as client,
        ):
            return await asyncio.gather(*(client.request(method, url, **options) for method, url, options in calls))

    return lambda app, calls: asyncio.run(run(app, calls))
