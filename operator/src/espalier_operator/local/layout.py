"""The names of a local run's files: those of a job lie in its folder, the others in the run's."""

from __future__ import annotations

from typing import Final

JOB_FILE: Final = "job.yaml"
ALLOCATION_FILE: Final = "allocation.json"
REPORT_FILE: Final = "report.json"
EVENTS_FILE: Final = "events.jsonl"
HISTORY_FILE: Final = "history.jsonl"
TRAINER_LOG: Final = "trainer.log"
CHECKPOINT_FOLDER: Final = "checkpoints"
STATE_FILE: Final = "state.json"
RENDEZVOUS_FILE: Final = "rendezvous"
"""The leader's address, for workers that train with it."""
AGENT_LOG: Final = "agent.log"

FILES: Final = (
    JOB_FILE,
    ALLOCATION_FILE,
    REPORT_FILE,
    EVENTS_FILE,
    HISTORY_FILE,
    TRAINER_LOG,
    STATE_FILE,
    AGENT_LOG,
)
"""The files of a run in addition to its checkpoints."""
