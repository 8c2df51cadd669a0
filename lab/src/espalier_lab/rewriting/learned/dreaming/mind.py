"""The controller's input, in a dream and awake: z_t, and the state of the memory."""

from __future__ import annotations

from typing import Final, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from espalier_lab.rewriting.learned.dreaming.blocks import coded
from espalier_lab.rewriting.learned.dreaming.memory import HIDDEN, Foretold, State
from espalier_lab.rewriting.learned.dreaming.vision import LATENT
from espalier_lab.rewriting.learned.dreaming.world import World
from espalier_lab.rewriting.learned.environment import Action

MIND_SIZE: Final = LATENT + HIDDEN
"""Size of a mind: z_t, then h."""

Known = NDArray[np.float32]


def mind_space() -> spaces.Space[Known]:
    """Return the space of this input."""
    # Gymnasium types a Box as a space of any numbers.
    return cast("spaces.Space[Known]", spaces.Box(-np.inf, np.inf, (MIND_SIZE,), np.float32))


class Mind:
    """The state of one episode: z_t (`LATENT`,) and the memory of the steps before."""

    def __init__(self, world: World, latent: Tensor) -> None:
        """Begin with a graph and an empty memory."""
        self._memory = world.memory
        self._state: State = (torch.zeros(1, 1, HIDDEN), torch.zeros(1, 1, HIDDEN))
        self.latent = latent

    def foretold(self, action: Action) -> Foretold:
        """Remember an action, and return the prediction of its result: places (1, 1)."""
        with torch.no_grad():
            foretold, self._state = self._memory(
                self.latent[None, None], coded(torch.from_numpy(action))[None, None], self._state
            )
        found: Foretold = foretold
        return found

    def known(self) -> Known:
        """Return z_t and h (`MIND_SIZE`,)."""
        return torch.cat([self.latent, self._state[0].flatten()]).numpy()
