"""Reinforcement learning for all environments here: rollouts of parallel episodes, and learners by name.

`rollout.ParallelEpisodes` is the interface of an environment for learning. `learner.SchedulingLearner` imitates a rule
in it, and then improves the network with one of `learner.LEARNERS`. Each learner is a file.
"""
