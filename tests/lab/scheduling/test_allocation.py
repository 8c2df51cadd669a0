"""Allocation in DL2's cluster: its measurements, slots, rules, environment, and what is learnt from."""

from __future__ import annotations

import heapq
import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import Rbf

from espalier_lab.illegal_actions import IllegalActionError
from espalier_lab.scheduling.allocation.environment import AllocationEnvironment
from espalier_lab.scheduling.allocation.episodes import SlotEpisodes
from espalier_lab.scheduling.allocation.forms import SlotForm, WorkerForm
from espalier_lab.scheduling.allocation.judging import greedy
from espalier_lab.scheduling.allocation.rules import RULES, act, drf, fixed, optimus, play
from espalier_lab.scheduling.allocation.side_by_side import SideBySide
from espalier_lab.scheduling.allocation.slots import Slots
from espalier_lab.scheduling.allocation.source import AllocationSettings, interpolated, source
from espalier_lab.scheduling.allocation.tables import OPTIONS
from espalier_lab.scheduling.allocation.traces import Trace, draw
from espalier_lab.scheduling.learned.twin import Twin
from espalier_lab.scheduling.learners.learner import LearnerSettings, SchedulingLearner
from espalier_lab.scheduling.learners.rollout import STOP, collect, estimated
from espalier_lab.scheduling.seed_split import SeedSplit
from espalier_lab.simulator.jobs import FixedJob
from espalier_lab.simulator.rounds import SimulatedNode

SMALL = replace(source(), jobs=5, slots=source().slots / 10, most_slots=60)
"""Few and short jobs."""
FULL = 2**31


@dataclass(eq=False)
class Reference:
    """A job of the source's scheduler, written down as its text says, one job and one node at a time."""

    kind: int
    comes: int
    done: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0, 0])
    """Servers, workers."""

    def slots(self, servers: int = 0, workers: int = 0) -> float:
        server, worker = self.counts[0] + servers, self.counts[1] + workers
        return float(SMALL.slots[self.kind, server, worker]) if max(server, worker) <= 16 else np.inf


def reference(
    trace: Trace, nodes: int, choose: Callable[[list[Reference]], tuple[Reference, int, int] | None]
) -> float:
    """Return the mean completion time in slots under a rule that names a job, and servers and workers more for it."""
    jobs = [Reference(int(kind), int(slot)) for kind, slot in zip(trace.kinds, trace.slots, strict=True)]
    times: list[float] = []
    slot = 0
    while len(times) < len(jobs):
        present = [job for job in jobs if job.comes <= slot and job.done < 1]
        used = [np.zeros(2, int) for _ in range(nodes)]
        heap = [(0, node) for node in range(nodes)]

        def place(job: Reference, servers: int, workers: int, used: Any = used, heap: Any = heap) -> bool:
            demand = servers * source().demand[job.kind, 1] + workers * source().demand[job.kind, 0]
            load, node = heap[0]
            if (used[node] + demand > source().node).any():
                return False
            used[node] += demand
            heapq.heapreplace(heap, (load + int(demand.sum()), node))
            job.counts[0] += servers
            job.counts[1] += workers
            return True

        for job in present:
            job.counts[:] = 0, 0
            place(job, 1, 1)
        while (wish := choose(present)) is not None and place(*wish):
            pass
        for job in present:
            took = job.slots()
            if np.isinf(took):
                continue
            if (1 - job.done) * took <= 1:
                times.append(slot + (1 - job.done) * took - job.comes)
                job.done = 1.0
            else:
                job.done += 1 / took
        slot += 1
    return float(np.mean(times))


def reference_drf(nodes: int) -> Callable[[list[Reference]], tuple[Reference, int, int] | None]:
    def share(job: Reference) -> float:
        demand = job.counts[0] * source().demand[job.kind, 1] + job.counts[1] * source().demand[job.kind, 0]
        return float((demand / (source().node * nodes)).max())

    def choose(present: list[Reference]) -> tuple[Reference, int, int] | None:
        open_ones = [job for job in present if max(job.counts) < 16]
        return (min(open_ones, key=share), 1, 1) if open_ones else None

    return choose


def reference_optimus(present: list[Reference]) -> tuple[Reference, int, int] | None:
    best: tuple[float, Reference, int, int] | None = None
    for job in present:
        if not job.counts[1]:  # it found no room
            return (job, 0, 1)
        worker = (1 - job.done) * (job.slots() - job.slots(workers=1))
        server = (1 - job.done) * (job.slots() - job.slots(servers=1))
        servers = int(server >= worker)
        if job.counts[0 if servers else 1] < 16 and (best is None or max(worker, server) > best[0]):
            best = max(worker, server), job, servers, 1 - servers
    return best[1:] if best is not None and best[0] > 0 else None


def slots(nodes: int | list[int] = 24, count: int = 3, kept: AllocationSettings = SMALL, start: int = 0) -> Slots:
    return Slots(kept, nodes, [draw(kept, SeedSplit.TRAIN, start + index) for index in range(count)])


def test_speeds_are_interpolated_as_scipy_does() -> None:
    measured = np.random.default_rng(1).uniform(0, 20, (12, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Rbf is SciPy's older name, by which the source calls it
        expected = Rbf(*measured.T, function="linear")
    servers, workers = np.meshgrid(np.arange(6.0), np.arange(5.0), indexing="ij")
    np.testing.assert_allclose(interpolated(measured, 5, 4), expected(servers, workers), rtol=1e-6)


@pytest.mark.parametrize(("rule", "name"), [(drf, "drf"), (optimus, "optimus")])
@pytest.mark.parametrize("nodes", [4, 20])
def test_rules_do_what_the_source_does(rule: Any, name: str, nodes: int) -> None:
    ours = play(slots(nodes), rule)
    for index, found in enumerate(ours):
        choose = reference_drf(nodes) if name == "drf" else reference_optimus
        assert found == pytest.approx(reference(draw(SMALL, SeedSplit.TRAIN, index), nodes, choose))


def test_episodes_side_by_side_are_those_one_by_one() -> None:
    together = play(slots([4, 8, 12]), RULES["optimus-ahead"])
    alone = [play(slots(nodes, 1, start=index), RULES["optimus-ahead"])[0] for index, nodes in enumerate((4, 8, 12))]
    assert list(together) == pytest.approx(alone)


def test_no_job_is_faster_than_at_its_best_and_the_best_counts_reach_that() -> None:
    best = np.array([np.unravel_index(table.argmin(), table.shape) for table in SMALL.slots])
    played = slots(150)
    play(played, fixed(best))
    for row in range(3):
        np.testing.assert_allclose(played.completion_slots(row), SMALL.best_slots[played.kinds[row]])


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12))
def test_nothing_is_given_that_does_not_fit(seed: int, nodes: int) -> None:
    rng, played = np.random.default_rng(seed), slots(nodes, 2, start=seed % 1000)
    lost, spent = np.zeros(2), np.zeros(2)
    for _ in range(60):
        window, before = played.window, played.present.copy()
        mask = np.concatenate([played.fitting(window).reshape(2, -1), np.ones((2, 1), bool)], 1)
        chosen = (mask * rng.random(mask.shape)).argmax(1)
        ends, passed = act(played, chosen, ~played.over)
        assert (played.workers <= 16).all() and (played.servers <= 16).all()  # noqa: PT018
        demand = played.tables.demand[played.kinds]
        need = played.workers[..., None] * demand[:, :, 0] + played.servers[..., None] * demand[:, :, 1]
        need = (need * played.present[..., None]).sum(1)
        assert (need <= SMALL.node * nodes).all()
        assert (passed.lost <= passed.spent).all() and (passed.spent <= before[ends]).all()  # noqa: PT018
        lost[ends] += passed.lost.sum(1)
        spent[ends] += passed.spent.sum(1)
    done = np.where(played.present, played.done, ~np.isnan(played.ends)) * SMALL.best_slots[played.kinds]
    np.testing.assert_allclose(lost, spent - done.sum(1), atol=1e-6)


def test_a_job_that_never_trains_is_given_up() -> None:
    table = np.full((1, 17, 17), np.inf)
    table[0, 16, 16] = 1.0
    stuck = replace(SMALL, names=("stuck",), slots=table, demand=SMALL.demand[:1], jobs=1, most_slots=7)
    begun = Slots(stuck, 4, [Trace(np.zeros(1, np.int64), np.zeros(1, np.int64))])
    assert play(begun, fixed(np.ones((1, 2), int)))[0] == 7


def test_a_step_needs_an_episode_of_a_purpose_that_is_one() -> None:
    with pytest.raises(ResetNeeded):
        AllocationEnvironment().step(0)
    with pytest.raises(ValueError, match="purpose: unknown 'win'; choose from train, choose, judge"):
        AllocationEnvironment(purpose="win")


@pytest.mark.parametrize("odd", [-1, -2, 10**6, 900])
def test_what_is_no_action_is_refused_or_lets_time_pass(odd: int) -> None:
    one, several = AllocationEnvironment(SlotForm(24)), SideBySide(num_envs=2, nodes=24)
    _, info = one.reset(options={"episode": 0})
    several.reset(seed=0)
    stop = len(info["action_mask"]) - 1
    # The mask of the jobs that are there is narrower: its "stop" is the number of a job that has not come.
    for wrong in (odd, int(one._mask.shape[0]) - 1, 0.5, None):
        with pytest.raises(IllegalActionError, match=f"action {wrong} is not legal; legal: "):
            one.step(wrong)  # type: ignore[arg-type]
        if isinstance(wrong, int):
            with pytest.raises(IllegalActionError, match=f"environment 1: action {wrong} is not legal"):
                several.step(np.array([stop, wrong]))
    with pytest.raises(IllegalActionError, match="type float64; give 2 integers"):
        several.step(np.array([stop, 0.5]))
    with pytest.raises(ValueError, match="illegal is 'wrap'; choose 'raise' or 'stop'"):
        SideBySide(illegal="wrap")

    def played(action: int | None) -> tuple[float, Any]:
        environment = AllocationEnvironment(SlotForm(24), illegal="stop")
        _, info = environment.reset(options={"episode": 0})
        seen, reward, *_ = environment.step(len(info["action_mask"]) - 1 if action is None else action)
        return reward, seen

    stopped, found = played(None), played(odd)
    assert found[0] == stopped[0] < 0
    assert all((found[1][name] == stopped[1][name]).all() for name in stopped[1])
    many = SideBySide(num_envs=2, nodes=24, illegal="stop")
    _, info = many.reset(seed=0)
    _, rewards, *_ = many.step(np.array([odd, info["action_mask"].shape[1] - 1]))
    assert (rewards < 0).all()


def workers_form(count: int = 5) -> WorkerForm:
    def jobs(purpose: SeedSplit, index: int) -> list[FixedJob]:
        rng = np.random.default_rng((purpose, index))
        return [
            FixedJob(f"j{i}", 100.0 * i, int(rng.integers(1, 5)), float(rng.uniform(60, 4000))) for i in range(count)
        ]

    return WorkerForm(jobs, [SimulatedNode("a", 4), SimulatedNode("b", 4)], count)


def test_the_form_with_workers_is_as_gymnasium_asks() -> None:
    check_env(AllocationEnvironment(workers_form(), illegal="stop"), skip_render_check=True)


@pytest.mark.parametrize("form", [SlotForm(40), workers_form()])
def test_the_return_is_the_time_that_jobs_were_there(form: Any) -> None:
    environment = AllocationEnvironment(form, "choose")
    _, info = environment.reset(seed=3)
    over, total, rng = False, 0.0, np.random.default_rng(0)
    while not over:
        mask = info["action_mask"]
        assert mask.any()
        # In slots, only what is given first: else the episode has thousands of decisions.
        action = len(mask) - 1 if mask[-1] else int((mask * rng.random(len(mask))).argmax())
        _, reward, over, _, info = environment.step(action)
        total -= reward
    assert total * 3600 / form.jobs == pytest.approx(info["mean_seconds"])


def test_the_vectorised_environment_plays_the_same_episodes() -> None:
    gymnasium.make("espalier_lab.environments:espalier/Allocation-v0").close()
    many = gymnasium.make_vec("espalier/Allocation-v0", num_envs=2, vectorization_mode="vector_entry_point", nodes=24)
    observation, info = many.reset(seed=5)
    assert many.observation_space.contains(observation)
    again, _ = many.reset(seed=5)
    assert all((observation[name] == again[name]).all() for name in observation)
    rewards = np.zeros(2)
    stop = many.single_action_space.n - 1
    for _ in range(FULL):
        assert info["action_mask"][:, stop].all()
        observation, reward, over, _, info = many.step(np.array([stop, info["action_mask"][1].argmax()]))
        rewards += reward
        if over[0]:
            break
    assert -rewards[0] * 3600 / source().jobs == pytest.approx(info["mean_seconds"][0])
    assert many.observation_space.contains(observation)
    _, reward, over, _, _ = many.step(np.array([stop, stop]))
    assert (reward[0], over[0]) == (0, False)  # it begins again


def test_the_vectorised_environment_plays_the_episode_that_is_named() -> None:
    one, many = AllocationEnvironment(SlotForm(24)), SideBySide(num_envs=2, nodes=24)
    for index in (5, 6):
        _, info = one.reset(options={"episode": index})
        seen, *_ = one.step(len(info["action_mask"]) - 1)
        _, info = many.reset(seed=0, options={"episode": index})
        both, *_ = many.step(np.full(2, info["action_mask"].shape[1] - 1))
        assert all((both[name] == seen[name]).all() for name in seen)
    drawn, _ = many.reset(seed=0)
    assert not all((drawn[name][0] == drawn[name][1]).all() for name in drawn)


def test_episodes_of_two_purposes_are_never_the_same() -> None:
    drawn = [draw(source(), purpose, index).kinds for purpose in SeedSplit for index in range(3)]
    assert all((one != other).any() for one, other in itertools.combinations(drawn, 2))
    assert set(draw(source(), SeedSplit.TRAIN, 0, (1, 4)).kinds) == {1, 4}


def learner(seed: int = 0, **changes: Any) -> SchedulingLearner:
    chosen = LearnerSettings(**{"imitated": 200, "kept": 1.0, "episodes": 4, "steps": 24, "decisions": 100, **changes})
    traces = (draw(SMALL, SeedSplit.TRAIN, index) for index in itertools.count())
    episodes = SlotEpisodes(lambda begun: Slots(SMALL, [8, 12, 8, 12], begun), traces, chosen.episodes)
    return SchedulingLearner(episodes, Twin(OPTIONS, seed=seed), chosen, seed)


def test_a_teacher_is_imitated_and_a_seed_gives_the_same_policy() -> None:
    found = []
    for _ in range(2):
        one = learner(imitation_epochs=30, imitation_rate=0.01)
        assert one.imitate() > 0.5
        one.improve()
        assert one.learnt_from >= 200 + 96
        found.append(one.network.frozen())
    assert all((found[0].weights[name] == value).all() for name, value in found[1].weights.items())
    assert greedy(found[0])(slots(16, 2)).shape == (2,)


def test_advantages_of_perfect_values_are_what_decisions_change() -> None:
    """With lambda 1 and values of 0 an advantage is the sum of rewards to come: minus what is lost, discounted."""
    torch.manual_seed(0)
    twin = Twin(OPTIONS, seed=3)
    with torch.no_grad():
        for parameter in twin.value.parameters():
            parameter.zero_()
    traces = (draw(SMALL, SeedSplit.TRAIN, index) for index in itertools.count())
    episodes = SlotEpisodes(lambda begun: Slots(SMALL, 24, begun), traces, 2)
    generator = torch.Generator().manual_seed(1)
    found = collect(episodes, twin, 80, generator, discount=0.0)
    told = estimated(found, trace=1.0, others=1.0)
    assert (found.actions == STOP).any()
    for row in range(2):
        stops = np.flatnonzero(found.actions[:, row].numpy() == STOP)
        for before, stop in itertools.pairwise(stops):
            # From the first decision of a slot on, rewards sum up to minus what the slot lost.
            assert float(told.advantages[before + 1, row]) <= 1e-5
            assert float(told.returns[before + 1][row].sum()) == pytest.approx(
                float(told.advantages[before + 1, row]), abs=1e-5
            )
            assert float(told.advantages[stop, row]) <= 1e-5
