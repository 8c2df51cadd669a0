"""Equal parts of the time, two jobs on the same GPUs where that pays: Gandiva (Xiao et al., OSDI 2018).

The version is that of Gavel (Narayanan et al., OSDI 2020, 7.1): pairs are drawn at random, and given up where they do
not pay. The paper's growing, shrinking and moving of jobs are left out. Unlike in Gavel's simulator, GPUs that would be
idle go to single jobs and not to pairs, and are not kept for jobs that came since the last allocation.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from espalier_operator.policies.fifo import oldest_first
from espalier_operator.policies.leases import Group, Table, fastest_first, gpus_of, leased, resumed, state_of
from espalier_operator.policies.view import Decision, Elasticity, TypeSpeeds, View

_PAIRS: Final = "pairs"
_RANDOM: Final = "random"
_LEAST: Final = 1.0
"""Minimum sum, over all types of GPU, of the parts of their speeds that a pair's jobs keep; below, it is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GandivaPolicy:
    """All groups get equal parts of the time on each type of GPU; a group is a job, or two with as many GPUs each.

    Jobs share GPUs only where there are not enough for all. Where types are unknown, the oldest go first.
    """

    elasticity: ClassVar[Elasticity] = Elasticity.FIXED
    queue_order: ClassVar[str] = "by their parts of the time"

    seed: int = 0
    """Seed of the draws of pairs."""
    name: str = "gandiva"

    def draws(self, *, typed: bool, continuous: bool) -> bool:
        """Return whether it uses its seed in such views: only in rounds, where jobs can share the GPUs of a type."""
        return typed and not continuous

    def decide(self, view: View) -> Decision:
        """Return the leases of the next round."""
        speeds = view.speeds
        if not view.gpu_types or speeds is None:
            return oldest_first(view)

        def allocate(memory: Mapping[str, Any]) -> tuple[Table, Mapping[str, Any]]:
            generator = resumed(self.seed, memory.get(_RANDOM))
            before = (tuple(pair) for pair in memory.get(_PAIRS, ()))
            # In a continuous view no jobs share GPUs: all take turns.
            enough = view.continuous or sum(map(gpus_of, view.jobs)) <= view.gpus
            pairs = _pairs(view, speeds, before, None if enough else generator)
            paired = {job for pair in pairs for job in pair if not enough}
            alone: list[Group] = [(job.key,) for job in view.jobs]
            served = [group for group in alone if group[0] not in paired] + ([] if enough else pairs)
            memory = {_PAIRS: [list(pair) for pair in pairs], _RANDOM: state_of(generator)}
            return _equal_parts(view, dict.fromkeys([*alone, *served]), served), memory

        return leased(view, allocate, fastest_first(view))


def _pairs(view: View, speeds: TypeSpeeds, before: Iterable[Group], generator: random.Random | None) -> list[Group]:
    """Return the earlier pairs that still pay, and new ones if there is a generator to draw them."""
    sizes = {job.key: gpus_of(job) for job in view.jobs}
    pairs = [pair for pair in before if all(job in sizes for job in pair) and _kept(speeds, pair, view) >= _LEAST]
    paired = {job for pair in pairs for job in pair}
    single = [job for job in sizes if job not in paired]
    for _ in range(len(single)):
        if generator is None or len(single) < 2:
            break
        one, other = generator.sample(single, 2)
        if sizes[one] == sizes[other]:
            pairs.append((min(one, other), max(one, other)))
            single.remove(one)
            single.remove(other)
    return pairs


def _kept(speeds: TypeSpeeds, pair: Group, view: View) -> float:
    """Return the sum, over types of GPU and both jobs, of (speed together / speed alone); 0: impossible."""
    total = 0.0
    for gpu_type in view.gpu_types:
        for job, other in zip(pair, reversed(pair), strict=True):
            alone, together = (speeds.steps_per_second(job, gpu_type, beside) for beside in (None, other))
            if not alone or not together:
                return 0.0
            total += together / alone
    return total


def _equal_parts(view: View, groups: Iterable[Group], served: list[Group]) -> Table:
    """Return an equal part of each type's GPUs for each of `served`, at most 1 in all, and 0 for other groups."""
    sizes = {job.key: gpus_of(job) for job in view.jobs}
    table: Table = {}
    for group in groups:
        row = {each: gpus / len(served) / sizes[group[0]] for each, gpus in view.gpu_types.items()}
        whole = max(1.0, sum(row.values()))
        table[group] = {each: part / whole if group in served else 0.0 for each, part in row.items()}
    return table
