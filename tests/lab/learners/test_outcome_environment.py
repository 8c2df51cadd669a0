"""Outcome tables as environments: Gymnasium's contract, the table's numbers, and the same one by one or at once."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import sweeps
from espalier_agent.data import carried_tables
from espalier_agent.policies.vocabulary import layer_embedding
from espalier_agent.tables.tree import Reward
from espalier_core.types.allocation import Allocation
from espalier_core.types.outcomes import OutcomeTable, reward
from espalier_lab.growth.environment import (
    ENVIRONMENT_ID,
    IllegalActionError,
    OutcomeEnvironment,
    OutcomeVectorEnvironment,
    Sampling,
)
from espalier_lab.growth.positions import NoTableError

MakeTable = Callable[..., OutcomeTable]


@pytest.fixture(scope="session")
def unlike(make_table: MakeTable) -> tuple[OutcomeTable, ...]:
    """Return tables with unlike numbers of growth points and of decisions."""
    return tuple(
        make_table(
            lambda actions: (7 * sum(actions) + len(actions)) % 10 / 10,
            points=points,
            decisions=decisions,
            model=f"chain{points}",
        )
        for points, decisions in ((1, 2), (3, 1), (2, 3))
    )


@pytest.mark.parametrize("kind", Reward)
@pytest.mark.parametrize("tables", [None, carried_tables("digits")], ids=["paper", "digits"])
def test_gymnasiums_own_checker_finds_nothing(kind: Reward, tables: tuple[OutcomeTable, ...] | None) -> None:
    environment = gymnasium.make(f"espalier_lab.growth.environment:{ENVIRONMENT_ID}", tables=tables, reward=kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(environment.unwrapped)


def test_every_episode_is_a_sequence_of_its_table(unlike: tuple[OutcomeTable, ...]) -> None:
    environment = OutcomeEnvironment(unlike)
    nothing = environment.positions.legal.shape[1] - 1
    for table, outcome in [(each, outcome) for each in unlike for outcome in each.sequences]:
        _, info = environment.reset(options={"table": table.name})
        earned = 0.0
        terminated = False
        for action in outcome.actions:
            assert not terminated
            last = action == len(table.actions) - 1
            _, worth, terminated, truncated, info = environment.step(nothing if last else action)
            earned += worth
            assert not truncated
        assert terminated
        assert info["accuracy"] == outcome.accuracy
        assert earned == pytest.approx(reward(outcome.accuracy))


def test_what_is_observed(unlike: tuple[OutcomeTable, ...]) -> None:
    """The smallest model, padded to the largest: a chain of one layer that is grown once of two decisions."""
    environment = OutcomeEnvironment(unlike, allocation=Allocation(replicas=2, gpus=4))
    start = unlike[0].architecture
    seen, info = environment.reset(options={"table": unlike[0].name})
    assert environment.observation_space.contains(seen)
    # Three growth points and nothing: the largest table's. The largest model is the chain of 2 with 3 layers more.
    assert info["action_mask"].tolist() == [1, 0, 0, 1]
    assert seen["layer_mask"].tolist() == [1, 1, 0, 0, 0, 0]
    np.testing.assert_array_equal(seen["layers"][1, :-1], layer_embedding(start.layers[1], 0))
    assert not seen["layers"][2:].any()
    assert seen["edges"].tolist() == [[0, 1], *[[-1, -1]] * 4]
    assert (seen["growth_points"].tolist(), seen["grown"].tolist()) == ([1, -1, -1], [0, 0, 0])
    assert seen["time_left_share"].tolist() == [0.5]
    assert seen["time_budget_s"].tolist() == [100.0]
    assert seen["decisions_left"].tolist() == [2]
    assert seen["allocation"].tolist() == [2, 4]

    seen, *_ = environment.step(0)
    assert seen["edges"].tolist() == [[0, 1], [1, 2], *[[-1, -1]] * 3]
    assert (seen["growth_points"].tolist(), seen["grown"].tolist()) == ([2, -1, -1], [1, 0, 0])
    assert seen["time_left_share"].tolist() == [np.float32(0.45)]
    assert seen["decisions_left"].tolist() == [1]

    seen, _, terminated, _, info = environment.step(3)
    assert terminated
    assert environment.observation_space.contains(seen)
    assert seen["grown"].tolist() == [1, 0, 0]
    assert (seen["time_left_share"].tolist(), seen["decisions_left"].tolist()) == ([0.0], [0])
    assert info["action_mask"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("action", [1, 2, 4, -1, 0.5])
def test_illegal_actions_are_refused_by_name(unlike: tuple[OutcomeTable, ...], action: int) -> None:
    environment = OutcomeEnvironment(unlike)
    environment.reset(options={"table": "chain1-middle"})
    with pytest.raises(IllegalActionError) as raised:
        environment.step(action)
    assert str(raised.value) == (
        f"action {action} is not legal on table chain1-middle; legal: 0, 3 (action_mask [1, 0, 0, 1]); "
        "choose among the actions whose info['action_mask'] is 1"
    )
    environment.step(0)  # It can continue.


@pytest.mark.parametrize("action", [1, 2, 4, -1])
def test_illegal_actions_do_nothing_on_wish(unlike: tuple[OutcomeTable, ...], action: int) -> None:
    one, many = OutcomeEnvironment(unlike, illegal="nothing"), OutcomeVectorEnvironment(2, unlike, illegal="nothing")
    one.reset(options={"table": "chain1-middle"})
    many.reset(options={"table": "chain1-middle"})
    seen, reward, *_ = one.step(action)
    both, rewards, *_ = many.step(np.array([action, 3]))
    assert seen["grown"].tolist() == both["grown"][0].tolist() == both["grown"][1].tolist() == [0, 0, 0]
    assert reward == rewards[0] == rewards[1]
    for wrong in (0.5, "0", None):
        with pytest.raises(IllegalActionError, match=f"action {wrong} is not legal"):
            one.step(wrong)  # type: ignore[arg-type]


def test_a_step_needs_an_episode(make_table: MakeTable) -> None:
    environment = OutcomeEnvironment([make_table(lambda _: 0.5)])
    with pytest.raises(ResetNeeded, match="call reset"):
        environment.step(0)
    environment.reset()
    environment.step(0)
    with pytest.raises(ResetNeeded, match="call reset"):
        environment.step(0)
    with pytest.raises(ResetNeeded, match="call reset"):
        OutcomeVectorEnvironment(2, [make_table(lambda _: 0.5)]).step(np.zeros(2, dtype=np.int64))


def test_what_cannot_be_played_is_named(unlike: tuple[OutcomeTable, ...]) -> None:
    with pytest.raises(NoTableError, match="give at least one"):
        OutcomeEnvironment([])
    with pytest.raises(NoTableError, match="no table 'chain9-late' here; there are: chain1-middle, chain3-middle"):
        OutcomeEnvironment(unlike).reset(options={"table": "chain9-late"})
    names = "paper, over-nothing, over-mean, over-best"
    with pytest.raises(ValueError, match=f"reward is 'generous'; choose one of {names}"):
        OutcomeEnvironment(unlike, reward="generous")
    with pytest.raises(ValueError, match="sampling is 'often'; choose one of uniform, in-turn"):
        OutcomeVectorEnvironment(2, unlike, sampling="often")
    with pytest.raises(ValueError, match="illegal is 'stop'; choose 'raise' or 'nothing'"):
        OutcomeEnvironment(unlike, illegal="stop")
    for tables in ("folder", Path("folder"), ["folder"]):
        with pytest.raises(TypeError, match=r"tables is .*folder.*; give OutcomeTables, such as .*read_tables"):
            OutcomeEnvironment(tables)  # type: ignore[arg-type]


def played(environment: OutcomeEnvironment, episodes: int, seed: int | None) -> list[int]:
    return [environment.reset(seed=seed if episode == 0 else None)[1]["table"] for episode in range(episodes)]


def test_a_seed_fixes_the_tables_of_all_episodes_to_come(unlike: tuple[OutcomeTable, ...]) -> None:
    environment = OutcomeEnvironment(unlike)
    first = played(environment, 600, 5)
    assert played(environment, 600, 5) == first
    assert played(OutcomeEnvironment(unlike), 600, 5) == first
    assert played(environment, 600, 6) != first
    # 200 of each are expected; five deviations of a binomial are 58.
    assert all(abs(count - 200) < 58 for count in np.bincount(first, minlength=3))
    assert played(OutcomeEnvironment(unlike, sampling="in-turn"), 7, 5) == [0, 1, 2, 0, 1, 2, 0]


@settings(max_examples=sweeps.examples(100))
@given(st.data())
def test_many_at_once_are_as_many_one_by_one(unlike: tuple[OutcomeTable, ...], data: st.DataObject) -> None:
    """Step by step, everything that is returned, against Gymnasium's own way to run several."""
    kind, sampling = data.draw(st.sampled_from(Reward)), data.draw(st.sampled_from(Sampling))
    tables = data.draw(st.lists(st.sampled_from(unlike), min_size=1, unique_by=lambda table: table.name))
    count = data.draw(st.integers(1, 4))
    many = OutcomeVectorEnvironment(count, tables, kind, sampling)
    single = SyncVectorEnv([lambda: OutcomeEnvironment(tables, kind, sampling)] * count)
    assert many.metadata["autoreset_mode"] is single.metadata["autoreset_mode"]
    assert (many.observation_space, many.action_space) == (single.observation_space, single.action_space)

    def same(ours: object, theirs: object) -> None:
        np.testing.assert_equal(ours, theirs)

    seed: Any = data.draw(st.one_of(st.integers(0, 1000), st.lists(st.integers(0, 9), min_size=count, max_size=count)))
    generator = np.random.default_rng(data.draw(st.integers(0, 1000)))
    for seeded in (seed, None):
        ours, theirs = many.reset(seed=seeded), single.reset(seed=seeded)
        same(ours, theirs)
        mask = ours[1]["action_mask"]
        for _ in range(data.draw(st.integers(0, 9))):
            actions = np.array([generator.choice(np.flatnonzero(row)) if row.any() else 0 for row in mask])
            after = many.step(actions)
            same(after, single.step(actions))
            assert many.observation_space.contains(after[0])
            mask = after[4]["action_mask"]
    name = tables[-1].name
    same(many.reset(options={"table": name}), single.reset(options={"table": name}))


def test_many_without_a_seed_differ(unlike: tuple[OutcomeTable, ...]) -> None:
    many = OutcomeVectorEnvironment(64, unlike)
    assert len(set(many.reset()[1]["table"].tolist())) > 1


def test_what_many_refuse(unlike: tuple[OutcomeTable, ...]) -> None:
    with pytest.raises(ValueError, match="num_envs is 0"):
        OutcomeVectorEnvironment(0, unlike)
    many = OutcomeVectorEnvironment(3, unlike)
    with pytest.raises(ValueError, match="2 seeds are given for 3 environments"):
        many.reset(seed=[1, 2])
    many.reset(options={"table": "chain1-middle"})
    with pytest.raises(ValueError, match="shape \\(2,\\) and type int64; give 3 integers"):
        many.step(np.zeros(2, dtype=np.int64))
    for wrong in (2, 4, -1):
        with pytest.raises(IllegalActionError, match=f"environment 1: action {wrong} is not legal .* legal: 0, 3"):
            many.step(np.array([0, wrong, 0]))
    # A refused step moved none of them.
    assert many.step(np.array([3, 0, 0]))[0]["grown"][:, 0].tolist() == [0, 1, 1]


def test_observations_are_the_callers_to_change(unlike: tuple[OutcomeTable, ...]) -> None:
    environment, many = OutcomeEnvironment(unlike), OutcomeVectorEnvironment(2, unlike)
    for seen, info in (environment.reset(seed=0), many.reset(seed=0)):
        for array in itertools.chain(seen.values(), [info["action_mask"]]):
            array[...] = 0
    assert OutcomeEnvironment(unlike).reset(seed=0)[0]["layers"].any()
    assert environment.reset(seed=0)[1]["action_mask"].any()
    assert many.reset(seed=0)[0]["layers"].any()


def test_gymnasium_makes_many_by_name() -> None:
    many = gymnasium.make_vec(ENVIRONMENT_ID, num_envs=3, vectorization_mode="vector_entry_point", reward="over-mean")
    assert isinstance(many.unwrapped, OutcomeVectorEnvironment)
    observation, _ = many.reset(seed=0)
    assert observation["layers"].shape[0] == 3
