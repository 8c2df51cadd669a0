"""A policy that rewrites computation graphs: learnt by PPO on tables of costs, and used in the place of a search.

>>> policy = learn({"handwritten": [RewritesEnvironment("handwritten")]}, Settings(), seed=0)
>>> walks(RewritesEnvironment("handwritten"), policy, evaluations=40).plan
"""

from espalier_lab.rewriting.learning.learner import Settings, learn
from espalier_lab.rewriting.learning.policy import RewritePolicy
from espalier_lab.rewriting.learning.walking import walks

__all__ = ["RewritePolicy", "Settings", "learn", "walks"]
