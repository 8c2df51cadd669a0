"""Allocation of workers to jobs: an environment, rules, and a learner by imitation and PPO.

What an image serves imports parts of this package without Gymnasium, so it imports nothing by itself.
"""
