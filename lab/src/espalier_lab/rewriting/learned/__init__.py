"""Rewriting of computation graphs as a Gymnasium environment, with models for judging and a policy learned in it.

Importing this package registers the environment:

    >>> import gymnasium
    >>> environment = gymnasium.make("espalier_lab.rewriting.learned:espalier/Rewrites-v0", net="handwritten")
    >>> observation, info = environment.reset(seed=0)
    >>> rule = environment.np_random.choice(info["rule_mask"].nonzero()[0])
    >>> place = environment.np_random.choice(info["location_mask"][rule].nonzero()[0])
    >>> observation, reward, terminated, truncated, info = environment.step((rule, place))

A policy is learned by PPO on tables of costs, and used in the place of a search:

    >>> policy = learn({"handwritten": [RewritesEnvironment("handwritten")]}, RewriteLearnerSettings(), seed=0)
    >>> walks(RewritesEnvironment("handwritten"), policy, evaluations=40).plan

The version in the name rises with every change that affects learning here.
"""

from espalier_lab import environments as environments
from espalier_lab.illegal_actions import IllegalActionError
from espalier_lab.rewriting.learned.environment import ENVIRONMENT_ID, RewritesEnvironment
from espalier_lab.rewriting.learned.learner import RewriteLearnerSettings, learn
from espalier_lab.rewriting.learned.nets import NETS
from espalier_lab.rewriting.learned.policy import RewritePolicy
from espalier_lab.rewriting.learned.walking import walks

__all__ = [
    "ENVIRONMENT_ID",
    "NETS",
    "IllegalActionError",
    "RewriteLearnerSettings",
    "RewritePolicy",
    "RewritesEnvironment",
    "learn",
    "walks",
]
