"""The graph encoder: neither order nor names matter, any graph is read, and the pointer serves any number of points."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from drawn_graphs import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier_agent.data import named_architecture
from espalier_agent.policies.graph_encoder import time_features
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_core.growth.architecture import Architecture, Layer
from espalier_core.growth.deepen import deepened

VOCABULARY = Vocabulary.build((), 0)
NETWORK = PolicyNetwork.seeded(NetworkConfig(encoder="graph", growth_points=1), 7)


def logits(architecture: Architecture, left: float = 30.0) -> list[float]:
    one = torch.tensor([left], dtype=torch.float64)
    with torch.inference_mode():
        row = NETWORK.logits(NETWORK.prepare([architecture], VOCABULARY), torch.tensor([0]), one, one * 0 + 100.0)
    return [float(value) for value in row[0]]


def reordered(architecture: Architecture, chance: random.Random) -> Architecture:
    """Return the same graph with other names, its layers in another order that its edges allow."""
    left = list(architecture.layers)
    order: list[Layer] = []
    while left:
        done = {layer.name for layer in order}
        ready = [layer for layer in left if set(layer.inputs) <= done]
        order.append(chance.choice(ready))
        left.remove(order[-1])
    fresh = {layer.name: f"n{index}" for index, layer in enumerate(chance.sample(order, len(order)))}
    layers = tuple(
        layer.model_copy(
            update={
                "name": fresh[layer.name],
                "inputs": tuple(fresh[name] for name in layer.inputs),
                "attributes": dict(reversed(layer.attributes.items())),
            }
        )
        for layer in order
    )
    points = tuple(
        point.model_copy(update={"id": f"p{index}", "after": fresh[point.after], "block": f"b{index}"})
        for index, point in enumerate(architecture.growth_points)
    )
    return Architecture(
        layers=layers, outputs=tuple(fresh[name] for name in architecture.outputs), growth_points=points
    )


@settings(max_examples=60, deadline=None)
@given(architecture=graphs(), chance=st.randoms(use_true_random=False))
def test_order_and_names_of_layers_change_nothing(architecture: Architecture, chance: random.Random) -> None:
    assert logits(reordered(architecture, chance)) == pytest.approx(logits(architecture), rel=1e-4, abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(architecture=graphs(least_points=2), chance=st.randoms(use_true_random=False))
def test_permuted_growth_points_have_permuted_scores(architecture: Architecture, chance: random.Random) -> None:
    order = chance.sample(range(len(architecture.growth_points)), len(architecture.growth_points))
    points = tuple(architecture.growth_points[place] for place in order)
    before, after = logits(architecture), logits(architecture.model_copy(update={"growth_points": points}))
    assert after == pytest.approx([*(before[place] for place in order), before[-1]], rel=1e-4, abs=1e-4)


def test_models_are_encoded_alike_alone_and_with_larger_ones(chain: Callable[..., Architecture]) -> None:
    small, large = named_architecture("cnn1"), chain(40)
    both = NETWORK.prepare([large, small], VOCABULARY)
    times = torch.tensor([30.0], dtype=torch.float64)
    row = NETWORK.logits(both, torch.tensor([1]), times, times * 0 + 100.0)[0]
    torch.testing.assert_close([*row[:3].tolist(), row[-1].item()], logits(small), rtol=1e-4, atol=1e-5)


def test_an_edge_and_a_growth_are_seen(chain: Callable[..., Architecture]) -> None:
    model = chain(3)
    skipped = model.layers[3].model_copy(update={"inputs": ("layer1", "layer0")})
    joined = model.model_copy(update={"layers": (*model.layers[:3], skipped, *model.layers[4:])})
    for other in (joined, deepened(model, "layer1")):
        assert logits(other) != pytest.approx(logits(model), abs=1e-4)


def test_no_two_moments_of_a_budget_look_alike() -> None:
    shares = torch.linspace(0, 1, 101, dtype=torch.float64)
    found = time_features(shares * 40, torch.full_like(shares, 40.0))
    assert torch.cdist(found, found).fill_diagonal_(1.0).min() > 0.01
    torch.testing.assert_close(found, time_features(shares * 400, torch.full_like(shares, 400.0)))
