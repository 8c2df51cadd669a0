"""Learned scheduling: environments on the driver by rounds of the simulator, what is learnt in them, and its judges."""
