"""Any model gets an answer, and the answer is always one that was allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from bodies import ask
from drawn_graphs import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

import sweeps
from espalier_agent.data import named_architecture
from espalier_agent.policies.advice import advise, decide
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.policy import Policy, make_policy
from espalier_core.base import YEAR_SECONDS
from espalier_core.growth.architecture import Architecture, Layer
from espalier_core.types.advice import Action

HEAD = 3
"""Growth points that the head of `fixed_policy` has outputs for."""


@pytest.fixture(scope="module", params=["graph", "lstm"])
def either(policy: Policy, request: pytest.FixtureRequest) -> Policy:
    """Return a policy of either kind, with random weights."""
    if request.param == "lstm":
        found: Policy = request.getfixturevalue("fixed_policy")
        return found
    network = PolicyNetwork.seeded(NetworkConfig(encoder="graph", growth_points=HEAD), 0)
    return make_policy("graph", network, policy.vocabulary, policy.lineage)


def scores(policy: Policy) -> list[Any]:
    """Return the layers of the decider, the last ones last: of points and of nothing where they are apart."""
    decider: Any = policy.network.decider
    if policy.network.config.encoder == "lstm":
        return [decider[2], decider[-1]]
    return [decider.point_score[1], decider.nothing_score[-1], decider.point_score[-1]]


@settings(max_examples=sweeps.examples(60), deadline=None)
@given(data=st.data())
def test_only_what_is_allowed_is_ever_advised(either: Policy, data: st.DataObject) -> None:
    architecture = data.draw(graphs())
    offered = [point.id for point in architecture.growth_points]
    allowed = data.draw(st.none() | st.lists(st.sampled_from([*offered, "elsewhere"]), unique=True))
    request = ask(
        architecture,
        time_left_seconds=data.draw(st.floats(0, YEAR_SECONDS)),
        time_budget_seconds=data.draw(st.floats(1e-9, YEAR_SECONDS)),
        allowed_actions=None if allowed is None else [Action.deepen(point) for point in allowed],
    )
    legal = [point for point in offered if allowed is None or point in allowed]
    for seed in (None, 0):
        decision = decide(either, request, sample_seed=seed)
        head = HEAD if either.network.config.encoder == "lstm" else len(offered)
        if decision.action.kind == "Deepen":
            assert decision.action.target in legal
            assert decision.action.target in offered[:head]
        assert [str(entry.action) for entry in decision.probabilities] == [*(f"Deepen({p})" for p in legal), "Nothing"]
        chances = {entry.action.target: entry.probability for entry in decision.probabilities}
        assert sum(chances.values()) == pytest.approx(1)
        assert all(chances[point] == 0 for point in legal if point in offered[head:])
        assert chances[decision.action.target] > 0
    greedy = decide(either, request)
    assert max(chances.values()) == chances[greedy.action.target]
    assert greedy == decide(either, request)


def test_without_growth_points_nothing_is_the_only_answer(policy: Policy) -> None:
    bare = Architecture(layers=(Layer(name="x", operator="Linear"),), outputs=("x",))
    decision = decide(policy, ask(bare))
    assert decision.action == Action.nothing()
    assert [entry.probability for entry in decision.probabilities] == [1.0]


def test_masking_leaves_the_proportions_of_the_others(policy: Policy) -> None:
    cnn1 = named_architecture("cnn1")
    free = {e.action.target: e.probability for e in decide(policy, ask(cnn1)).probabilities}
    allowed = [Action.deepen("block0"), Action.deepen("block2")]
    masked = {e.action.target: e.probability for e in decide(policy, ask(cnn1, allowed_actions=allowed)).probabilities}
    assert "block1" not in masked
    rest = free["block0"] + free["block2"] + free[None]
    for target, probability in masked.items():
        assert probability == pytest.approx(free[target] / rest, rel=1e-6)


def test_points_beyond_the_head_are_never_chosen(fixed_policy: Policy, chain: Callable[..., Architecture]) -> None:
    model = chain(HEAD + 20)
    beyond = [Action.deepen(point.id) for point in model.growth_points[HEAD:]]
    decision = decide(fixed_policy, ask(model, allowed_actions=beyond))
    assert decision.action == Action.nothing()
    assert [entry.probability for entry in decision.probabilities] == [0.0] * 20 + [1.0]


@pytest.mark.parametrize(("points", "operator", "unknown"), [(23, "Linear", None), (500, "NeverSeen", 500)])
def test_the_shipped_policy_serves_any_number_of_points_also_of_layers_that_it_has_never_seen(
    policy: Policy, chain: Callable[..., Architecture], points: int, operator: str, unknown: int | None
) -> None:
    decision = decide(policy, ask(chain(points, operator=operator)))
    chances = [entry.probability for entry in decision.probabilities]
    assert len(chances) == points + 1
    assert all(chance > 0 for chance in chances)
    assert unknown in (None, decision.unknown_layers)


def test_sampling_depends_on_its_seed_alone_and_follows_the_probabilities(either: Policy) -> None:
    flat = make_policy("flat", either.network, either.vocabulary, either.lineage)
    with torch.no_grad():
        for layer in scores(flat)[1:]:
            layer.weight.zero_()
            layer.bias.zero_()
    request = ask(named_architecture("cnn1"))
    drawn = [str(decide(flat, request, sample_seed=seed).action) for seed in range(400)]
    assert drawn[:20] == [str(decide(flat, request, sample_seed=seed).action) for seed in range(20)]
    for action in ("Deepen(block0)", "Deepen(block1)", "Deepen(block2)", "Nothing"):
        assert 60 < drawn.count(action) < 140
    # All equal: the greedy answer is the one that can do no harm.
    assert decide(flat, request).action == Action.nothing()


def test_a_network_that_overflows_does_nothing(either: Policy) -> None:
    broken = make_policy("broken", either.network, either.vocabulary, either.lineage)
    with torch.no_grad():
        scores(broken)[0].weight.fill_(3e38)
        # Of both signs: sums of what is infinite are no numbers.
        for layer in scores(broken)[1:]:
            layer.weight.view(-1)[::2].neg_()
    decision = decide(broken, ask(named_architecture("cnn1")))
    assert decision.action == Action.nothing()
    assert [entry.probability for entry in decision.probabilities] == [0.0, 0.0, 0.0, 1.0]


def test_answer_carries_decision_and_policy(policy: Policy) -> None:
    answer = advise(policy, ask(named_architecture("cnn2")), decision_id="one")
    assert answer.decision_id == "one"
    assert (answer.policy.name, answer.policy.version) == (policy.name, policy.version)
