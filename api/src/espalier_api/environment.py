"""Names of the environment variables by which a backend tells a trainer process where its contracts lie."""

from __future__ import annotations

from typing import Final

JOB_FILE: Final = "ESPALIER_JOB_FILE"
"""The job (YAML or JSON), as the person wrote it."""
ALLOCATION_FILE: Final = "ESPALIER_ALLOCATION_FILE"
"""The `AllocationDocument` that the scheduler rewrites at each change."""
REPORT_FILE: Final = "ESPALIER_REPORT_FILE"
"""The `ReportDocument` that the leader rewrites."""
EVENTS_FILE: Final = "ESPALIER_EVENTS_FILE"
"""JSON lines of `espalier_api.events` that the leader appends to. Optional."""
CHECKPOINT_DIR: Final = "ESPALIER_CHECKPOINT_DIR"
"""Overrides `spec.checkpoint.path`."""
AGENT_URL: Final = "ESPALIER_AGENT_URL"
"""Overrides the default agent; `spec.adaptation.agent.url` wins over it."""
TIME_SCALE: Final = "ESPALIER_TIME_SCALE"
"""Budget seconds in a second of wall time; 1 when absent."""
SEED: Final = "ESPALIER_SEED"
"""Overrides `spec.training.seed`."""
