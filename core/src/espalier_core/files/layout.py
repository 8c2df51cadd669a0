"""The names of what several parts read in the folder of a run on one machine."""

from __future__ import annotations

from typing import Final

JOB_FILE: Final = "job.yaml"
CHECKPOINT_FOLDER: Final = "checkpoints"
RESULT_FILE: Final = "result.json"
