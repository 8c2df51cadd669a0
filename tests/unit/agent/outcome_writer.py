"""A process that writes outcomes into a database and prints the number of each when it is committed."""

from __future__ import annotations

import sys
from pathlib import Path

from espalier_agent.history.store import OutcomeStore
from espalier_core.types.advice import OutcomeReport


def main(path: Path, name: str, count: int) -> None:
    """Report `count` outcomes, a few at a time."""
    store = OutcomeStore(path)
    store.start()
    for first in range(0, count, 5):
        names = [f"{name}-{number}" for number in range(first, first + 5)]
        waiting = [
            (
                each,
                store.report(OutcomeReport(job=name, decision_ids=(each,), final_accuracy=0.5, time_budget_seconds=9)),
            )
            for each in names
        ]
        for each, committed in waiting:
            committed.result(30)
            print(each, flush=True)
    store.close(30)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
