"""`python -m bench.joining.trainer LOG`: the trainer, which also writes down when each of its steps ended."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.joining.place import StepLog
from espalier_core.types.report import AdaptationResult
from espalier_trainer.elastic import Team
from espalier_trainer.launch.main import main
from espalier_trainer.run import run, services
from espalier_trainer.training.progress import RunProgress, StepGaps

_teams: list[Team] = []
_log: list[StepLog] = []


class KnownTeam(Team):
    """The team, which the steps' log asks for its size."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _teams.append(self)


@dataclass
class LoggedGaps(StepGaps):
    """Writes each step down."""

    _cursor: int = 0

    def step_finished(self, progress: RunProgress) -> None:
        """Measure the gap that ends now, and write the step down."""
        super().step_finished(progress)
        before = self._cursor if progress.cursor > self._cursor else 0
        self._cursor = progress.cursor
        grown = sum(each.result is AdaptationResult.GROWN for each in progress.adaptations)
        _log[0].ended(progress.step, _teams[0].world if _teams else 1, progress.cursor - before, grown)


if __name__ == "__main__":
    _log.append(StepLog(Path(sys.argv[1])))
    vars(run)["StepGaps"] = LoggedGaps
    vars(services)["Team"] = KnownTeam
    raise SystemExit(main())
