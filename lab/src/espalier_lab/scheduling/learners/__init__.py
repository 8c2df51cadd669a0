"""Reinforcement learning for all environments here: rollouts of episodes side by side, and learners by name.

`rollout.ParallelEpisodes` is what an environment offers to be learnt in. `learner.SchedulingLearner` imitates a rule in
it, and then lets one of `learner.LEARNERS` improve the network. Each learner is a file.
"""
