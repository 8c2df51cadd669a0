"""Complete learning of a policy, for DL2's cluster and for jobs with all-reduce."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final

import torch

from espalier_lab.scheduling.allocation.episodes import SlotEpisodes, WorkerEpisodes
from espalier_lab.scheduling.allocation.forms import WorkerForm
from espalier_lab.scheduling.allocation.judging import NODES
from espalier_lab.scheduling.allocation.slots import Slots
from espalier_lab.scheduling.allocation.source import source
from espalier_lab.scheduling.allocation.traces import draw
from espalier_lab.scheduling.learned.description import WORKERS_AND_SERVERS, WORKERS_ONLY
from espalier_lab.scheduling.learned.files import AllocationLineage, AllocationPolicy, Serves, make_policy
from espalier_lab.scheduling.learned.network import JobScorer
from espalier_lab.scheduling.learned.twin import Twin
from espalier_lab.scheduling.learners.learner import LearnerSettings, SchedulingLearner
from espalier_lab.scheduling.learners.rollout import ParallelEpisodes
from espalier_lab.scheduling.seed_split import SeedSplit

_APART: Final = 1_000_000
"""Number of training episodes that belong to each seed."""


def learn_slots(
    seed: int,
    settings: LearnerSettings,
    *,
    nodes: Sequence[int] = NODES,
    kinds: Sequence[int] | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> AllocationPolicy:
    """Learn a policy on clusters with these numbers of nodes, with equally many episodes each; `progress` gets lines.

    `kinds`: the types of jobs, by default all. Torch uses one thread: the network is small, and results are then
    reproducible by seed.
    """
    torch.set_num_threads(1)
    clusters = [size for size, _ in zip(itertools.cycle(nodes), range(settings.episodes), strict=False)]
    traces = (draw(source(), SeedSplit.TRAIN, index, kinds) for index in itertools.count(seed * _APART))
    episodes = SlotEpisodes(lambda begun: Slots(source(), clusters, begun), traces, settings.episodes)
    learner, network = _learn(episodes, seed, settings, progress)
    types = len(source().names) if kinds is None else len(kinds)
    lineage = AllocationLineage(
        name="allocation-slots",
        actions=WORKERS_AND_SERVERS,
        learnt_from=f"DL2's cluster, {types} types of jobs, {', '.join(map(str, nodes))} nodes",
        algorithm=_algorithm(settings),
        seed=seed,
        decisions=learner.learnt_from,
        serves=Serves(
            min_gpus=min(nodes) * int(source().node[1]),
            max_gpus=max(nodes) * int(source().node[1]),
            max_jobs=source().jobs,
        ),
    )
    return make_policy(network, lineage)


def learn_workers(
    seed: int,
    settings: LearnerSettings,
    form: WorkerForm,
    learnt_from: str,
    *,
    progress: Callable[[str], object] = lambda line: None,
) -> AllocationPolicy:
    """Learn a policy for jobs with all-reduce, from a form's episodes, which `learnt_from` describes; as `learn_slots`.

    The policy serves clusters with as many GPUs as the form's.
    """
    torch.set_num_threads(1)
    runs = (form.begin(SeedSplit.TRAIN, index) for index in itertools.count(seed * _APART))
    episodes = WorkerEpisodes(runs, settings.episodes, form.jobs)
    learner, network = _learn(episodes, seed, settings, progress)
    lineage = AllocationLineage(
        name="allocation-workers",
        actions=WORKERS_ONLY,
        learnt_from=learnt_from,
        algorithm=_algorithm(settings),
        seed=seed,
        decisions=learner.learnt_from,
        serves=Serves(min_gpus=form.gpus, max_gpus=form.gpus, max_jobs=512),
    )
    return make_policy(network, lineage)


def _learn(
    episodes: ParallelEpisodes, seed: int, settings: LearnerSettings, progress: Callable[[str], object]
) -> tuple[SchedulingLearner, JobScorer]:
    twin = Twin(episodes.options, seed=seed)
    learner = SchedulingLearner(episodes, twin, settings, seed)
    agreed = learner.imitate()
    progress(f"imitation of {settings.teacher}: {100 * agreed:.0f} % of its decisions are the network's too")

    def on_update(turn: int, figures: dict[str, float]) -> None:
        if turn % 10 == 9:
            progress(f"{learner.learnt_from:,} decisions: a slot costs {figures['lost']:.2f} slots of jobs' time")

    if settings.decisions:
        learner.improve(on_update)
    return learner, twin.frozen()


def _algorithm(settings: LearnerSettings) -> str:
    return f"imitation of {settings.teacher}" + (f", then {settings.learner}" if settings.decisions else "")
