"""Reinforcement learning for all environments here: rollouts of episodes side by side, and learners by name.

`rollout.Episodes` is what an environment offers to be learnt in, `learner.Learner` imitates a rule in it and then lets
one of `registry.LEARNERS` improve the network; each learner is a file.
"""
