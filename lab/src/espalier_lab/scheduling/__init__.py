"""Learned scheduling: environments on the simulator's driver by rounds, their learners, and judges."""
