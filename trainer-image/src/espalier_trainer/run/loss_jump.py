"""How far the loss jumps at a growth that is not exact, in a loop whose loss only its steps know."""

from __future__ import annotations

import math
from dataclasses import dataclass

from espalier_core.types.report import Adaptation
from espalier_trainer.growth.consultation import Consultation
from espalier_trainer.run.journal import Journal


@dataclass
class Jumps:
    """Takes the losses of the steps before and after a growth: on other examples, with the weights of that moment.

    A consultation is reported at once, or, where the next step computes the loss after it, with that step. Its
    adaptation is the last of `adaptations`, those of the run.
    """

    journal: Journal
    _last: float | None = None
    """The loss of the last step."""
    _before: float | None = None
    """That of the last step before a growth; None while no loss after one is awaited."""
    _unreported: Consultation | None = None

    def settled(self, consultation: Consultation, adaptations: list[Adaptation]) -> None:
        """Report a consultation, now or with the next step."""
        self._unreported = consultation
        known = consultation.adaptation.loss_after is not None
        self._before = self._last if consultation.inexact and not known else None
        if self._before is None:
            self.report(adaptations)

    def stepped(self, loss: float, adaptations: list[Adaptation]) -> bool:
        """Take the loss that a step began with; return whether it was the one after a growth."""
        before, self._before = self._before, None
        self._last = loss if math.isfinite(loss) else None
        jumped = before is not None and bool(adaptations)
        if jumped and self._unreported is not None:
            adaptations[-1] = adaptations[-1].model_copy(update={"loss_before": before, "loss_after": self._last})
        self.report(adaptations)
        return jumped

    def report(self, adaptations: list[Adaptation]) -> None:
        """Report the consultation that has not been reported yet, as it is known now."""
        unreported, self._unreported = self._unreported, None
        if unreported is not None:
            self.journal.adapted(adaptations[-1], unreported.problem)
