"""What plain processes are told to train. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from espalier_api.job import ElasticBatch


@dataclass(frozen=True, slots=True)
class Case:
    """So many steps of so many processes; the others wait."""

    policy: ElasticBatch
    world: int
    steps: int

    @classmethod
    def parsed(cls, body: dict[str, Any]) -> Case:
        """Read what `asdict` wrote."""
        return cls(ElasticBatch(body["policy"]), body["world"], body["steps"])

    @property
    def log(self) -> str:
        """Where the first process writes its steps down."""
        return f"{self.policy}-{self.world}"
