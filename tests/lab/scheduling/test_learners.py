"""What learners are told of an episode, in each environment, and what they remember of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from espalier_lab.scheduling.allocation.episodes import WorkerEpisodes
from espalier_lab.scheduling.allocation.forms import WorkerForm
from espalier_lab.scheduling.allocation.learning import learn_workers
from espalier_lab.scheduling.allocation.rules import chosen_by
from espalier_lab.scheduling.allocation.workloads import Mixed, StepByStep
from espalier_lab.scheduling.learned.serving import LearnedAllocation
from espalier_lab.scheduling.learned.twin import Twin
from espalier_lab.scheduling.learners.actor_critic import _remembered
from espalier_lab.scheduling.learners.learner import LEARNERS, LearnerSettings
from espalier_lab.scheduling.learners.rollout import STOP, collect
from espalier_lab.scheduling.placement.actor import Actor
from espalier_lab.scheduling.placement.candidates import emptiest
from espalier_lab.scheduling.placement.cluster import PlacementCluster
from espalier_lab.scheduling.placement.episodes import SLOT_SECONDS, PlacementEpisodes
from espalier_lab.scheduling.placement.placers import PlacementRule, run
from espalier_lab.scheduling.placement.tasks import Family, episode
from espalier_lab.scheduling.seed_split import SeedSplit
from espalier_lab.simulator.jobs import FixedJob
from espalier_lab.simulator.rounds import Rounds, SimulatedNode
from espalier_operator.policies.view import SpeedModel

NODES = [SimulatedNode("a", 4), SimulatedNode("b", 4)]
MOMENT = 600.0
SMALL = Family(jobs=8)


class Known(FixedJob):
    """A job that says how fast it is: the more of its workers it has, the faster."""

    tried_workers = 1

    @property
    def speed_model(self) -> SpeedModel:
        return self

    @property
    def remaining_steps(self) -> float:
        return self._left

    def step_seconds(self, workers: int) -> float:
        return self.requested / workers

    def goodput(self, nodes: int, workers: int) -> float:
        return workers / self.requested


def jobs(purpose: SeedSplit, index: int) -> list[FixedJob]:
    rng = np.random.default_rng((purpose, index))
    kinds = [Known, Known, FixedJob]
    return [kinds[i % 3](f"j{i}", 90.0 * i, int(rng.integers(1, 7)), float(rng.uniform(200, 2000))) for i in range(6)]


FORM = WorkerForm(jobs, NODES, 6)


def test_what_jobs_with_all_reduce_lose_is_the_time_that_they_did_not_train() -> None:
    begun = FORM.begin(SeedSplit.TRAIN, 0)
    # A second one beside it, which has more or fewer jobs at a time.
    runs = (FORM.begin(SeedSplit.TRAIN, index) for index in itertools.count(1))
    episodes = WorkerEpisodes(itertools.chain([begun], runs), 2, 6)
    spent, lost = np.zeros(7), np.zeros(7)
    while not begun.over:
        ends, passed = episodes.act(episodes.taught("soonest"))
        if 0 in ends:
            spent, lost = spent + passed.spent[0], lost + passed.lost[0]
    own = jobs(SeedSplit.TRAIN, 0)
    trained = [job.seconds_alone() if isinstance(job, Known) else 0.0 for job in own]
    np.testing.assert_allclose(MOMENT * lost[:6], MOMENT * spent[:6] - trained, atol=1e-6)
    assert begun.mean_seconds - 120 <= MOMENT * spent[:6].mean() <= begun.mean_seconds  # it waits until it is seen
    assert spent[6] == lost[6] == 0  # padding is nobody


def test_rules_step_by_step_do_as_they_are_taught() -> None:
    own = jobs(SeedSplit.JUDGE, 0)
    Rounds(own, NODES, StepByStep("soonest")).run()
    begun = FORM.begin(SeedSplit.JUDGE, 0)
    episodes = WorkerEpisodes(iter([begun, FORM.begin(SeedSplit.JUDGE, 1)]), 1, 6)
    while not begun.over:
        episodes.act(episodes.taught("soonest"))
    taken = [(job.completed_at or 0.0) - job.submitted_at for job in own]
    assert begun.mean_seconds == pytest.approx(np.mean(taken))


def test_what_must_be_given_is_given() -> None:
    worth = np.array([[[0.0], [-1.0]], [[0.0], [2.0]], [[0.0], [0.0]]])
    mask = np.array([[True, True, False], [True, True, True], [True, True, True]])
    assert list(chosen_by(worth, mask)) == [0, 1, 2]


def test_jobs_of_traces_are_mixed_and_fresh() -> None:
    traces = [jobs(SeedSplit.TRAIN, 0), jobs(SeedSplit.TRAIN, 1)]
    mixed = Mixed(traces, 4)
    first, again, other = mixed(SeedSplit.TRAIN, 3), mixed(SeedSplit.TRAIN, 3), mixed(SeedSplit.CHOOSE, 3)
    sizes = [[(job.submitted_at, job.requested, job.seconds_alone()) for job in each] for each in (first, again, other)]
    assert sizes[0] == sizes[1] != sizes[2]
    assert [job.submitted_at for job in first] == [0.0, 90.0, 180.0, 270.0]
    Rounds(first, NODES, StepByStep("soonest")).run()
    assert all(not job.held and job.completed_at is None for trace in (again, *traces) for job in trace)


def test_an_actor_critic_remembers_whose_value_follows() -> None:
    runs = (FORM.begin(SeedSplit.TRAIN, index) for index in itertools.count())
    episodes, twin = WorkerEpisodes(runs, 3, 6), Twin(1, seed=1)
    rollout = collect(episodes, twin, 60, torch.Generator().manual_seed(2), discount=0.9)
    for step in range(60):
        kept = _remembered(rollout, step)
        window, ahead = rollout.windows[step], rollout.windows[step + 1]
        found = np.take_along_axis(ahead, kept.places.numpy(), 1)
        counts = (kept.lives.numpy() > 0) & (kept.seen[3].numpy() > 0)
        assert (found[counts] == window[counts]).all()
        followed = np.take_along_axis(kept.following[3].numpy(), kept.places.numpy(), 1)
        assert (followed[counts] == 1).all()
        given = rollout.actions[step].numpy() != STOP
        assert (kept.own.numpy()[given].sum(1) == 1).all()


@pytest.mark.parametrize("name", [*LEARNERS])
def test_each_learner_gives_the_same_policy_by_a_seed(name: str) -> None:
    chosen = LearnerSettings(
        teacher="soonest", learner=name, imitated=60, kept=1.0, episodes=2, steps=16, decisions=64, minibatch=16
    )
    found = [learn_workers(5, chosen, FORM, "few jobs") for _ in range(2)]
    assert found[0].version == found[1].version
    imitation = learn_workers(
        5, LearnerSettings(teacher="soonest", imitated=60, kept=1.0, episodes=2, decisions=0), FORM, ""
    )
    before, after = imitation.network.weights, found[0].network.weights
    assert any((before[weight] != after[weight]).any() for weight in before)
    own = jobs(SeedSplit.JUDGE, 0)
    Rounds(own, NODES, LearnedAllocation(found[0])).run()
    assert all(job.completed_at for job in own)


def placed(count: int, start: int = 0) -> PlacementEpisodes:
    numbers: Iterator[int] = itertools.count(start)
    return PlacementEpisodes(numbers, count, SeedSplit.CHOOSE, shift=True, family=SMALL)


def test_placement_by_a_rule_takes_as_long_side_by_side_and_nothing_is_lost_to_the_account() -> None:
    episodes = placed(2)
    spent, lost = np.zeros(2), np.zeros(2)
    while not episodes.ended:
        _, passed = episodes.act(episodes.taught("emptiest"))
        spent, lost = spent + passed.spent[:, 0], lost + passed.lost[:, 0]
    drawn = [episode(SMALL, SeedSplit.CHOOSE, index, shift=True) for index in range(2)]
    means = np.mean(episodes.ended, axis=1)
    assert means == pytest.approx([run(PlacementCluster(each), PlacementRule(emptiest)) for each in drawn])
    waited = []
    for cluster in map(PlacementCluster, drawn):
        next(cluster.decisions())
        waited.append(cluster.job_seconds)  # until the first decision
    np.testing.assert_allclose(spent * SLOT_SECONDS + waited, means * SMALL.jobs)
    alone = [sum(job.seconds_alone() for job in PlacementCluster(each).jobs.values()) for each in drawn]
    np.testing.assert_allclose((spent - lost) * SLOT_SECONDS, alone)


def test_an_actor_does_not_care_which_node_of_a_rack_is_which() -> None:
    actor = Actor(3, 4, seed=2)
    seen, mask = placed(1).seen()
    order = np.array([2, 0, 3, 1, *range(4, 12)])
    jobs_, options, cluster, present = map(torch.from_numpy, (seen.jobs, seen.options, seen.cluster, seen.present))
    scores, value = actor(jobs_, options, cluster, present, torch.from_numpy(mask))
    moved, same = actor(jobs_, options[..., order], cluster[:, order], present, torch.from_numpy(mask))
    torch.testing.assert_close(moved, scores)
    torch.testing.assert_close(same, value)
