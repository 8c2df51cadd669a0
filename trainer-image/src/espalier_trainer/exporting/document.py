"""`config.json` of an export: all that `load` needs to build the trained model, apart from its weights."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from espalier_core.base import Record
from espalier_core.growth.architecture import Architecture
from espalier_core.types.job import ModelSpec
from espalier_trainer.checkpoints.document import CheckpointIdentity
from espalier_trainer.checkpoints.examples import Example
from espalier_trainer.net2net.history import Growth

WEIGHTS: Final = "model.safetensors"
CONFIG: Final = "config.json"
CARD: Final = "README.md"


class ExportedModel(Record):
    """How a trained model is built: the starting model, then its growth steps, in order."""

    identity: CheckpointIdentity
    """Of the run that trained it."""
    model: ModelSpec | None = None
    """The starting model; None for a script with its own loop that did not name the function that returns it."""
    classes: int | None = Field(default=None, ge=1)
    """Outputs of a starting model that is known by a name."""
    example: Example | None = None
    """The input on which the growth steps are repeated; None where it is not known, and the model has not grown."""
    average: bool = False
    """Whether the weights are the average that the script of the run has given to `join`."""
    growth: tuple[Growth, ...] = ()
    architecture: Architecture | None = None
    """The grown model; None where it cannot be described."""

    @property
    def ready_loop(self) -> bool:
        """Whether the ready trainer has trained it, not a script with its own loop."""
        return self.identity.model.startswith("{")
