"""How far the loss jumps at a growth that is not exact, in a loop whose loss only its steps tell."""

from __future__ import annotations

import math
from dataclasses import dataclass

from espalier_api.report import Adaptation
from espalier_trainer.adapting import Consultation


@dataclass
class Jumps:
    """Takes the losses of the steps before and after a growth: on other examples, with the weights of that moment."""

    _last: float | None = None
    """The loss of the last step."""
    _before: float | None = None
    """That of the last step before a growth; None while no loss after one is awaited."""

    def awaits(self, consultation: Consultation) -> bool:
        """Return whether the next step tells the loss after this consultation."""
        told = consultation.adaptation.loss_after is not None
        self._before = self._last if consultation.inexact and not told else None
        return self._before is not None

    def stepped(self, loss: float, last: Adaptation | None) -> Adaptation | None:
        """Take the loss that a step began with; return the last adaptation with its losses, if that was awaited."""
        before, self._before = self._before, None
        self._last = loss if math.isfinite(loss) else None
        if before is None or last is None:
            return None
        return last.model_copy(update={"loss_before": before, "loss_after": self._last})
