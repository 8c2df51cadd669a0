"""Does what Maskable PPO of sb3-contrib learns on outcome tables depend on what it observes, and is it worth it?

Learns on the six tables of the paper, and plays each by its most probable actions. Three learners: rewards as they are;
rewards scaled by VecNormalize of Stable-Baselines3; observations scaled by it too.

Takes three minutes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence

import gymnasium
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from bench.command import Option
from bench.printing import Parts, Table, progress
from bench.statistics import interval
from espalier_agent.data import lamelas_tables
from espalier_lab.environments import FlatEnvironment

OPTIONS = {"seeds": Option(5, "of each learner"), "steps": Option(30_000, "decisions to learn from")}
QUICK = {"seeds": 2, "steps": 800}
SETTINGS = {"gamma": 1.0, "learning_rate": 1e-3, "n_steps": 96, "batch_size": 256, "ent_coef": 0.01}
"""With 8 environments; the others are the defaults of Maskable PPO."""
ENVIRONMENTS = 8
LEARNERS = {
    "rewards as they are": {"norm_reward": False, "norm_obs": False},
    "rewards scaled": {"norm_reward": True, "norm_obs": False},
    "rewards and observations scaled": {"norm_reward": True, "norm_obs": True},
}
ACCURACIES = {
    table.name: {tuple(each.actions): each.accuracy for each in table.sequences} for table in lamelas_tables()
}
Played = Mapping[str, tuple[int, ...]]
"""The sequence of decisions on each table, by its name."""


def flat() -> FlatEnvironment:
    """Return the environment of the paper's tables."""
    return FlatEnvironment(gymnasium.make("espalier/Outcomes-v0", reward="over-mean"))


def learnt(scaled: Mapping[str, bool], seed: int, steps: int) -> Played:
    """Learn; return what is played on each table."""
    environments = VecNormalize(DummyVecEnv([flat] * ENVIRONMENTS), gamma=1.0, **scaled)
    learner = MaskablePPO("MlpPolicy", environments, seed=seed, device="cpu", **SETTINGS)
    learner.learn(steps)
    found = {}
    environment = flat()
    for name in ACCURACIES:
        actions, over = list[int](), False
        observation, _ = environment.reset(options={"table": name})
        while not over:
            seen, masks = environments.normalize_obs(observation), environment.action_masks()
            actions.append(int(learner.predict(seen, action_masks=masks, deterministic=True)[0]))
            observation, _, over, _, _ = environment.step(actions[-1])
        found[name] = tuple(actions)
    return found


def reached(played: Played) -> float:
    """Return the mean accuracy."""
    return statistics.fmean(ACCURACIES[name][sequence] for name, sequence in played.items())


def best(names: Sequence[str]) -> tuple[int, ...]:
    """Return the sequence that is best on average on these tables."""
    known = [ACCURACIES[name] for name in names]
    return max(known[0], key=lambda sequence: statistics.fmean(each[sequence] for each in known))


def row(name: str, runs: Sequence[Played], than: Played | None = None) -> list[str]:
    """Return a line of the table; of several runs with the interval, and how many are better `than` another."""
    counts = sorted({len(set(played.values())) for played in runs})
    values = [reached(played) for played in runs]
    return [
        name,
        interval(values, 4) if len(runs) > 1 else f"{values[0]:.4f}",
        "–".join(map(str, {counts[0]: None, counts[-1]: None})),
        "" if than is None else f"{sum(value > reached(than) for value in values)} of {len(runs)}",
    ]


def run(options: argparse.Namespace) -> Parts:
    """Compare learners with the sequence that is best on average on these tables."""
    names = list(ACCURACIES)
    same = dict.fromkeys(names, best(names))
    rows = [row(f"best on average, {list(same[names[0]])}", [same])]
    for learner, scaled in LEARNERS.items():
        runs = []
        for seed in range(options.seeds):
            progress(f"{learner}, seed {seed}")
            runs.append(learnt(scaled, seed, options.steps))
        rows.append(row(learner, runs, same))
    rows.append(row("best of each table", [{name: best([name]) for name in names}]))
    yield Table("Maskable PPO on outcome tables", ["played", "mean accuracy", "sequences", "better"], rows)
