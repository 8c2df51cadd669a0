"""Worker placement under hidden performance: an environment, rules, and a performance model learnt over tasks.

Importing this package registers the environment:

    >>> import gymnasium
    >>> environment = gymnasium.make("espalier_lab.scheduling.placement:espalier/Placement-v0")
    >>> observation, info = environment.reset(seed=0)
    >>> action = environment.action_space.sample(mask=info["action_mask"])
    >>> observation, reward, terminated, truncated, info = environment.step(action)

The version in the name rises with every change that affects learning here.
"""

from espalier_lab import environments as environments
from espalier_lab.illegal_actions import IllegalActionError
from espalier_lab.scheduling.placement.environment import ENVIRONMENT_ID, PlacementEnvironment
from espalier_lab.scheduling.placement.tasks import Family
from espalier_lab.scheduling.seed_split import SeedSplit

__all__ = ["ENVIRONMENT_ID", "Family", "IllegalActionError", "NoActionError", "PlacementEnvironment", "SeedSplit"]

NoActionError = IllegalActionError
"""The former name, until the next release."""
