"""What may be done to a model: the kinds of growth that the job names, as far as they keep within its bound."""

from __future__ import annotations

from typing import Final

from espalier_api.advice import Action
from espalier_api.architecture import Architecture
from espalier_api.job import AdaptationSpec, GrowthAction

WIDENED_AT_MOST: Final = 16
"""Times the parameters of the starting model, where a job that may widen gives no bound. Doubling is exponential: a few
groups doubled a few times, and a layer behind them, would else fill any device."""


def allowed_actions(spec: AdaptationSpec, architecture: Architecture, started_with: int) -> tuple[Action, ...] | None:
    """Return what may be advised; None: whatever the architecture offers, as for a job that deepens without bound.

    `started_with` is the number of parameters of the starting model. `Nothing` is always allowed and not listed.
    """
    widens = GrowthAction.WIDEN in spec.actions
    bound = WIDENED_AT_MOST * started_with if spec.max_parameters is None and widens else spec.max_parameters
    if bound is None and not architecture.channel_groups:
        return None
    wanted = [
        *(Action.deepen(point.id) for point in architecture.growth_points if GrowthAction.DEEPEN in spec.actions),
        *(Action.widen(group.id) for group in architecture.channel_groups if widens),
    ]

    return tuple(action for action in wanted if bound is None or action.carried_out(architecture).parameters <= bound)
