"""Allocation of workers to jobs: an environment, rules, and a learner by imitation and PPO.

Importing this package registers the environment, also side by side as one that is vectorised:

    >>> import gymnasium
    >>> environment = gymnasium.make("espalier_lab.scheduling.allocation:espalier/Allocation-v0")
    >>> observation, info = environment.reset(seed=0)
    >>> action = environment.action_space.sample(mask=info["action_mask"])
    >>> observation, reward, terminated, truncated, info = environment.step(action)

The version in the name rises with every change that affects learning here.
"""

from espalier_lab import environments as environments
from espalier_lab.illegal_actions import IllegalActionError
from espalier_lab.scheduling.allocation.environment import ENVIRONMENT_ID, AllocationEnvironment
from espalier_lab.scheduling.allocation.side_by_side import SideBySide

__all__ = ["ENVIRONMENT_ID", "AllocationEnvironment", "IllegalActionError", "SideBySide"]
