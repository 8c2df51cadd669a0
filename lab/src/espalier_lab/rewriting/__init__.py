"""Rewriting computation graphs as a Gymnasium environment, and the models that it is judged on.

Importing this package registers the environment:

    >>> import gymnasium
    >>> environment = gymnasium.make("espalier_lab.rewriting:espalier/Rewrites-v0", net="handwritten")
    >>> observation, info = environment.reset(seed=0)
    >>> rule = environment.np_random.choice(info["rule_mask"].nonzero()[0])
    >>> place = environment.np_random.choice(info["location_mask"][rule].nonzero()[0])
    >>> observation, reward, terminated, truncated, info = environment.step((rule, place))

The version in the name rises with anything that changes what is learnt here.
"""

import gymnasium

from espalier_core.illegal_actions import IllegalActionError
from espalier_lab.rewriting.environment import ENVIRONMENT_ID, RewritesEnvironment
from espalier_lab.rewriting.nets import NETS

__all__ = ["ENVIRONMENT_ID", "NETS", "IllegalActionError", "RewritesEnvironment"]

gymnasium.register(id=ENVIRONMENT_ID, entry_point="espalier_lab.rewriting:RewritesEnvironment")
