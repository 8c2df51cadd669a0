"""The learners by name."""

from __future__ import annotations

from typing import Final

from espalier_agent.learners.learning import Learner
from espalier_core.registry import Registry

LEARNERS: Final = Registry[Learner](
    "learner",
    "espalier.learners",
    {
        "expected": "espalier_agent.learners.expected:LEARNER",
        "distilled": "espalier_agent.learners.distilled:LEARNER",
        "reinforce": "espalier_agent.learners.reinforce:LEARNER",
        "ppo": "espalier_agent.learners.ppo:LEARNER",
        "dqn": "espalier_agent.learners.dqn:LEARNER",
        "trees": "espalier_agent.learners.trees:LEARNER",
        "graph-gains": "espalier_agent.learners.graph_gains:LEARNER",
    },
)
DEFAULT_LEARNER: Final = "expected"
