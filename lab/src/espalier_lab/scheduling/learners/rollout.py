"""Decisions of a network in many parallel episodes, with their results, the same for all environments.

The objective is the time that jobs are present beyond their time at their best speed: the mean completion time up to a
constant. Each decision is rewarded at once for its effect: a gift earns the increase of a job's speed, relative to its
best speed; passing time costs the rest, so that the rewards of a period sum up to minus its loss (shaping by a
potential: Ng, Harada and Russell, ICML 1999). Rewards and values are kept by job, and advantages summed over jobs
(generalised advantage estimation: Schulman et al., ICLR 2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from espalier_lab.scheduling.learned.description import NetworkInputs
from espalier_lab.scheduling.learners.passed import Chosen, Floats, Passed

Seen = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""The input of networks: jobs, options, cluster, present, mask."""
STOP = -1
"""Code for "stop", whose column depends on the number of jobs."""


class ParallelEpisodes(Protocol):
    """Parallel episodes, each followed by the next one; arrays begin with the dimension of episodes."""

    @property
    def options(self) -> int:
        """Number of options of a job."""

    @property
    def present(self) -> NDArray[np.bool_]:
        """(episodes, jobs): jobs that have arrived and are not complete."""

    @property
    def window(self) -> NDArray[np.int64]:
        """(episodes, width): the job of each row of the observation; any, as padding."""

    @property
    def opened(self) -> Floats:
        """Value of `speed_parts` at the beginning of the current slot, or period between two decisions."""

    def seen(self) -> tuple[NetworkInputs, NDArray[np.bool_]]:
        """Return the network's input for the window, and the mask of choices, (episodes, width × options + 1)."""

    def speed_parts(self) -> Floats:
        """Return (episodes, jobs): the speed of each with its workers, relative to its best speed."""

    def act(self, chosen: Chosen) -> tuple[NDArray[np.int64], Passed]:
        """Apply the choices; return the episodes in which time passed, with its cost. New ones follow."""

    def taught(self, teacher: str) -> Chosen:
        """Return the choices of a rule."""


def tensors(seen: NetworkInputs, mask: NDArray[np.bool_]) -> Seen:
    """Return the network's input as tensors."""
    jobs, options, cluster, present = map(torch.from_numpy, (seen.jobs, seen.options, seen.cluster, seen.present))
    return jobs, options, cluster, present, torch.from_numpy(mask)


def joined(parts: list[Seen]) -> Seen:
    """Join batches, with the jobs of the widest; "stop" stays last."""
    width = max(jobs.shape[1] for jobs, *_ in parts)
    columns: list[list[Tensor]] = [[], [], [], []]
    for jobs, options, cluster, present, _ in parts:
        more = width - jobs.shape[1]
        row = (
            torch.nn.functional.pad(jobs, (0, 0, 0, more)),
            torch.nn.functional.pad(options, (0, 0, 0, 0, 0, more)),
            cluster,
            torch.nn.functional.pad(present, (0, more)),
        )
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    jobs, options, cluster, present = map(torch.cat, columns)
    return jobs, options, cluster, present, masks([mask for *_, mask in parts])


def masks(parts: list[Tensor]) -> Tensor:
    """Join flags of options, (n, columns) each, with the columns of the widest; "stop" stays last."""
    width = max(each.shape[1] for each in parts)
    pad = torch.nn.functional.pad
    return torch.cat([torch.cat([pad(each[:, :-1], (0, width - each.shape[1])), each[:, -1:]], 1) for each in parts])


def padded(parts: list[Tensor]) -> Tensor:
    """Join values of jobs, (episodes, width) each, with the jobs of the widest."""
    width = max(each.shape[1] for each in parts)
    return torch.cat([torch.nn.functional.pad(each, (0, width - each.shape[1])) for each in parts])


def columns_of(actions: Tensor, scores: Tensor) -> Tensor:
    """Return the columns of actions: "stop" is the last."""
    return torch.where(actions == STOP, scores.shape[1] - 1, actions)


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """Some steps of all episodes; arrays begin with (steps, episodes)."""

    seen: list[Seen]
    """By step, and after the last one."""
    windows: list[NDArray[np.int64]]
    """By step, and after the last one: (episodes, width), the job of each row."""
    actions: Tensor
    """Columns, or `STOP`."""
    logs: Tensor
    """Log probabilities of the actions when they were chosen."""
    about: NDArray[np.int64]
    """The job that got something, or `STOP`."""
    rewards: Floats
    """(steps, episodes, jobs)."""
    lives: Floats
    """(steps, episodes, jobs): weight of everything after the step; 0 for a job that ended."""
    values: Floats
    """(steps + 1, episodes, jobs): expectations of the network."""
    lost: float
    """Mean loss of jobs per slot or moment."""

    def there(self, step: int) -> NDArray[np.bool_]:
        """Return (episodes, jobs): jobs that were present. The others are not affected by decisions."""
        found = np.zeros(self.rewards.shape[1:], bool)
        found[np.arange(len(found))[:, None], self.windows[step]] = self.seen[step][3].numpy() > 0
        return found


@torch.no_grad()
def collect(
    episodes: ParallelEpisodes, network: nn.Module, steps: int, generator: torch.Generator, *, discount: float
) -> Rollout:
    """Let the network decide, by its probabilities, for this number of steps; `discount` is per slot."""
    count, jobs = episodes.present.shape
    rows = np.arange(count)
    seen: list[Seen] = []
    windows: list[NDArray[np.int64]] = []
    actions, logs = np.zeros((steps, count), np.int64), torch.zeros(steps, count)
    values, rewards = np.zeros((steps + 1, count, jobs)), np.zeros((steps, count, jobs))
    lives = np.zeros((steps, count, jobs))
    about = np.full((steps, count), STOP)
    lost, stops = 0.0, 0.0
    parts = episodes.speed_parts()
    for step in range(steps + 1):
        window = episodes.window
        now = tensors(*episodes.seen())
        scores, value = network(*now)
        values[step][rows[:, None], window] = value.numpy()  # the value of padding is 0
        seen.append(now)
        windows.append(window)
        if step == steps:
            break
        every = torch.log_softmax(scores, 1)
        picked = torch.multinomial(every.exp(), 1, generator=generator)
        logs[step] = every.gather(1, picked)[:, 0]
        chosen = picked[:, 0].numpy()
        given = chosen < window.shape[1] * episodes.options
        actions[step] = np.where(given, chosen, STOP)
        about[step, given] = window[rows[given], chosen[given] // episodes.options]
        present, opened = episodes.present.copy(), episodes.opened.copy()
        ends, passed = episodes.act(chosen)
        after = episodes.speed_parts()
        rewards[step] = after - parts
        rewards[step, ends] = -passed.lost - (parts - opened)[ends]
        parts = after
        lives[step] = present
        kept = np.broadcast_to(discount**passed.slots, len(ends))
        lives[step, ends] = kept[:, None] * (present[ends] & ~passed.ended)
        lost, stops = lost + float(passed.lost.sum()), stops + float(np.broadcast_to(passed.slots, len(ends)).sum())
    return Rollout(
        seen=seen,
        windows=windows,
        actions=torch.from_numpy(actions),
        logs=logs,
        about=about,
        rewards=rewards,
        lives=lives,
        values=values,
        lost=lost / max(1.0, stops),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """The advantage of each decision of a rollout over its expectation."""

    advantages: Tensor
    """(steps, episodes)."""
    returns: list[Tensor]
    """Returns of each job by step, (episodes, width)."""


def estimated(rollout: Rollout, *, trace: float, others: float) -> Estimates:
    """Return generalised advantages; the arguments are fields of `LearnerSettings`."""
    steps, count = rollout.about.shape
    rows = np.arange(count)
    advantages, returns = np.zeros((steps, count)), [torch.empty(0)] * steps
    gae = np.zeros(rollout.rewards.shape[1:])
    for step in reversed(range(steps)):
        ahead = rollout.values[step + 1] + trace * gae
        gae = rollout.there(step) * (rollout.rewards[step] + rollout.lives[step] * ahead - rollout.values[step])
        total = gae.sum(1)
        own = np.where(rollout.about[step] == STOP, total, gae[rows, rollout.about[step]])
        advantages[step] = own + others * (total - own)
        returns[step] = torch.from_numpy(_float32((gae + rollout.values[step])[rows[:, None], rollout.windows[step]]))
    return Estimates(torch.from_numpy(_float32(advantages)), returns)


def _float32(values: Floats) -> NDArray[np.float32]:
    return values.astype(np.float32)
