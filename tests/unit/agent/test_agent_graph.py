"""The graph encoder: neither order nor names matter, any graph is read, and the pointer serves any number of points."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier_agent.data import named_architecture
from espalier_agent.policies.advice import decide
from espalier_agent.policies.graph_encoder import time_features
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.policy import Lineage, Policy, load_policy, make_policy, save_policy
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_core.base import YEAR_SECONDS
from espalier_core.growth.architecture import Architecture, GrowthPoint, Layer
from espalier_core.growth.deepen import deepened
from espalier_core.types.advice import Action, AdviceRequest

VOCABULARY = Vocabulary.build((), 0)
NETWORK = PolicyNetwork.seeded(NetworkConfig(encoder="graph", growth_points=1), 7)


def logits(architecture: Architecture, left: float = 30.0) -> list[float]:
    one = torch.tensor([left], dtype=torch.float64)
    with torch.inference_mode():
        row = NETWORK.logits(NETWORK.prepare([architecture], VOCABULARY), torch.tensor([0]), one, one * 0 + 100.0)
    return [float(value) for value in row[0]]


@pytest.fixture(scope="module")
def graph_policy() -> Policy:
    lineage = Lineage(learner="none", config={}, seed=7, episodes=0, tables=())
    return make_policy("graph", NETWORK, VOCABULARY, lineage)


attributes = st.dictionaries(
    st.sampled_from(["in_channels", "out_channels", "kernel_size", "bias"]) | st.text(max_size=4),
    st.integers() | st.booleans() | st.text(max_size=4) | st.tuples(st.integers(), st.integers()) | st.none(),
    max_size=3,
)


@st.composite
def graphs(draw: st.DrawFn, least_points: int = 0) -> Architecture:
    """Any DAG: branches, several inputs and outputs, growth points anywhere, some grown."""
    count = draw(st.integers(max(least_points, 1), 10))
    layers: list[Layer] = []
    for index in range(count):
        layers.append(
            Layer(
                name=f"layer{index}",
                operator=draw(st.sampled_from(["Conv2d", "Linear", "Add", "ReLU"]) | st.text(max_size=6)),
                attributes=draw(attributes),
                inputs=tuple(layer.name for layer in layers if draw(st.booleans())),
                parameters=draw(st.integers(0, 10**12)),
            )
        )
    points = tuple(
        GrowthPoint(
            id=f"point{index}",
            kind="Linear",
            after=f"layer{index}",
            block=f"grown{index}",
            grown=draw(st.integers(0, 3)),
            insertion=(Layer(name="added", operator="Linear", attributes=draw(attributes), inputs=("",)),),
        )
        for index in range(draw(st.integers(least_points, count)))
    )
    return Architecture(layers=tuple(layers), outputs=(f"layer{count - 1}",), growth_points=points)


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


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_graph_of_any_operators_is_answered_with_what_it_offers(graph_policy: Policy, data: st.DataObject) -> None:
    request = AdviceRequest(
        job="job",
        architecture=data.draw(graphs()),
        time_left_seconds=data.draw(st.floats(0, YEAR_SECONDS)),
        time_budget_seconds=data.draw(st.floats(1e-9, YEAR_SECONDS)),
    )
    decision = decide(graph_policy, request)
    chances = [entry.probability for entry in decision.probabilities]
    assert decision.action in request.actions()
    assert len(chances) == len(request.architecture.growth_points) + 1
    assert sum(chances) == pytest.approx(1)
    assert all(chance > 0 for chance in chances)


def test_models_are_encoded_alike_alone_and_with_larger_ones(chain: Callable[..., Architecture]) -> None:
    small, large = named_architecture("cnn1"), chain(40)
    both = NETWORK.prepare([large, small], VOCABULARY)
    times = torch.tensor([30.0], dtype=torch.float64)
    row = NETWORK.logits(both, torch.tensor([1]), times, times * 0 + 100.0)[0]
    torch.testing.assert_close([*row[:3].tolist(), row[-1].item()], logits(small), rtol=1e-4, atol=1e-5)


def test_an_edge_is_seen(chain: Callable[..., Architecture]) -> None:
    model = chain(3)
    skipped = model.layers[3].model_copy(update={"inputs": ("layer1", "layer0")})
    joined = model.model_copy(update={"layers": (*model.layers[:3], skipped, *model.layers[4:])})
    assert logits(joined) != pytest.approx(logits(model), abs=1e-4)


def test_growing_a_point_changes_its_score(chain: Callable[..., Architecture]) -> None:
    model = chain(3)
    assert logits(deepened(model, "layer1")) != pytest.approx(logits(model), abs=1e-4)


def test_without_growth_points_nothing_is_the_only_answer(graph_policy: Policy) -> None:
    bare = Architecture(layers=(Layer(name="x", operator="Linear"),), outputs=("x",))
    request = AdviceRequest(job="j", architecture=bare, time_left_seconds=1.0, time_budget_seconds=2.0)
    assert decide(graph_policy, request).action == Action.nothing()


def test_no_two_moments_of_a_budget_look_alike() -> None:
    shares = torch.linspace(0, 1, 101, dtype=torch.float64)
    found = time_features(shares * 40, torch.full_like(shares, 40.0))
    assert torch.cdist(found, found).fill_diagonal_(1.0).min() > 0.01
    torch.testing.assert_close(found, time_features(shares * 400, torch.full_like(shares, 400.0)))


def test_a_graph_policy_is_read_as_it_was_written(
    graph_policy: Policy, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("policy")
    save_policy(graph_policy, folder)
    read = load_policy(folder)
    assert (read.version, read.network.config) == (graph_policy.version, graph_policy.network.config)
    request = AdviceRequest(
        job="j", architecture=named_architecture("cnn2"), time_left_seconds=10.0, time_budget_seconds=40.0
    )
    assert decide(read, request) == decide(graph_policy, request)


def test_500_layers_are_answered(graph_policy: Policy, chain: Callable[..., Architecture]) -> None:
    request = AdviceRequest(
        job="j", architecture=chain(500, operator="NeverSeen"), time_left_seconds=10.0, time_budget_seconds=40.0
    )
    decision = decide(graph_policy, request)
    assert len(decision.probabilities) == 501
