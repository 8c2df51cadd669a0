"""Learners of studies, by entry points of the group `espalier.learners`, and the core of PPO that all studies share."""
