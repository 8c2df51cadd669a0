"""Groups of channels in the agent: what a policy that scores none says, and what one that does has learnt."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bodies import ask

from espalier_agent.evaluation.evaluate import evaluate
from espalier_agent.evaluation.gate import compare
from espalier_agent.history import HistoryDecision
from espalier_agent.history.episodes import Episode, Gathered, Kind
from espalier_agent.history.off_policy import Unit
from espalier_agent.learners import expected
from espalier_agent.learners.expected import ExpectedConfig, learn
from espalier_agent.learners.from_history import HistoryConfig
from espalier_agent.learners.learning import LEARNERS, LearningError
from espalier_agent.policies.advice import Exploration, decide, explored
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.policy import default_policy, load_policy, make_policy, save_policy
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.tables.tree import TableError, decision_tree
from espalier_core.growth.architecture import Architecture, GrowthError
from espalier_core.growth.deepen import deepened
from espalier_core.growth.widen import WIDEN
from espalier_core.types.advice import Action, PolicyVersion, Progress
from espalier_core.types.allocation import Allocation
from espalier_core.types.outcomes import OutcomeTable
from espalier_lab.growth.environment import OutcomeEnvironment
from espalier_trainer.models.zoo import cifar8, digits
from espalier_trainer.net2net.description import describe

GROUPS = ("block0.0", "block1.0", "block2.0")


@pytest.fixture(scope="module")
def described() -> Architecture:
    """Return the digits net with its groups."""
    return describe(digits(), torch.randn(2, 1, 8, 8), operations=["Widen"])


def test_actions_are_points_then_groups_then_nothing(described: Architecture) -> None:
    assert [str(action) for action in ask(described).actions()] == [
        *(f"Deepen(block{place})" for place in range(3)),
        *(f"Widen({group})" for group in GROUPS),
        "Nothing",
    ]
    asked = ask(described, allowed_actions=(Action.widen("block1.0", 12), Action.widen("block1.0", 7)))
    assert [str(action) for action in asked.actions()] == ["Widen(block1.0, 12)", "Nothing"]


def test_actions_say_what_they_lead_to(described: Architecture) -> None:
    assert Action.widen("block0.0").carried_out(described) == WIDEN.grown(described, "block0.0", 12)
    assert Action.widen("block0.0", 9).carried_out(described) == WIDEN.grown(described, "block0.0", 9)
    assert Action.deepen("block0").carried_out(described) == deepened(described, "block0")
    assert Action.nothing().carried_out(described) is described
    with pytest.raises(GrowthError, match="'nowhere' is not a widening group of this model; its groups: block0.0, "):
        Action.widen("nowhere").carried_out(described)
    with pytest.raises(ValueError, match="a Deepen action has no width"):
        Action(kind="Deepen", target="block0", width=3)


@pytest.mark.parametrize("left", [5.0, 35.0, 65.0, 95.0])
def test_the_shipped_policy_answers_as_if_there_were_no_groups(described: Architecture, left: float) -> None:
    policy = default_policy()
    plain = described.model_copy(update={"channels": None})
    with_groups, without = decide(policy, ask(described, left)), decide(policy, ask(plain, left))
    assert with_groups.action == without.action
    known = {entry.action: entry.probability for entry in without.probabilities}
    for entry in with_groups.probabilities:
        assert entry.probability == known.get(entry.action, 0.0)
    only = decide(policy, ask(described, left, allowed_actions=tuple(Action.widen(group) for group in GROUPS)))
    assert only.action == Action.nothing()


def test_exploration_tries_what_no_policy_has_learnt(described: Architecture) -> None:
    greedy = decide(default_policy(), ask(described))
    tried = {str(explored(greedy, Exploration(share=1.0), f"d-{number}").action) for number in range(200)}
    assert tried == {str(action) for action in ask(described).actions()}


@pytest.fixture(scope="module")
def widened(described: Architecture, make_table: Callable[..., OutcomeTable]) -> OutcomeTable:
    """Return a table of which the best sequence widens block 1 and then deepens block 0."""

    def accuracy(actions: tuple[int, ...]) -> float:
        return 0.5 + 0.2 * (actions[0] == 4) + 0.1 * (actions[1] == 0) + 0.01 * sum(action < 6 for action in actions)

    labels = [*(f"deepen block{i}" for i in range(3)), *(f"widen {group}" for group in GROUPS), "do nothing"]
    return make_table(accuracy, points=6, decisions=2, model="digits", actions=labels, architecture=described)


def test_a_table_grows_its_states_by_what_its_actions_say(widened: OutcomeTable, described: Architecture) -> None:
    tree = decision_tree(widened)
    assert tree.actions == ask(described).actions()
    assert [state.architecture for state in tree.states[1:]] == [
        action.carried_out(described) for action in tree.actions
    ]
    assert OutcomeTable.model_validate_json(widened.model_dump_json(by_alias=True)) == widened


def test_a_table_whose_actions_are_not_its_architectures_is_refused(widened: OutcomeTable) -> None:
    fields: dict[str, Any] = dict(widened)
    fields["architecture"] = widened.architecture.model_copy(update={"channels": None})
    with pytest.raises(ValueError, match="architecture has 3 growth points, where 7 actions need 6"):
        OutcomeTable(**fields)


def test_labels_in_another_order_than_the_groups_are_refused(widened: OutcomeTable) -> None:
    mixed = [*widened.actions[:3], *reversed(widened.actions[3:6]), widened.actions[6]]
    with pytest.raises(TableError, match=r"actions\[3\], 'widen block2.0', is in the place of 'block0.0'"):
        decision_tree(OutcomeTable(**(dict(widened) | {"actions": mixed})))


def test_channels_that_contradict_the_layers_are_refused(described: Architecture) -> None:
    broken = described.to_json()
    broken["channels"]["groups"][0]["carriers"]["nowhere"] = 1
    with pytest.raises(ValueError, match="group of channels 'block0.0' names 'nowhere', which is not a layer"):
        Architecture.model_validate(broken)
    broken = described.to_json()
    broken["channels"]["weights"][0]["axes"][0]["dim"] = 9
    with pytest.raises(ValueError, match="a weight of 'block0.0' has no dimension 9"):
        Architecture.model_validate(broken)


@pytest.fixture(scope="module")
def learnt(widened: OutcomeTable) -> Any:
    """Return a policy that has learnt the table."""
    return learn([widened], config=ExpectedConfig(updates=150), seed=0, name="wide")


def test_a_policy_learns_to_widen(learnt: Any, widened: OutcomeTable, tmp_path: Path) -> None:
    (result,) = evaluate(learnt, [widened]).tables
    assert result.actions == ("Widen(block1.0)", "Deepen(block0)")
    assert result.rank == 1
    save_policy(learnt, tmp_path)
    loaded = load_policy(tmp_path)
    assert loaded.identity == learnt.identity
    assert evaluate(loaded, [widened]) == evaluate(learnt, [widened])


def test_a_policy_that_widens_serves_any_model(learnt: Any, described: Architecture) -> None:
    other = describe(cifar8(), torch.randn(2, 3, 8, 8), operations=["Widen"])
    for architecture in (other, described.model_copy(update={"channels": None}), deepened(described, "block1")):
        decision = decide(learnt, ask(architecture))
        assert [entry.action for entry in decision.probabilities] == list(ask(architecture).actions())
        assert sum(entry.probability for entry in decision.probabilities) == pytest.approx(1.0)
    # A group that may not be widened, and a width that was never learnt, have no probability.
    some = decide(learnt, ask(described, allowed_actions=(Action.widen("block2.0"), Action.widen("block1.0", 12))))
    assert [entry.probability > 0 for entry in some.probabilities] == [False, True, True]


def test_names_and_order_of_groups_do_not_matter(learnt: Any, described: Architecture) -> None:
    channels = described.channels
    turned = described.model_copy(
        update={"channels": channels.model_copy(update={"groups": tuple(reversed(channels.groups))})}
    )

    def by_action(architecture: Architecture) -> dict[Action, float]:
        return {entry.action: entry.probability for entry in decide(learnt, ask(architecture)).probabilities}

    found, wanted = by_action(turned), by_action(described)
    assert found.keys() == wanted.keys()
    assert all(found[action] == pytest.approx(wanted[action], abs=1e-6) for action in wanted)
    assert len({round(wanted[Action.widen(group)], 9) for group in GROUPS}) == 3


def test_a_network_that_widens_is_otherwise_the_same() -> None:
    plain = PolicyNetwork.seeded(NetworkConfig(encoder="graph", growth_points=3), 5).state_dict()
    wide = PolicyNetwork.seeded(NetworkConfig(encoder="graph", growth_points=3, widening=True), 5).state_dict()
    assert all(torch.equal(value, wide[name]) for name, value in plain.items())
    assert {name.split(".")[1] for name in wide.keys() - plain.keys()} == {"of_group", "group_score"}
    assert "widening" not in NetworkConfig(encoder="graph", growth_points=3).to_json()


SMALL: dict[str, dict[str, int]] = {
    "expected": {"updates": 2},
    "distilled": {"members": 2, "updates": 3, "student_updates": 3},
    "reinforce": {"episodes": 20, "episodes_per_update": 10},
    "ppo": {"episodes": 20, "episodes_per_update": 10},
    "dqn": {"episodes": 20, "episodes_per_update": 10},
    "trees": {},
    "graph-gains": {"epochs": 2},
}


@pytest.mark.parametrize("name", LEARNERS.names())
def test_every_learner_takes_tables_with_widenings(
    name: str, widened: OutcomeTable, make_table: Callable[..., OutcomeTable]
) -> None:
    learner = LEARNERS.load(name)
    config = learner.recipe(None).model_copy(update=SMALL[name])
    policy = learner.learn(
        [widened, make_table(lambda actions: 0.1 * actions[0], points=4)],
        config=config, encoder="graph" if name == "reinforce" else learner.encoder, seed=1, name=name,
    )  # fmt: skip
    assert policy.network.config.widening
    assert evaluate(policy, [widened]).tables[0].rank >= 1


def test_what_cannot_learn_widenings_says_so(widened: OutcomeTable) -> None:
    with pytest.raises(LearningError, match="encoder lstm has no outputs for groups of channels, which table digits-m"):
        learn([widened], config=ExpectedConfig(updates=1), encoder="lstm")
    with pytest.raises(LearningError, match="policy 'default' has no outputs for groups of channels"):
        learn([widened], config=ExpectedConfig(updates=1), parent=default_policy())
    with pytest.raises(ValueError, match="encoder lstm has no outputs for groups of channels; graph has"):
        NetworkConfig(encoder="lstm", growth_points=3, widening=True)


def test_a_network_of_another_kind_can_still_be_evaluated(widened: OutcomeTable, fixed_policy: Any) -> None:
    vocabulary = Vocabulary.build((), 0)
    plain = PolicyNetwork.seeded(NetworkConfig(encoder="graph", growth_points=3), 0)
    for policy in (fixed_policy, make_policy("plain", plain, vocabulary, fixed_policy.lineage)):
        (result,) = evaluate(policy, [widened]).tables
        assert not any(action.startswith("Widen") for action in result.actions)


def test_the_environment_plays_widenings(widened: OutcomeTable, make_table: Callable[..., OutcomeTable]) -> None:
    small = make_table(lambda actions: actions[0] / 10, points=4)
    environment = OutcomeEnvironment((widened, small))
    # Four growth points at most, three groups, nothing.
    observation, info = environment.reset(options={"table": widened.name})
    assert info["action_mask"].tolist() == [1, 1, 1, 0, 1, 1, 1, 1]
    assert observation["channels"].tolist() == [6, 8, 8]
    assert observation in environment.observation_space
    _, _, over, _, _ = environment.step(np.int64(5))
    assert not over
    observation, _, over, _, info = environment.step(np.int64(0))
    assert over
    assert info["accuracy"] == widened.outcome((4, 0)).accuracy
    assert observation["channels"].tolist() == [6, 16, 8]
    _, info = environment.reset(options={"table": small.name})
    assert info["action_mask"].tolist() == [1, 1, 1, 1, 0, 0, 0, 1]
    assert "carriers" not in OutcomeEnvironment((small,)).observation_space.spaces


def test_a_history_teaches_what_no_policy_before_could_do(described: Architecture) -> None:
    actions = ask(described).actions()

    def made(number: int) -> Episode:
        action = actions[number % len(actions)]
        accuracy = 0.9 if action == Action.widen("block1.0") else 0.5
        decision = HistoryDecision(
            decision_id=f"d-{number}", time=datetime(2026, 1, 1, tzinfo=UTC), job=f"job-{number}",
            architecture=described, time_left_seconds=60.0, time_budget_seconds=100.0, allocation=Allocation(),
            progress=Progress(), actions=actions, probabilities=(1 / len(actions),) * len(actions), action=action,
            greedy=False, behaviour_probability=1 / len(actions), policy=PolicyVersion(name="p", version="1"),
            final_accuracy=accuracy, reported="2026",
        )  # fmt: skip
        return Episode(decision.decision_id, Kind("k", 6, 2), (decision,), accuracy)

    history = Gathered(tuple(map(made, range(140))))
    policy = expected.LEARNER.with_history(history, ()).learn((), config=HistoryConfig(updates=60, learning_rate=5e-3))
    assert policy.network.config.widening
    assert decide(policy, ask(described)).action == Action.widen("block1.0")
    # One that cannot widen is compared with it all the same: what it would never do has no weight.
    judgement = compare(default_policy(), policy, history.episodes, Unit.EPISODE)
    assert judgement.changed == len(history.episodes)
