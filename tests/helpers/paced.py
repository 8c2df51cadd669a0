"""The example's network with a pause after each step: training that leaves the cores to what starts beside it."""

from __future__ import annotations


def paced_digits(seconds: float) -> str:
    """Return a module of a user's own, in which `digits` makes the network."""
    return f"""
import time
from torch.optim.optimizer import register_optimizer_step_post_hook
from espalier_trainer.models.zoo import digits

register_optimizer_step_post_hook(lambda *_: time.sleep({seconds:g}))
"""
