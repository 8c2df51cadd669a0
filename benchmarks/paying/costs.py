"""What steps and pauses cost, as measured; kept with the runs that were reckoned by it."""

from __future__ import annotations

from pydantic import Field

from espalier_api.architecture import Architecture
from espalier_api.base import Record


class LayerCosts(Record):
    """Seconds a step: of the starting model, and more for each layer added at a growth point."""

    base: float = Field(gt=0)
    added: dict[str, float]

    def of(self, architecture: Architecture | None) -> float:
        """Return the seconds of a step of `architecture`."""
        history = architecture.growth_history if architecture else {}
        return self.base + sum(self.added.get(point, 0.0) * layers for point, layers in history.items())


class Costs(Record):
    """All that takes time."""

    one: LayerCosts
    """A step of one worker."""
    two: LayerCosts
    """A step of two workers that train together."""
    join_s: float = Field(ge=0)
    """The pause when a worker joins."""
    leave_s: float = Field(ge=0)
    growth_s: float = Field(ge=0)

    def ideal(self, share: float) -> Costs:
        """Return the costs if two workers cost nothing but their part of the work, `share` of a step of one."""
        return self.model_copy(
            update={
                "two": LayerCosts(
                    base=self.one.base * share, added={point: each * share for point, each in self.one.added.items()}
                ),
                "join_s": 0.0,
                "leave_s": 0.0,
            }
        )
