"""Models and tables that several tests of the agent share."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from fastapi import FastAPI

from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.policy import Policy, default_policy, make_policy
from outcome_tables import chain, make_table, tables  # noqa: F401 - fixtures

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
