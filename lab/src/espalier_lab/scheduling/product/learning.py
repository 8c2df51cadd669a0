"""Learning of a policy file from a workload of jobs with all-reduce, as drawn by `product.history`.

First the network imitates the best of some rules: at each step of a decision it learns to give a worker to one of the
jobs that the rule would give more. Then the weights that score options directly, and the offset of "stop", are searched
for the shortest mean completion time (the cross-entropy method: Rubinstein, 1999), with each candidate on the same
episodes. The search result is kept if it is better than the imitation on the episodes for choosing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier_lab.scheduling.learned.files import AllocationLineage, AllocationPolicy, make_policy
from espalier_lab.scheduling.learned.network import JobScorer
from espalier_lab.scheduling.learned.picture import PartialDecision
from espalier_lab.scheduling.learned.serving import LearnedAllocation
from espalier_lab.scheduling.learned.twin import Twin
from espalier_lab.scheduling.learners.descent import imitate
from espalier_lab.scheduling.learners.rollout import Seen, joined, masks, tensors
from espalier_lab.scheduling.placement.prior import learn_prior
from espalier_lab.scheduling.placement.tasks import Family, episode
from espalier_lab.scheduling.product.reader import tensors_of
from espalier_lab.scheduling.seed_split import SeedSplit
from espalier_lab.simulator.jobs import SimulatedJob
from espalier_lab.simulator.rounds import Rounds, SimulatedNode, answer
from espalier_operator.policies import Policy
from espalier_operator.policies.goodput import GoodputPolicy
from espalier_operator.policies.marginal import OptimusPolicy
from espalier_operator.policies.view import Decision, View

_SEARCHED: Final = ("score.option", "stop.offset")


TEACHERS: Final[tuple[Policy, ...]] = (OptimusPolicy(), GoodputPolicy())
"""Rules of which the best one is imitated."""


class Workload(Protocol):
    """Episodes of jobs."""

    @property
    def nodes(self) -> Sequence[SimulatedNode]:
        """The nodes of the jobs."""

    def draw(self, purpose: SeedSplit, index: int) -> list[SimulatedJob]:
        """Return the jobs of an episode; new ones each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationSettings:
    """Hyperparameters."""

    imitated: int = 6
    """Number of the rule's episodes."""
    epochs: int = 30
    rate: float = 3e-3
    """Adam's learning rate."""
    generations: int = 6
    candidates: int = 10
    """Number of candidates per generation."""
    best: int = 3
    """Number of the best candidates, from whose mean and spread the next generation is drawn."""
    searched: int = 3
    """Number of episodes for comparing candidates."""
    chosen: int = 6
    """Number of episodes for comparing imitation and search."""
    spread: float = 1.0
    """Standard deviation of the first candidates' weights around the imitation's."""


class DecisionStep(NamedTuple):
    """One step of a rule's decision."""

    seen: Seen
    """A batch of one."""
    right: Tensor
    """(1, jobs + 1): the rule's choices."""


Progress = Callable[[str], None]


def mean_seconds(workload: Workload, policy: Policy, purpose: SeedSplit, index: int) -> float:
    """Return the mean completion time of an episode under a policy."""
    jobs = workload.draw(purpose, index)
    Rounds(jobs, workload.nodes, policy).run()
    return float(np.mean([(job.completed_at or 0.0) - job.submitted_at for job in jobs]))


def learn(
    workload: Workload,
    lineage: AllocationLineage,
    settings: ImitationSettings,
    seed: int,
    progress: Progress = lambda line: None,
) -> AllocationPolicy:
    """Return the learnt policy; its lineage gets algorithm, seed, decisions and the figures of the choice."""
    rules = {
        rule.name: _mean([mean_seconds(workload, rule, SeedSplit.CHOOSE, index) for index in range(settings.chosen)])
        for rule in TEACHERS
    }
    teacher = min(TEACHERS, key=lambda rule: rules[rule.name])
    progress(f"imitates the best rule: {_listed(rules)}")
    samples = [each for index in range(settings.imitated) for each in demonstrated(workload, teacher, index)]
    imitation = _imitate(samples, settings, seed, progress)
    found = _search(workload, imitation, lineage, settings, seed, progress)
    policies = {name: make_policy(network, lineage) for name, network in (("imitation", imitation), ("search", found))}
    means = {
        name: _mean([_seconds(workload, policy, SeedSplit.CHOOSE, index) for index in range(settings.chosen)])
        for name, policy in policies.items()
    }
    better = "search" if means["search"] < means["imitation"] else "imitation"
    progress(f"on episodes to choose by: {_listed(means)}")
    kept = lineage.model_copy(
        update={
            "algorithm": f"imitation of {teacher.name}"
            + (", then cross-entropy search of the scores of options" if better == "search" else ""),
            "seed": seed,
            "decisions": len(samples),
            "results": {
                f"choose{name.capitalize()}Seconds": round(mean, 1) for name, mean in {**rules, **means}.items()
            },
        }
    )
    return make_policy(policies[better].network, kept)


def demonstrated(workload: Workload, teacher: Policy, index: int) -> list[DecisionStep]:
    """Return the steps of a rule's decisions in an episode."""
    samples: list[DecisionStep] = []

    def reply(view: View) -> Decision:
        decision = teacher.decide(view)
        wanted = {share.job: share.workers for share in decision.shares}
        picture = PartialDecision.of(view)
        targets = np.array([wanted.get(job.key, 0) for job in picture.jobs])
        while (mask := picture.mask()).any():
            right = mask & np.append(picture.workers < targets, False)
            if not right.any():  # it gives nothing, or lets a job wait that could start
                right = mask & np.append(np.zeros(len(targets), bool), True) if mask[-1] else mask
            jobs, options, cluster, present, open_ = (each[None] for each in tensors(picture.inputs(), mask))
            samples.append(DecisionStep((jobs, options, cluster, present, open_), torch.from_numpy(right)[None]))
            chosen = int(right.argmax())
            if chosen == len(targets):
                break
            picture.give(chosen)
        return decision

    answer(Rounds(workload.draw(SeedSplit.TRAIN, index), workload.nodes, teacher).views(), reply)
    return samples


def _mean(seconds: Sequence[float]) -> float:
    return float(np.mean(seconds))


def _listed(means: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {mean:,.0f} s" for name, mean in means.items())


def _imitate(samples: Sequence[DecisionStep], settings: ImitationSettings, seed: int, progress: Progress) -> JobScorer:
    torch.manual_seed(seed)
    twin, rng = Twin(1, seed=seed), np.random.default_rng((61, seed))

    def judged(chunk: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        chosen = [samples[index] for index in chunk]
        scores, _ = twin(*joined([sample.seen for sample in chosen]))
        wanted = masks([sample.right for sample in chosen])
        inside = torch.logsumexp(scores.masked_fill(~wanted, float("-inf")), 1)
        right = wanted.gather(1, scores.argmax(1, keepdim=True)).sum()
        return (torch.logsumexp(scores, 1) - inside).mean(), right

    count = len(samples)
    right = imitate(twin, judged, parts=count, chunks=count // 256, epochs=settings.epochs, rate=settings.rate, rng=rng)
    progress(f"imitated {count:,} decisions; {right / count:.0%} of them are the rule's")
    return twin.frozen()


def _search(
    workload: Workload,
    start: JobScorer,
    lineage: AllocationLineage,
    settings: ImitationSettings,
    seed: int,
    progress: Progress,
) -> JobScorer:
    """Return the network with the weights found by the cross-entropy method."""
    rng = np.random.default_rng((67, seed))
    mean = np.concatenate([start.weights[name].ravel() for name in _SEARCHED]).astype(np.float64)
    spread = np.full(mean.shape, settings.spread)
    for generation in range(settings.generations):
        drawn = mean + spread * rng.standard_normal((settings.candidates, len(mean)))
        drawn[0] = mean
        seconds = []
        for values in drawn:
            policy = make_policy(_with(start, values), lineage)
            episodes = range(settings.searched)
            seconds.append(_mean([_seconds(workload, policy, SeedSplit.TRAIN, index) for index in episodes]))
        best = drawn[np.argsort(seconds)[: settings.best]]
        mean, spread = best.mean(0), best.std(0) + 0.05 * settings.spread
        progress(
            f"search {generation + 1} of {settings.generations}: {min(seconds):,.0f} s, at first {seconds[0]:,.0f} s"
        )
    return _with(start, mean)


def _with(network: JobScorer, values: NDArray[np.float64]) -> JobScorer:
    """Return the network with these values for the searched weights."""
    weights, at = dict(network.weights), 0
    for name in _SEARCHED:
        size = weights[name].size
        weights[name] = values[at : at + size].reshape(weights[name].shape).astype(np.float32)
        at += size
    return JobScorer(weights)


def _seconds(workload: Workload, policy: AllocationPolicy, purpose: SeedSplit, index: int) -> float:
    return mean_seconds(workload, LearnedAllocation(policy), purpose, index)


def with_placement(policy: AllocationPolicy, progress: Progress, episodes: int) -> AllocationPolicy:
    """Return the policy with a placement prior, learnt on `episodes` simulated clusters."""
    drawn = [episode(Family(), SeedSplit.TRAIN, index) for index in range(episodes)]
    prior = learn_prior(
        drawn, on_round=lambda turn, mean: progress(f"placement prior, round {turn + 1}: {mean:,.0f} s a job")
    )
    return make_policy(policy.network, policy.lineage, tensors_of(prior))
