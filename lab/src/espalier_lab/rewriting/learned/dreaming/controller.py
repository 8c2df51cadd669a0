"""C of the world model: a policy that decides by z_t and h only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from espalier_lab.rewriting.learned.dreaming.awake import Awake
from espalier_lab.rewriting.learned.dreaming.dream import Dream
from espalier_lab.rewriting.learned.dreaming.mind import MIND_SIZE, Known
from espalier_lab.rewriting.learned.environment import LOCATIONS, STOP, Action
from espalier_lab.rewriting.learned.learnable import EAGER, LearnablePolicy, Scores
from espalier_lab.rewriting.learned.learner import OnUpdate, RewriteLearnerSettings, ignored, practise

_HIDDEN: Final = 64


@dataclass(frozen=True, slots=True)
class Thought:
    """The input of a decision. Action 1 + `LOCATIONS` · rule + location is a rewrite; 0 stops."""

    known: Known
    """(`MIND_SIZE`,)."""
    mask: NDArray[np.bool_]
    """(`STOP`, `LOCATIONS`): the places where rules apply."""

    def action(self, number: int) -> Action:
        """Return an action in the environment's form."""
        return np.array((STOP, 0) if number == 0 else divmod(number - 1, LOCATIONS), dtype=np.int64)


class Controller(LearnablePolicy[Thought]):
    """Two masked heads, as in the thesis: the rule (or to stop), and the location given the rule; and a critic."""

    def __init__(self) -> None:
        """Initialise with torch's defaults from the global generator."""
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(MIND_SIZE, _HIDDEN), nn.Tanh())
        self.rules = nn.Linear(_HIDDEN, STOP + 1)
        self.places = nn.Linear(_HIDDEN, STOP * LOCATIONS)
        self.critic = nn.Sequential(nn.Linear(MIND_SIZE, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, 1))

    def read(self, observation: Any, info: dict[str, Any]) -> Thought:
        """Return the input, and the mask without the entry for stopping."""
        return Thought(observation, info["location_mask"][:STOP].astype(np.bool_))

    def scores(self, seen: Sequence[Thought]) -> Scores:
        """Score the actions of some decisions: A = `STOP` · `LOCATIONS`."""
        known = torch.from_numpy(np.stack([one.known for one in seen]))
        mask = torch.from_numpy(np.stack([one.mask for one in seen]))
        hidden = self.trunk(known)
        rules, stop = self.rules(hidden).split((STOP, 1), dim=1)
        rules = rules.masked_fill(~mask.any(dim=2), -torch.inf)
        rule_logs = torch.log_softmax(torch.cat([stop - EAGER, rules], dim=1), dim=1)
        place_logs = _masked(self.places(hidden).unflatten(1, (STOP, LOCATIONS)), mask)
        both = (rule_logs[:, 1:, None] + place_logs).masked_fill(~mask, -torch.inf)
        values: Tensor = self.critic(known).squeeze(1)
        return Scores(torch.cat([rule_logs[:, :1], both.flatten(1)], dim=1), values)


def learn_controller(
    environment: Dream | Awake, settings: RewriteLearnerSettings, seed: int, on_update: OnUpdate = ignored
) -> Controller:
    """Learn a controller in a dream, or in the real environment; the same seed gives the same one.

    Raise `espalier_agent.learners.learning.LearningError` if the loss is not finite.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        controller = Controller()
    environment.reset(seed=seed)
    return practise(controller, {"": [environment]}, settings, seed, on_update)


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the log softmax over the last dimension within the mask; finite if the mask is empty."""
    lowest = torch.finfo(scores.dtype).min
    return torch.log_softmax(scores.masked_fill(~mask, lowest), dim=-1)
