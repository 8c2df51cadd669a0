"""Outcome tables of tests, as fixtures: those of the paper, and small ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from espalier_agent.data import lamelas_tables
from espalier_core.growth.architecture import Architecture, GrowthPoint, Layer
from espalier_core.types.outcomes import OutcomeTable


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
