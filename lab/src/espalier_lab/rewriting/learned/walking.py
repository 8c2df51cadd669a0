"""A policy in the place of a search."""

from __future__ import annotations

import heapq
from typing import Any

import gymnasium
import torch

from espalier_lab.rewriting.engine.plans import RewritePlan
from espalier_lab.rewriting.engine.search import CANDIDATES, SearchResult
from espalier_lab.rewriting.learned.environment import Action, RewritesEnvironment
from espalier_lab.rewriting.learned.learnable import LearnablePolicy


def walks(
    environment: gymnasium.Env[Any, Action], policy: LearnablePolicy[Any], *, evaluations: int, seed: int = 0
) -> SearchResult:
    """Walk by the most probable actions, then by drawn ones, within `evaluations`, and return the cheapest plans.

    A step of a walk counts as one evaluation, as in the searches, even on a graph met before. The number of walks has
    the same limit, as a policy may stop at once. Raise `TypeError` for an environment that neither is a
    `RewritesEnvironment` nor wraps one.
    """
    world = environment.unwrapped
    if not isinstance(world, RewritesEnvironment):
        raise TypeError(f"environment is {environment!r}; give a RewritesEnvironment, or a wrapper of one")
    generator = torch.Generator().manual_seed(seed)
    count, start = 0, 0.0
    met: dict[int, tuple[float, int, RewritePlan]] = {}
    for walk in range(max(1, evaluations)):
        observation, info = environment.reset()
        start = info["cost"]
        met.setdefault(world.state.graph.key(), (start, 0, world.plan))
        over = False
        while not over and count < evaluations:
            seen = policy.read(observation, info)
            with torch.no_grad():
                logs = policy.scores([seen]).logs
            number = int(logs.argmax()) if walk == 0 else int(torch.multinomial(logs.exp(), 1, generator=generator))
            observation, _, terminated, truncated, info = environment.step(seen.action(number))
            over = terminated or truncated
            if number != 0:
                count += 1
                found = (info["cost"], len(world.state.steps), world.plan)
                key = world.state.graph.key()
                met[key] = min(met.get(key, found), found, key=lambda one: one[:2])
        if count >= evaluations:
            break
    best = heapq.nsmallest(CANDIDATES, met.values(), key=lambda one: one[:2])
    return SearchResult(start, tuple((cost, plan) for cost, _, plan in best), count)
