"""Learning continues from the outcomes of a service's advice; a gate judges by what was held out."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from bodies import ask
from jobs_world import Jobs, accuracy, collect, poor, run, untaught

from espalier_agent.data import carried_tables, named_architecture
from espalier_agent.evaluation.gate import (
    GateError,
    GateTerms,
    Judgement,
    OnHistory,
    estimated,
    judge,
    worse_on_history,
)
from espalier_agent.history import HistoryDecision, decisions
from espalier_agent.history.episodes import Episode, Gathered, Kind, centred, comparable, gather, split, standardised
from espalier_agent.history.off_policy import Log, LoggedStates, Unit, effective_size, self_normalised
from espalier_agent.learners import expected
from espalier_agent.learners.from_history import HistoryConfig
from espalier_agent.learners.learning import LearningError
from espalier_agent.policies.advice import decide
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.policy import Policy, load_policy, save_policy
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.tables.tree import DecisionTree, decision_tree
from espalier_core.growth.deepen import deepened
from espalier_core.types.advice import Action, PolicyVersion, Progress
from espalier_core.types.allocation import Allocation
from espalier_core.types.outcomes import OutcomeTable

pytestmark = pytest.mark.slow

QUICK = HistoryConfig(updates=60, learning_rate=5e-3)
TERMS = GateTerms(margin=0.01, least_effective=10)
MODEL = named_architecture("cnn1")
ACTIONS = (*(Action.deepen(point.id) for point in MODEL.growth_points), Action.nothing())
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def learn(tables: Sequence[OutcomeTable], *, history: Gathered, files: Sequence[str] = (), **settings: Any) -> Policy:
    """Learn from a history, and tables."""
    return expected.LEARNER.with_history(history, files).learn(tables, **settings)


@pytest.fixture(scope="module")
def table() -> OutcomeTable:
    """Return a table of our own: its first block is worth deepening, the others are not."""
    return carried_tables("digits")[0]


@pytest.fixture(scope="module")
def tree(table: OutcomeTable) -> DecisionTree:
    return decision_tree(table)


@pytest.fixture(scope="module")
def bad(table: OutcomeTable) -> Policy:
    return poor(table, 0.1)


@pytest.fixture(scope="module")
def database(bad: Policy, tree: DecisionTree, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what a service with a poor policy that explores has kept of 240 jobs."""
    path = tmp_path_factory.mktemp("history") / "outcomes.db"
    collect(bad, tree, Jobs(240, 0.6), path)
    return path


def decision(name: str, action: Action = ACTIONS[0], **changes: Any) -> HistoryDecision:
    fields: dict[str, Any] = {
        **{"decision_id": name, "time": NOW, "job": "job", "architecture": MODEL, "progress": Progress()},
        **{"time_left_seconds": 200.0, "time_budget_seconds": 400.0, "allocation": Allocation()},
        **{"actions": ACTIONS, "probabilities": (0.7, 0.1, 0.1, 0.1), "action": action, "behaviour_probability": 0.5},
        **{"greedy": action == ACTIONS[0], "policy": PolicyVersion(name="p", version="1")},
        **{"final_accuracy": 0.5, "reported": "2026"},
    }
    return HistoryDecision(**{**fields, **changes})


def episode(name: str, accuracy: float, *made: HistoryDecision, kind: str = "k") -> Episode:
    return Episode(name, Kind(kind, 8, 2), made, accuracy)


def test_decisions_become_episodes_and_what_cannot_be_used_is_counted() -> None:
    later = NOW + timedelta(seconds=5)
    found = gather(
        [
            decision("b2", time=later, job="b", time_left_seconds=150.0),
            decision("b1", job="b"),
            decision("a1", job="a", final_accuracy=0.7),
            decision("a2", job="a", reported="2027"),  # The same job, run again.
            decision("open", final_accuracy=None, reported=None),
            decision("certain", job="c", behaviour_probability=1.0),
            decision("alone", job="d", time_left_seconds=399.0),
            decision("no choice", job="e", actions=(ACTIONS[-1],), action=ACTIONS[-1], behaviour_probability=1.0),
        ]
    )
    assert [(each.id, len(each.decisions), each.accuracy) for each in found.episodes] == [
        ("a 2026", 1, 0.7),
        ("a 2027", 1, 0.5),
        ("b 2026", 2, 0.5),
        ("e 2026", 1, 0.5),
    ]
    assert [each.decision_id for each in found.episodes[2].decisions] == ["b1", "b2"]
    assert (found.without_outcome, found.certain, found.alone, found.decisions) == (1, 1, 1, 5)
    assert found.episodes[0].kind == Kind(MODEL.fingerprint, 9, 2)


def test_decisions_are_in_the_order_of_the_job_whatever_the_clocks_of_replicas_say() -> None:
    grown = deepened(MODEL, str(ACTIONS[0].target))
    slow = NOW - timedelta(seconds=30)
    second = {"architecture": grown, "time_left_seconds": 90.0, "progress": Progress(adaptations=1)}
    found = gather(
        [
            *(decision(f"{job}1", job=job) for job in "ab"),
            decision("a2", job="a", **second),
            decision("b2", job="b", time=slow, **second),
        ]
    )
    assert [[each.decision_id for each in one.decisions] for one in found.episodes] == [["a1", "a2"], ["b1", "b2"]]
    assert {one.kind for one in found.episodes} == {Kind(MODEL.fingerprint, 9, 2)}


def test_rewards_are_compared_within_a_kind() -> None:
    found = [episode("1", 0.2, kind="x"), episode("2", 0.4, kind="x"), episode("3", 0.9, kind="y")]
    assert standardised(found) == pytest.approx([-1.0, 1.0, 0.0])
    assert comparable(found) == tuple(found[:2])
    more = [*found[:2], episode("4", 0.9, kind="x")]
    assert centred(more) == pytest.approx([-0.45, -0.15, 0.6])  # less the mean of the others


def test_what_is_held_out_stays_so_when_more_comes() -> None:
    found = [episode(f"{number}", 0.5) for number in range(400)]
    learnt, held_out = split(found, 0.25, 3)
    assert 60 < len(held_out) < 140
    assert {each.id for each in learnt} | {each.id for each in held_out} == {each.id for each in found}
    assert set(split(found[:100], 0.25, 3)[1]) == set(held_out) & set(found[:100])
    assert set(split(found, 0.1, 3)[1]) < set(held_out)
    assert split(found, 0.25, 4)[1] != held_out


def test_which_jobs_are_held_out_does_not_depend_on_the_files(tmp_path: Path, bad: Policy, tree: DecisionTree) -> None:
    """The decisions of a job may lie in the files of two replicas, of which `learn` reads one and `promote` both."""
    collect(bad, tree, Jobs(40, 0.6), tmp_path / "whole.db")
    whole = list(decisions(tmp_path / "whole.db"))
    assert list(decisions(tmp_path / "whole.db", tmp_path, tmp_path / "whole.db")) == whole
    shutil.copy(tmp_path / "whole.db", tmp_path / "copy.db")
    assert list(decisions(tmp_path)) == whole
    later = [each for each in whole if not each.decision_id.endswith("-0")]
    parts = (split(gather(found).episodes, 0.25, 0)[1] for found in (whole, later))
    one, other = ({each.decisions[0].job for each in part} for part in parts)
    assert one == other
    assert one


@pytest.mark.parametrize("encoder", ["graph", "lstm"])
def test_a_batch_of_states_says_what_each_says_alone(encoder: str) -> None:
    policy = untaught(3, encoder)
    grown = deepened(MODEL, MODEL.growth_points[1].id)
    some = (ACTIONS[1], ACTIONS[-1])
    made = [
        decision("a"),
        decision("b", ACTIONS[-1], architecture=grown, time_left_seconds=33.0),
        decision("c", ACTIONS[1], actions=some, time_left_seconds=390.0),
    ]
    log = Log([episode("a", 0.5, *made)], [0.0], Unit.EPISODE)
    states = LoggedStates(log, policy.network, policy.vocabulary)
    preferred = states.preferred(policy.network)
    done, entropies = states.answers(policy.network)
    for index, one in enumerate(made):
        budget = one.time_budget_seconds
        asked = ask(one.architecture, one.time_left_seconds, time_budget_seconds=budget, allowed_actions=one.actions)
        said = {entry.action: entry.probability for entry in decide(policy, asked).probabilities}
        assert preferred[index] == decide(policy, asked).action
        assert float(done[index].exp()) == pytest.approx(said[one.action], rel=1e-4)
        assert float(entropies[index]) == pytest.approx(-sum(p * math.log(p) for p in said.values()), rel=1e-3)


def test_a_head_too_small_never_does_what_it_has_no_output_for() -> None:
    config = NetworkConfig(encoder="lstm", growth_points=1)
    network = PolicyNetwork.seeded(config, 0)
    made = [decision("a", ACTIONS[1]), decision("b", ACTIONS[0])]
    states = LoggedStates(Log([episode("a", 0.5, *made)], [0.0], Unit.DECISION), network, Vocabulary.build((), 0))
    done, _ = states.answers(network)
    assert done.isfinite().tolist() == [False, True]
    assert set(states.preferred(network)) <= {ACTIONS[0], ACTIONS[-1]}


def test_weights_of_decisions_and_of_episodes_by_hand() -> None:
    pair = episode("a", 0.6, decision("a1", behaviour_probability=0.5), decision("a2", behaviour_probability=0.25))
    single = episode("b", 0.4, decision("b1", behaviour_probability=0.8))
    log_probabilities = torch.tensor([0.25, 0.5, 0.4], dtype=torch.float64).log()
    by_episode = Log([pair, single], [1.0, -1.0], Unit.EPISODE)
    weights = by_episode.weights(log_probabilities)
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.5], dtype=torch.float64))
    assert float(self_normalised(weights, by_episode.rewards)) == pytest.approx(0.5 / 1.5)
    assert float(effective_size(weights)) == pytest.approx(1.5**2 / 1.25)
    by_decision = Log([pair, single], [1.0, -1.0], Unit.DECISION)
    # The second would be 2, and is cut at the root of three.
    weights = by_decision.weights(log_probabilities)
    torch.testing.assert_close(weights, torch.tensor([0.5, 3**0.5, 0.5], dtype=torch.float64))
    weights = by_decision.weights(log_probabilities, cut=False)
    torch.testing.assert_close(weights, torch.tensor([0.5, 2.0, 0.5], dtype=torch.float64))
    assert by_decision.rewards.tolist() == [1.0, 1.0, -1.0]
    never = by_episode.weights(torch.tensor([-math.inf, 0.0, 0.0]))
    assert float(never[0]) == 0.0


def bandit(chance: random.Random, count: int) -> list[Episode]:
    """Return jobs with two decisions each; accuracy is .5, .1 more for each first action, and noise."""
    found = []
    for number in range(count):
        drawn = [0 if chance.random() < 0.7 else 1 for _ in range(2)]
        made = [
            decision(f"{number}-{place}", ACTIONS[each], behaviour_probability=0.7 if each == 0 else 0.3)
            for place, each in enumerate(drawn)
        ]
        found.append(episode(f"{number}", 0.5 + 0.1 * drawn.count(0) + chance.gauss(0, 0.05), *made))
    return found


@pytest.mark.parametrize("unit", list(Unit))
def test_the_interval_holds_the_truth_as_often_as_it_says(unit: Unit) -> None:
    """Always the first action against always the second: .2 better. 95 % of 300 are 285, with a deviation of 4."""
    chance = random.Random(5)
    held, differences = 0, []
    for _ in range(300):
        found = estimated(bandit(chance, 80), [ACTIONS[0]] * 160, [ACTIONS[1]] * 160, unit)
        difference, low, high = (value or 0.0 for value in (found.difference, found.low, found.high))
        held += low <= 0.2 <= high
        differences.append(difference)
    assert sum(differences) / 300 == pytest.approx(0.2, abs=0.01)
    assert held >= (255 if unit is Unit.EPISODE else 270)


def tried(chance: random.Random, share: float, jobs: int, loss: float, kinds: int = 1) -> Sequence[Episode]:
    """Return jobs with three decisions, of which a `share` is drawn; the second action costs `loss` at the first."""
    found = []
    for number in range(jobs):
        drawn = [chance.choice(ACTIONS) if chance.random() < share else ACTIONS[0] for _ in range(3)]
        made = [
            decision(f"{number}-{at}", did, behaviour_probability=share / 4 + (1 - share) * (did == ACTIONS[0]))
            for at, did in enumerate(drawn)
        ]
        reached = 0.8 + number % kinds / kinds / 10 + chance.gauss(0, 0.05) - loss * (drawn[0] == ACTIONS[1])
        found.append(episode(f"{number}", reached, *made, kind=f"{number % kinds}"))
    return comparable(found)


def changed_first(episodes: Sequence[Episode]) -> OnHistory:
    """Compare always the first action with a policy that takes the second at each job's first decision."""
    old = [ACTIONS[0] for each in episodes for _ in each.decisions]
    new = [ACTIONS[at == 0] for each in episodes for at, _ in enumerate(each.decisions)]
    return estimated(episodes, new, old, Unit.DECISION)


@pytest.mark.sweep("simulated histories of decisions")
@pytest.mark.parametrize(("share", "jobs", "loss"), [(0.2, 50, 0.1), (0.05, 100, 0.3), (0.2, 400, 0.03)])
def test_a_change_that_was_hardly_tried_is_not_put_to_work(share: float, jobs: int, loss: float) -> None:
    """It is worse. At most one of forty may pass: what the interval promises. Of 100 these are 2.5, with one of 1.6."""
    chance = random.Random(2)
    found = [changed_first(tried(chance, share, jobs, loss)) for _ in range(100)]
    refusals = [worse_on_history(each, TERMS) for each in found]
    assert sum(not each for each in refusals) <= 6
    if jobs < 400:
        hardly = [each for each in refusals if each and each[0].startswith("too little history of what would change: ")]
        assert len(hardly) >= 50


def test_the_interval_counts_the_few_jobs_that_tried_a_change() -> None:
    """Ten of sixty, which is .01 worse: 95 % of 600 are 570, with a deviation of 5. Counting all jobs, 556."""
    chance, held = random.Random(4), 0
    for _ in range(600):
        jobs = []
        for number in range(60):
            second = number < 10
            made = decision(f"{number}", ACTIONS[second], behaviour_probability=1 / 6 if second else 5 / 6)
            jobs.append(episode(f"{number}", 0.5 - 0.01 * second + chance.gauss(0, 0.02), made))
        found = changed_first(jobs)
        assert found.effective_changed == 10
        held += (found.low or 0.0) <= -0.01 <= (found.high or 0.0)
    assert 562 <= held <= 585


def test_one_job_gives_no_interval() -> None:
    jobs = [
        episode(f"{number}", 0.5 + number / 20, decision(f"{number}", ACTIONS[number == 0], behaviour_probability=0.5))
        for number in range(4)
    ]
    found = changed_first(jobs)
    assert (found.effective, found.effective_in_service, found.low, found.high) == (1.0, 3.0, None, None)
    (refusal,) = worse_on_history(found, GateTerms(margin=1, least_effective=1))
    assert refusal.startswith("too little history: the 4 held-out jobs count as 1.0 for the policies' choices")
    assert refusal.endswith("2 are required")


@pytest.mark.sweep("simulated histories of decisions")
@pytest.mark.parametrize("kinds", [1, 25, 50])
def test_small_kinds_do_not_make_a_difference_look_smaller(kinds: int) -> None:
    """95 % of 200 are 190, with a deviation of 3; where kinds are of two a job's noise is twice in it."""
    chance = random.Random(3)
    found = [changed_first(tried(chance, 0.6, 100, 0.03, kinds)) for _ in range(200)]
    ends = [(each.low or 0.0, each.difference or 0.0, each.high or 0.0) for each in found]
    assert sum(difference for _, difference, _ in ends) / 200 == pytest.approx(-0.03, abs=0.004)
    assert sum(low <= -0.03 <= high for low, _, high in ends) >= 175


def test_a_service_that_explores_teaches_a_better_policy(
    table: OutcomeTable, tree: DecisionTree, tmp_path: Path
) -> None:
    """In four of five seeds at least the policy learnt is better in the world, and the gate lets it pass."""
    better, promoted = 0, 0
    for seed in range(5):
        served = poor(table, 0.1, first=100 * seed)
        collect(served, tree, Jobs(200, 0.6, seed), tmp_path / f"{seed}.db")
        history = gather(decisions(tmp_path / f"{seed}.db"))
        learnt = learn([], history=history, config=QUICK, seed=seed, parent=served)
        better += accuracy(learnt, tree) >= accuracy(served, tree) + 0.05
        promoted += not judge(learnt, served, TERMS, tables=(), history=history).refusals
    assert better >= 4
    assert promoted >= 4


@pytest.mark.parametrize("encoder", ["graph", "lstm"])
@pytest.mark.parametrize("unit", list(Unit))
def test_tables_and_history_together_give_the_same_twice(
    database: Path, encoder: str, unit: Unit, make_table: Callable[..., OutcomeTable]
) -> None:
    history = gather(decisions(database))
    tables = [make_table(lambda actions: 0.2 + 0.1 * actions.count(0), points=2, decisions=2)]
    config = HistoryConfig(updates=3, unit=unit, time_jitter=0.1)
    one, two = (
        learn(tables, history=history, files=("outcomes.db",), config=config, encoder=encoder) for _ in range(2)
    )
    assert one.version == two.version
    assert (
        one.version != learn(tables, history=history, config=HistoryConfig(updates=3), encoder=encoder, seed=1).version
    )
    lineage = one.lineage.history
    assert (lineage.files, lineage.held_out_share, lineage.held_out_seed) == (("outcomes.db",), 0.25, 0)
    assert lineage.episodes + lineage.held_out_episodes == len(history.episodes) == 240
    assert lineage.decisions == 3 * lineage.episodes
    assert [each.name for each in one.lineage.tables] == ["chain-middle"]


def test_a_history_that_is_held_out_changes_nothing(database: Path) -> None:
    history = gather(decisions(database))
    config = HistoryConfig(updates=3)
    learnt, held_out = split(history.episodes, config.held_out_share, config.held_out_seed)
    assert held_out
    whole = learn([], history=history, config=config)
    without = learn([], history=type(history)(episodes=learnt), config=config)
    assert whole.version == without.version


def test_the_gate_refuses_a_policy_that_was_made_worse(
    database: Path, bad: Policy, table: OutcomeTable, tree: DecisionTree
) -> None:
    history = gather(decisions(database))
    good = learn([], history=history, config=QUICK)
    assert accuracy(good, tree) > accuracy(bad, tree) + 0.05
    assert judge(good, bad, TERMS, tables=[table], history=history).refusals == ()
    judgement = judge(bad, good, TERMS, tables=[table], history=history)
    by_tables, by_history = judgement.refusals
    regret = max(tree.accuracies) - accuracy(bad, tree)
    assert by_tables.startswith("worse by ")
    assert f"mean regret {regret:.4f}" in by_tables
    assert by_history.startswith("worse by ")
    assert (judgement.to_json()["history"] or {})["high"] < 0  # type: ignore[index]


def test_the_gate_says_where_there_is_too_little(
    bad: Policy, database: Path, tree: DecisionTree, tmp_path: Path
) -> None:
    good = learn([], history=gather(decisions(database)), config=QUICK)
    collect(bad, tree, Jobs(8, 0.5, 77), tmp_path / "few.db")
    for name, least in (("few.db", 10.0), ("none.db", 1.0)):
        collect(bad, tree, Jobs(1, 0.5, 78), tmp_path / "none.db")
        history = gather(decisions(tmp_path / name))
        judgement = judge(good, bad, GateTerms(margin=0.01, least_effective=least), tables=(), history=history)
        (refusal,) = judgement.refusals
        assert refusal.startswith("too little history: ")
    one, two = untaught(1), untaught(2)
    mixed = gather(few_and_mixed())
    wide = [
        judge(*each, GateTerms(margin=0.0, least_effective=1), tables=(), history=mixed)
        for each in ((one, two), (two, one))
    ]
    # One of them looks better, by chance; neither can be said not to be worse.
    assert wide[0].history is not None
    assert wide[0].history.changed > 0
    assert sorted(each.refusals[0].partition(" ")[0] for each in wide) == ["too", "worse"]


def few_and_mixed() -> Sequence[HistoryDecision]:
    chance = random.Random(1)
    return [
        decision(f"{n}", chance.choice(ACTIONS), job=f"{n}", final_accuracy=chance.random(), behaviour_probability=0.25)
        for n in range(30)
    ]


def test_a_table_that_was_learnt_judges_nothing(table: OutcomeTable, bad: Policy) -> None:
    taught = learn([table], history=gather([]), config=HistoryConfig(updates=1))
    with pytest.raises(GateError, match=r"has learnt all of the tables given \(.*--held-out"):
        judge(taught, bad, TERMS, tables=[table], history=None)
    others = carried_tables("digits")
    found = judge(taught, bad, TERMS, tables=others, history=None).tables
    assert (len(found.tables), found.left_out) == (len(others) - 1, (table.name,))


def test_what_a_parent_learnt_from_is_never_held_out(database: Path) -> None:
    history = gather(decisions(database))
    parent = learn([], history=history, config=HistoryConfig(updates=1, held_out_share=0.2, held_out_seed=4))
    for share, seed in ((0.25, 4), (0.1, 5)):
        config = HistoryConfig(updates=1, held_out_share=share, held_out_seed=seed)
        with pytest.raises(LearningError, match=rf"held_out_share={share} and held_out_seed={seed} would hold out"):
            learn([], history=history, config=config, parent=parent)
    child = learn(
        [], history=history, config=HistoryConfig(updates=1, held_out_share=0.1, held_out_seed=4), parent=parent
    )
    assert child.lineage.parent == parent.identity


def test_what_a_parent_learnt_from_judges_no_child(
    database: Path, bad: Policy, table: OutcomeTable, make_table: Callable[..., OutcomeTable]
) -> None:
    history = gather(decisions(database))
    parent = learn([table], history=history, config=HistoryConfig(updates=1))
    other = make_table(lambda actions: 0.2 + 0.1 * actions.count(0), points=2, decisions=2)
    child = expected.learn([other], config=expected.ExpectedConfig(updates=1), parent=parent)
    assert {each.name for each in child.lineage.tables} == {table.name, other.name}
    assert child.lineage.history == parent.lineage.history
    with pytest.raises(GateError, match="has learnt all of the tables given"):
        judge(child, bad, TERMS, tables=[table, other], history=None)
    judged = judge(child, bad, TERMS, tables=(), history=history).history
    assert judged.episodes == len(split(history.episodes, 0.25, 0)[1])
    with pytest.raises(LearningError, match="held_out_seed=5 would hold out data"):
        learn([], history=history, config=HistoryConfig(updates=1, held_out_seed=5), parent=child)


def test_a_history_that_says_nothing_is_refused(bad: Policy, tree: DecisionTree, tmp_path: Path) -> None:
    with pytest.raises(LearningError, match=r"no episode to learn from: 1 decisions without outcome.*--explore"):
        learn([], history=gather([decision("a", final_accuracy=None, reported=None)]))
    collect(bad, tree, Jobs(3, 0.0), tmp_path / "greedy.db")
    with pytest.raises(LearningError, match="3 episodes with a certain choice"):
        learn([], history=gather(decisions(tmp_path / "greedy.db")))


def test_a_policy_file_of_before_has_no_history(bad: Policy, tmp_path: Path) -> None:
    save_policy(bad, tmp_path)
    assert "history" not in json.loads((tmp_path / "policy.json").read_text())["lineage"]
    assert load_policy(tmp_path).lineage.history is None


def test_the_commands_learn_promote_and_refuse(bad: Policy, database: Path, tmp_path: Path) -> None:
    save_policy(bad, tmp_path / "served")
    quick = ["--set", "updates=60", "--set", "learning_rate=.005"]
    learnt = run(
        "learn", "--without-tables", "--from-history", database, "--from", tmp_path / "served", *quick, "--output",
        tmp_path / "new",
    )  # fmt: skip
    assert learnt.exit_code == 0, learnt.stderr
    assert "history: 240 jobs with 720 decisions; left out: 0 decisions without outcome" in learnt.stderr
    assert "mean regret" not in learnt.stdout
    new = load_policy(tmp_path / "new")
    assert new.lineage.parent == bad.identity
    sources = ["--from-history", database.parent, "--outcomes", "digits"]
    promoted = run("promote", "--policy", tmp_path / "new", "--to", tmp_path / "served", *sources, "--json")
    assert promoted.exit_code == 0, promoted.stderr
    shown = json.loads(promoted.stdout)
    assert shown["policy"]["version"] == new.version
    assert shown["history"]["episodes"] == new.lineage.history.held_out_episodes  # type: ignore[union-attr]
    assert shown["history"]["low"] > 0
    assert shown["tables"]["regret"] < shown["tables"]["regretInService"]
    assert load_policy(tmp_path / "served").version == new.version
    save_policy(bad, tmp_path / "bad")
    refused = run("promote", "--policy", tmp_path / "bad", "--to", tmp_path / "served", *sources)
    assert refused.exit_code == 3
    assert refused.stderr.count("refused: worse by ") == 2
    assert f"{new.version} stays in service" in refused.stderr
    assert "effective number of jobs" in refused.stdout
    assert load_policy(tmp_path / "served").version == new.version


def test_a_policy_that_came_into_service_while_it_was_judged_stays(
    bad: Policy, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_policy(bad, tmp_path / "served")
    save_policy(bad, tmp_path / "new")

    def slow(*arguments: Any, **options: Any) -> Judgement:
        save_policy(policy, tmp_path / "served")
        return judge(*arguments, **options)

    monkeypatch.setattr("espalier_agent.commands.evaluate.judge", slow)
    result = run("promote", "--policy", tmp_path / "new", "--to", tmp_path / "served", "--outcomes", "digits")
    assert result.exit_code == 2
    assert "served: another policy came into service meanwhile; judge again" in result.stderr
    assert load_policy(tmp_path / "served").identity == policy.identity


def test_tables_that_are_held_out_are_not_learnt(tmp_path: Path, table: OutcomeTable) -> None:
    (tmp_path / "one.json").write_text(json.dumps(table.to_json()))
    options = ["--set", "updates=1", "--output", tmp_path / "p"]
    result = run("learn", "--outcomes", "digits", "--held-out", tmp_path / "one.json", *options)
    assert result.exit_code == 0, result.stderr
    names = [each.name for each in load_policy(tmp_path / "p").lineage.tables]
    assert names == [each.name for each in carried_tables("digits")[1:]]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (
            ["learn", "--from-history", "DB", "--learner", "ppo", "--output", "P"],
            2,
            "learner ppo does not learn from a history",
        ),
        (["learn", "--from-history", "missing.db", "--output", "P"], 2, r"missing.db: no such file"),
        (["learn", "--from-history", "DB", "--set", "unit=week", "--output", "P"], 2, "unit=week"),
        (["learn", "--without-tables", "--output", "P"], 2, "there is no outcome table to learn from"),
        (["promote", "--policy", "P", "--to", "SERVED"], 2, "no data to compare the policies on"),
        (["promote", "--policy", "none", "--to", "SERVED", "--outcomes", "digits"], 2, "none/policy.json"),
        (["promote", "--policy", "SERVED", "--to", "none", "--outcomes", "digits"], 2, "none/policy.json"),
        (["promote", "--policy", "SERVED", "--to", "SERVED", "--from-history", "NEWER"], 2, "of a newer Espalier"),
    ],
)
def test_what_cannot_be_is_one_line(
    bad: Policy, database: Path, tmp_path: Path, options: list[str], code: int, message: str
) -> None:
    save_policy(bad, tmp_path / "served")
    newer = tmp_path / "newer.db"
    newer.write_bytes(database.read_bytes()[:60] + (9).to_bytes(4) + database.read_bytes()[64:])
    places = {"DB": database, "P": tmp_path / "p", "SERVED": tmp_path / "served", "NEWER": newer}
    result = run(*[places.get(option, option) for option in options])
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_history_that_is_all_greedy_is_warned_of(bad: Policy, tree: DecisionTree, tmp_path: Path) -> None:
    collect(bad, tree, Jobs(3, 0.0), tmp_path / "greedy.db")
    result = run(
        "learn", "--outcomes", "digits", "--from-history", tmp_path, "--set", "updates=1", "--output", tmp_path / "p"
    )
    assert result.exit_code == 0, result.stderr
    assert "warning: the service always took its best action" in result.stderr
