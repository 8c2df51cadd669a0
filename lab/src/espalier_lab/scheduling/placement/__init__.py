"""Worker placement under hidden performance: an environment, rules, and a performance model that is learnt over tasks.

Importing this package registers the environment:

    >>> import gymnasium
    >>> environment = gymnasium.make("espalier_lab.scheduling.placement:espalier/Placement-v0")
    >>> observation, info = environment.reset(seed=0)
    >>> action = environment.action_space.sample(mask=info["action_mask"])
    >>> observation, reward, terminated, truncated, info = environment.step(action)

The version in the name rises with anything that changes what is learnt here.
"""

from espalier_core.illegal_actions import IllegalActionError
from espalier_lab import environments as environments
from espalier_lab.scheduling.placement.environment import ENVIRONMENT_ID, PlacementEnvironment
from espalier_lab.scheduling.placement.tasks import Family
from espalier_lab.scheduling.seed_split import SeedSplit

__all__ = ["ENVIRONMENT_ID", "Family", "IllegalActionError", "NoActionError", "PlacementEnvironment", "SeedSplit"]

NoActionError = IllegalActionError
"""Its name before; it goes with the next release."""
