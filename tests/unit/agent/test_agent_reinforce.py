"""The learner is Algorithms 3 and 4 of Lamelas, repeatable, and it learns."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from espalier_agent.evaluation.evaluate import evaluate, greedy_sequence
from espalier_agent.learners.learning import LearningError, LearningProgress
from espalier_agent.learners.reinforce import BATCHED, PAPER, ReinforceConfig, TableOrder, learn, objective
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.policy import Policy
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.tables.game import Game, Returns
from espalier_agent.tables.tree import decision_tree
from espalier_core.growth.deepen import deepened
from espalier_core.types.outcomes import OutcomeTable

Tables = dict[str, OutcomeTable]
MakeTable = Callable[..., OutcomeTable]


def quick(**changes: object) -> ReinforceConfig:
    return PAPER.model_copy(update={"episodes": 30, **changes})


def same(one: Policy, other: Policy) -> bool:
    ours, theirs = one.network.state_dict(), other.network.state_dict()
    return all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_the_papers_configuration() -> None:
    assert (PAPER.learning_rate, PAPER.learning_rate_decay, PAPER.decay_every) == (1e-4, 0.99, 500)
    assert (PAPER.episodes_per_update, PAPER.entropy, PAPER.time_jitter, PAPER.temperature) == (1, 0.0, 0.0, 1.0)
    assert PAPER.returns is Returns.PAPER


def test_objective_by_hand() -> None:
    # O = 1/3·(−ln ½ − ln ¼ − ln ⅛)·100·tan(.5·π/2) = 1/3·6·ln 2·100
    recorded = torch.log(torch.tensor([[0.5, 0.25, 0.125]]))
    assert objective(recorded, torch.tensor([100.0])).item() == pytest.approx(200 * math.log(2), rel=1e-6)


def test_one_episode_is_algorithm_4_step_by_step(tables: Tables) -> None:
    """The loss and its gradient, from all states at once, equal those of the loop that grows one model."""
    tree = decision_tree(tables["cnn1-middle"])
    vocabulary = Vocabulary.build([state.architecture for state in tree.states], seed=0)
    network = PolicyNetwork.seeded(NetworkConfig(growth_points=3), 3)
    game = Game(tree, vocabulary, network.config, Returns.PAPER)
    log_probabilities = game.log_probabilities(network)
    recorded, ended = game.play(log_probabilities, 1, torch.Generator().manual_seed(11))
    fast = objective(recorded, game.returns[ended].float())
    fast_gradients = torch.autograd.grad(fast, list(network.parameters()))

    sequence = tree.sequences[int(ended)]
    outcome = tables["cnn1-middle"].outcome(sequence)
    model, recorded_slowly = tree.states[0].architecture, []
    at = 0
    for action in sequence:
        time_left = torch.tensor([tree.states[at].time_left_s], dtype=torch.float64)
        budget = torch.tensor([400.0], dtype=torch.float64)
        logits = network.logits(network.prepare([model], vocabulary), torch.tensor([0]), time_left, budget)
        recorded_slowly.append(torch.log_softmax(logits[0], dim=0)[action])
        model = model if action == 3 else deepened(model, f"block{action}")
        at = tree.next_states[at][action]
    terms = [-p * 100 * math.tan(outcome.accuracy * math.pi / 2) for p in recorded_slowly]
    slow = sum(terms[1:], terms[0]) / len(terms)
    slow_gradients = torch.autograd.grad(slow, list(network.parameters()))

    torch.testing.assert_close(fast, slow)
    for ours, theirs in zip(fast_gradients, slow_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_episodes_are_drawn_by_the_probabilities(make_table: MakeTable) -> None:
    tree = decision_tree(make_table(lambda _: 0.5, points=1, decisions=2))
    game = Game(tree, Vocabulary.build((), 0), NetworkConfig(growth_points=1), Returns.PAPER)
    probabilities = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
    recorded, ended = game.play(probabilities.log(), 20_000, torch.Generator().manual_seed(0))
    shares = torch.bincount(ended, minlength=4) / 20_000
    torch.testing.assert_close(shares, torch.tensor([0.45, 0.45, 0.02, 0.08]), atol=0.01, rtol=0)
    torch.testing.assert_close(
        recorded[ended == 2].exp(), torch.tensor([[0.1, 0.2]]).expand(int((ended == 2).sum()), 2)
    )


def test_standardised_returns_weigh_tables_alike(tables: Tables) -> None:
    for name in ("cnn1-early", "cnn2-late"):
        config = NetworkConfig(growth_points=3)
        returns = Game(decision_tree(tables[name]), Vocabulary.build((), 0), config, Returns.STANDARDISED).returns
        assert returns.mean().item() == pytest.approx(0, abs=1e-9)
        assert returns.std(correction=0).item() == pytest.approx(1)


def test_a_table_where_everything_ends_alike_teaches_nothing_and_breaks_nothing(make_table: MakeTable) -> None:
    learnt = learn([make_table(lambda _: 0.5)], config=quick(returns=Returns.STANDARDISED))
    assert all(torch.isfinite(value).all() for value in learnt.network.state_dict().values())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"order": TableOrder.TOGETHER, "episodes_per_update": 5, "entropy": 0.1, "time_jitter": 0.1},
        {"order": TableOrder.CURRICULUM, "temperature": 10.0},
    ],
    ids=["paper", "batched", "curriculum"],
)
def test_same_seed_same_policy_bit_for_bit(tables: Tables, changes: dict[str, object]) -> None:
    chosen = [tables["cnn1-early"], tables["cnn2-late"]]
    one, two = (learn(chosen, config=quick(**changes), seed=4) for _ in range(2))
    assert same(one, two)
    assert one.version == two.version
    other = learn(chosen, config=quick(**changes), seed=5)
    assert not same(one, other)
    assert one.version != other.version


def test_learning_neither_reads_nor_disturbs_the_global_generator_and_threads(tables: Tables) -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    torch.set_num_threads(2)
    one = learn([tables["cnn1-early"]], config=quick())
    assert torch.equal(torch.rand(1), expected)
    assert torch.get_num_threads() == 2
    assert same(one, learn([tables["cnn1-early"]], config=quick()))


def test_learning_rate_and_temperature_follow_the_papers_schedule(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates, temperatures = [], []
    step = torch.optim.Adam.step
    rate = Game.log_probabilities

    def spied_step(self: torch.optim.Adam, *arguments: object) -> object:
        rates.append(self.param_groups[0]["lr"])
        return step(self)

    def spied_probabilities(self: Game, network: PolicyNetwork, temperature: float, shift: float) -> torch.Tensor:
        temperatures.append(temperature)
        return rate(self, network, temperature, shift)

    monkeypatch.setattr(torch.optim.Adam, "step", spied_step)
    monkeypatch.setattr(Game, "log_probabilities", spied_probabilities)
    config = quick(episodes=12, decay_every=3, temperature=1.2, order=TableOrder.CURRICULUM)
    learn([tables["cnn1-early"], tables["cnn1-late"]], config=config)
    assert rates == pytest.approx([1e-4 * 0.99 ** (episode // 3) for episode in range(12)])
    one_stage = [1.2, 1.2, 1.2, 1.08, 1.08, 1.08]
    assert temperatures == pytest.approx(one_stage * 2)


def test_orders_play_the_tables_they_say(make_table: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [make_table(lambda _: 0.5, scenario=name) for name in ("a", "b", "c")]
    play = Game.play

    def played_in(order: TableOrder) -> str:
        seen: list[str] = []

        def spied(self: Game, *arguments: object) -> object:
            seen.append(self.tree.scenario)
            return play(self, *arguments)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(Game, "play", spied)
            learn(tables, config=quick(episodes=6, order=order))
        return "".join(seen)

    assert {order: played_in(order) for order in TableOrder} == {
        TableOrder.CYCLE: "abcabc",
        TableOrder.TOGETHER: "abcabc",
        TableOrder.CURRICULUM: "aabbcc",
    }


def test_progress_counts_episodes_up_to_the_total(tables: Tables) -> None:
    seen: list[LearningProgress] = []
    config = quick(episodes=40, episodes_per_update=8, order=TableOrder.TOGETHER)
    learn([tables["cnn1-early"], tables["cnn1-late"]], config=config, progress=seen.append)
    assert [progress.episodes for progress in seen] == [16, 32, 48]
    assert seen[-1].total_episodes == 48
    assert all(0.5 < progress.mean_accuracy < 0.75 for progress in seen)


def test_the_papers_learner_improves_the_rank_on_a_table_of_the_paper(tables: Tables) -> None:
    """Ten episodes an update and the rate raised to fit: the letter's estimator in 400 steps instead of 4,000."""
    table = tables["cnn1-early"]
    config = quick(episodes=4000, episodes_per_update=10, learning_rate=5e-4)
    results = [evaluate(learn([table], config=config, seed=seed), [table]).tables[0] for seed in range(3)]
    assert sorted(result.rank for result in results)[1] <= 10
    assert all(result.accuracy > result.random_mean_accuracy for result in results)


def test_the_letter_learns_what_is_plain_to_see(make_table: MakeTable) -> None:
    """One episode an update, no baseline; only the second growth point, twice, ends well."""
    table = make_table(lambda actions: 0.2 + 0.3 * actions.count(1), points=2, decisions=2)
    config = quick(episodes=600, learning_rate=2e-3)
    assert greedy_sequence(learn([table], config=config), decision_tree(table)) == (1, 1)


def test_what_one_model_learnt_depends_on_the_time_left(make_table: MakeTable) -> None:
    early = make_table(lambda actions: 0.9 if actions == (0,) else 0.5, scenario="early")
    late = make_table(lambda actions: 0.9 if actions == (1,) else 0.5, scenario="late")
    late = late.model_copy(
        update={"sequences": tuple(o.model_copy(update={"time_left_s": (10.0,)}) for o in late.sequences)}
    )
    learnt = learn([early, late], config=BATCHED.model_copy(update={"episodes": 20_000}))
    assert greedy_sequence(learnt, decision_tree(early)) == (0,)
    assert greedy_sequence(learnt, decision_tree(late)) == (1,)


def test_learning_goes_on_from_a_parent(tables: Tables) -> None:
    parent = learn([tables["cnn1-early"]], config=quick(), name="parent")
    child = learn([tables["cnn2-early"]], config=quick(), parent=parent, name="child")
    assert child.lineage.parent == parent.identity
    assert child.vocabulary.keys[: len(parent.vocabulary)] == parent.vocabulary.keys
    assert len(child.vocabulary) > len(parent.vocabulary)
    fresh = learn([tables["cnn2-early"]], config=quick(), name="child")
    assert not same(child, fresh)


def test_a_parent_with_too_small_a_head_is_refused(tables: Tables, make_table: MakeTable) -> None:
    parent = learn([make_table(lambda _: 0.5)], config=quick(), name="small")
    with pytest.raises(LearningError, match="'small' decides about 1 growth points, where the tables have 3"):
        learn([tables["cnn1-early"]], config=quick(), parent=parent)


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(LearningError, match="no outcome table"):
        learn([])


def test_an_objective_that_is_not_finite_ends_learning(tables: Tables) -> None:
    with pytest.raises(LearningError, match="lower the learning rate"):
        learn([tables["cnn1-early"]], config=quick(learning_rate=1e30))
