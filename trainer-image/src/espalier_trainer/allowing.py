"""What may be done to a model: the kinds of growth that the job names, as far as they keep within its bound."""

from __future__ import annotations

from espalier_api.advice import Action, offered
from espalier_api.architecture import Architecture
from espalier_api.growth import operation
from espalier_api.job import AdaptationSpec


def allowed_actions(spec: AdaptationSpec, architecture: Architecture, started_with: int) -> tuple[Action, ...] | None:
    """Return what may be advised; None: whatever the architecture offers, as for a job that deepens without bound.

    `started_with` is the number of parameters of the starting model. `Nothing` is always allowed and not listed.
    """
    bound = spec.max_parameters
    if bound is None:
        bound = min((most * started_with for name in spec.actions if (most := operation(name).bound)), default=None)
    all_of_them = offered(architecture)
    wanted = tuple(action for action in all_of_them if action.kind in spec.actions)
    if bound is None:
        return None if wanted == all_of_them else wanted
    return tuple(action for action in wanted if action.carried_out(architecture).parameters <= bound)
