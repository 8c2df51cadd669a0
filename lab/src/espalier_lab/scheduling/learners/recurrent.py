"""Networks that remember an episode: their interface for learners beyond scores and values.

RL² (Duan et al., arXiv 1611.02779, 2.2) trains such a network over many tasks. Its state lasts for one task. Here a
task is one episode, whether or not anything changes in it. So a state begins with the first decision of an episode, and
a rollout for learning must consist of whole episodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from espalier_lab.scheduling.learners.rollout import Rollout, Seen


class Recurrent(nn.Module, ABC):
    """A network with a state for each episode; without memory, every step is like the first one of an episode."""

    state: Tensor | None = None
    """The state, which each call advances; None: there is no memory."""

    @abstractmethod
    def begun(self, episodes: int) -> Tensor:
        """Return the initial state of this number of episodes; its shape depends on the network."""

    @abstractmethod
    def unrolled(self, seen: list[Seen]) -> tuple[Tensor, Tensor]:
        """Return the results of calls step by step, from the first decision of the episodes on.

        Scores are (steps × episodes, columns) and values (steps × episodes, jobs), the episodes of a step together.
        """


@contextmanager
def remembering(network: nn.Module, episodes: int) -> Iterator[None]:
    """Make a recurrent network remember this number of episodes, which begin here; other networks are unchanged."""
    if not isinstance(network, Recurrent):
        yield
        return
    network.state = network.begun(episodes)
    try:
        yield
    finally:
        network.state = None


def check_whole(rollout: Rollout) -> None:
    """Raise ValueError unless all episodes of a rollout end with its last step, and none before."""
    goes_on = rollout.lives.max(axis=2) > 0
    if goes_on[-1].any() or not goes_on[:-1].all():
        message = (
            f"steps: {len(goes_on)} are not the decisions of one whole episode, with which a memory begins and ends; "
            "set steps to the decisions of an episode, and begin with the first one"
        )
        raise ValueError(message)
