"""Registers all environments with Gymnasium, each imported when it is made; and a wrapper for others' learners.

    >>> import gymnasium
    >>> environment = gymnasium.make("espalier_lab.environments:espalier/Placement-v0")

Gymnasium 1.0 and later know an environment only after the import of its module, the part before the colon.
"""

from __future__ import annotations

from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

_ENTRIES: Final = {
    "espalier/Outcomes-v0": (
        "espalier_lab.growth.environment:OutcomeEnvironment",
        "espalier_lab.growth.environment:OutcomeVectorEnvironment",
    ),
    "espalier/Placement-v0": ("espalier_lab.scheduling.placement.environment:PlacementEnvironment", None),
    "espalier/Allocation-v0": (
        "espalier_lab.scheduling.allocation.environment:AllocationEnvironment",
        "espalier_lab.scheduling.allocation.side_by_side:SideBySide",
    ),
    "espalier/Rewrites-v0": ("espalier_lab.rewriting.learned:RewritesEnvironment", None),
}
"""Entry points by name: for one environment, and for many at once."""

for _name, (_one, _many) in _ENTRIES.items():
    gymnasium.register(id=_name, entry_point=_one, vector_entry_point=_many)

Flat = NDArray[np.float32]


class FlatEnvironment(gymnasium.Wrapper[Flat, np.int64, Any, Any]):
    """An environment whose observations are one vector of numbers from -1 to 1, and whose actions are one number.

    Entries of the dictionary follow each other in the order of their names. Entries beyond ±1 are scaled by their bound
    b, as sign(x) log(1 + |x|) ÷ log(1 + b): seconds, and bounds of 2³¹ - 1, do not drown what is 0 or 1. An action of
    several numbers is counted like the places of its mask, row by row.

    With Maskable PPO of sb3-contrib, which calls `action_masks`:

        >>> environment = FlatEnvironment(gymnasium.make("espalier/Outcomes-v0", reward="over-mean"))
        >>> MaskablePPO("MlpPolicy", environment, gamma=1.0).learn(30_000)
    """

    def __init__(self, environment: gymnasium.Env[Any, Any]) -> None:
        """Wrap an environment. Raise `ValueError` for an observation without bounds."""
        super().__init__(environment)
        self._inner = environment
        bounds = [_bounds(name, space) for name, space in _entries(environment.observation_space)]
        self._bound = np.concatenate(bounds)
        low = np.full(len(self._bound), -1, np.float32)
        self.observation_space = spaces.Box(low, -low, dtype=np.float32)
        inner = environment.action_space
        self._shape = (inner.n,) if isinstance(inner, spaces.Discrete) else tuple(inner.nvec)  # type: ignore[attr-defined]
        self.action_space = spaces.Discrete(int(np.prod(self._shape)))
        self._mask = np.zeros(self.action_space.n, np.bool_)

    def reset(self, **arguments: Any) -> tuple[Flat, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self._inner.reset(**arguments)
        return self._flat(observation, info), info

    def step(self, action: np.int64 | int) -> tuple[Flat, Any, bool, bool, dict[str, Any]]:
        """Carry out an action; raise `IllegalActionError` if the environment does."""
        inner = action if len(self._shape) == 1 else np.array(np.unravel_index(int(action), self._shape))
        observation, reward, terminated, truncated, info = self._inner.step(inner)
        return self._flat(observation, info), reward, terminated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which actions are legal now; all are false when the episode is over."""
        return self._mask.copy()

    def _flat(self, observation: dict[str, Any], info: dict[str, Any]) -> Flat:
        self._mask = np.ravel(info["action_mask"]).astype(np.bool_)
        values = np.concatenate([np.ravel(observation[name]) for name in sorted(observation)]).astype(np.float64)
        scaled = np.sign(values) * np.log1p(np.abs(values)) / np.log1p(self._bound)
        return np.where(self._bound > 1, scaled, values).astype(np.float32)


def _entries(space: Any) -> list[tuple[str, Any]]:
    return sorted(space.spaces.items())


def _bounds(name: str, space: spaces.Space[Any]) -> NDArray[np.float64]:
    if not isinstance(space, spaces.Box):  # 0 or 1
        return np.ones(int(np.prod(space.shape or ())), np.float64)
    bound: NDArray[np.float64] = np.maximum(np.abs(space.low), np.abs(space.high)).astype(np.float64).ravel()
    if not np.isfinite(bound).all():
        raise ValueError(f"{name}: has no bounds, so it cannot be scaled")
    return bound
