"""Decisions of a network in many episodes of DL2's cluster at once, and what came of each.

What is minimised is the slots that jobs are there, beyond those that they would need at their best speed: the mean
completion time but for a constant. Each decision is told at once what it changed: giving something earns by how much
the job gets faster, as a part of its best speed; "stop" costs the rest, so that the rewards of a slot sum up to minus
the slots that were lost in it (shaping by a potential: Ng, Harada and Russell, ICML 1999). Rewards and values are kept
by job, and advantages summed up over jobs (generalised advantage estimation: Schulman et al., ICLR 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier_scheduling.allocation.rules import Chosen, act
from espalier_scheduling.allocation.slots import OPTIONS, Passed, Slots
from espalier_scheduling.allocation.traces import Trace
from espalier_scheduling.learned.description import Floats, Inputs
from espalier_scheduling.learned.twin import Twin

Seen = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""What the twin takes: jobs, options, cluster, present, mask."""
STOP = -1
"""Stands for "stop", whose column depends on the number of jobs."""


def tensors(seen: Inputs, mask: NDArray[np.bool_]) -> Seen:
    """Return what the twin takes."""
    jobs, options, cluster, present = map(torch.from_numpy, (seen.jobs, seen.options, seen.cluster, seen.present))
    return jobs, options, cluster, present, torch.from_numpy(mask)


def joined(parts: list[Seen]) -> Seen:
    """Join batches, with the jobs of the widest; "stop" stays last."""
    width = max(jobs.shape[1] for jobs, *_ in parts)
    columns: list[list[Tensor]] = [[], [], [], [], []]
    for jobs, options, cluster, present, mask in parts:
        more = width - jobs.shape[1]
        given = torch.nn.functional.pad(mask[:, :-1], (0, more * options.shape[2]))
        row = (
            torch.nn.functional.pad(jobs, (0, 0, 0, more)),
            torch.nn.functional.pad(options, (0, 0, 0, 0, 0, more)),
            cluster,
            torch.nn.functional.pad(present, (0, more)),
            torch.cat([given, mask[:, -1:]], 1),
        )
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    jobs, options, cluster, present, mask = map(torch.cat, columns)
    return jobs, options, cluster, present, mask


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """So many steps of all episodes; arrays begin with (steps, episodes)."""

    seen: list[Seen]
    """By step."""
    actions: Tensor
    """Columns, or `STOP`."""
    logs: Tensor
    """Logarithms of the probabilities with which they were chosen."""
    advantages: Tensor
    returns: list[Tensor]
    """By step, (episodes, width): of each job."""
    lost: float
    """Slots that jobs lost, a slot."""


class Episodes:
    """Episodes side by side, each followed by the next one."""

    def __init__(self, make: Callable[[list[Trace]], Slots], traces: Iterator[Trace], count: int) -> None:
        """Begin: `make` makes episodes of traces."""
        self._traces = traces
        self.slots = make([next(traces) for _ in range(count)])
        self.opened = self.slots.speed_parts()
        """(episodes, jobs): with what jobs had when the slot began."""

    def act(self, chosen: Chosen) -> tuple[NDArray[np.int64], Passed]:
        """Do what was chosen, and begin new episodes where one is over."""
        slots = self.slots
        ends, passed = act(slots, chosen, np.ones(len(chosen), bool))
        for row in ends:
            if slots.over[row]:
                slots.begin(int(row), next(self._traces))
        self.opened[ends] = slots.speed_parts()[ends]
        return ends, passed


@torch.no_grad()
def collect(
    episodes: Episodes,
    twin: Twin,
    steps: int,
    generator: torch.Generator,
    *,
    discount: float,
    trace: float,
    others: float,
) -> Rollout:
    """Let the network decide, by its probabilities, for so many steps; the arguments are those of `Settings`."""
    slots = episodes.slots
    count, jobs = slots.kinds.shape
    rows = np.arange(count)
    seen: list[Seen] = []
    windows: list[NDArray[np.int64]] = []
    actions, logs = np.zeros((steps, count), np.int64), torch.zeros(steps, count)
    values, rewards = np.zeros((steps + 1, count, jobs)), np.zeros((steps, count, jobs))
    lives = np.zeros((steps, count, jobs))
    about = np.full((steps, count), STOP)
    lost, stops = 0.0, 0
    for step in range(steps + 1):
        window = slots.window
        now = tensors(*slots.seen(window))
        scores, value = twin(*now)
        values[step][rows[:, None], window] = value.numpy()  # that of padding is 0
        if step == steps:
            break
        every = torch.log_softmax(scores, 1)
        picked = torch.multinomial(every.exp(), 1, generator=generator)
        logs[step] = every.gather(1, picked)[:, 0]
        chosen = picked[:, 0].numpy()
        given = chosen < window.shape[1] * OPTIONS
        actions[step] = np.where(given, chosen, STOP)
        about[step, given] = window[rows[given], chosen[given] // OPTIONS]
        seen.append(now)
        windows.append(window)
        before, opened, present = slots.speed_parts(), episodes.opened.copy(), slots.present.copy()
        ends, passed = episodes.act(chosen)
        rewards[step] = slots.speed_parts() - before
        rewards[step, ends] = -passed.lost - (before - opened)[ends]
        lives[step] = present
        lives[step, ends] = discount * (present[ends] & ~passed.ended)
        lost, stops = lost + float(passed.lost.sum()), stops + len(ends)
    advantages, returns = np.zeros((steps, count)), [torch.empty(0)] * steps
    gae = np.zeros((count, jobs))
    for step in reversed(range(steps)):
        # Jobs that were not there yet are nobody's doing.
        there = np.zeros((count, jobs), bool)
        there[rows[:, None], windows[step]] = seen[step][3].numpy() > 0
        gae = there * (rewards[step] + lives[step] * (values[step + 1] + trace * gae) - values[step])
        total = gae.sum(1)
        own = np.where(about[step] == STOP, total, gae[rows, about[step]])
        advantages[step] = own + others * (total - own)
        returns[step] = torch.from_numpy(_float32((gae + values[step])[rows[:, None], windows[step]]))
    return Rollout(
        seen, torch.from_numpy(actions), logs, torch.from_numpy(_float32(advantages)), returns, lost / max(1, stops)
    )


def _float32(values: Floats) -> NDArray[np.float32]:
    return values.astype(np.float32)
