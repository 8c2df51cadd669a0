"""The files of a local run: those of a job lie in its folder, the others in the run's; and how workers get at them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from espalier_core.files.layout import CHECKPOINT_FOLDER as CHECKPOINT_FOLDER
from espalier_core.files.layout import JOB_FILE as JOB_FILE
from espalier_core.files.layout import RESULT_FILE as RESULT_FILE
from espalier_core.types import environment
from espalier_core.types.job import AdaptiveTrainingJob

ALLOCATION_FILE: Final = "allocation.json"
REPORT_FILE: Final = "report.json"
EVENTS_FILE: Final = "events.jsonl"
HISTORY_FILE: Final = "history.jsonl"
TRAINER_LOG: Final = "trainer.log"
STATE_FILE: Final = "state.json"
RENDEZVOUS_FILE: Final = "rendezvous"
"""The leader's address, for workers that train with it."""
AGENT_LOG: Final = "agent.log"
PICTURE_FILE: Final = "training.png"

FILES: Final = (
    JOB_FILE,
    ALLOCATION_FILE,
    REPORT_FILE,
    EVENTS_FILE,
    HISTORY_FILE,
    TRAINER_LOG,
    STATE_FILE,
    AGENT_LOG,
    RESULT_FILE,
    PICTURE_FILE,
    RENDEZVOUS_FILE,
)
"""The files of a run in addition to its checkpoints."""
WRITTEN: Final = (*FILES, CHECKPOINT_FOLDER)
"""What a run creates or writes over, apart from files that carry a process's name."""


def command_of(job: AdaptiveTrainingJob) -> tuple[str, ...]:
    """Return the command of the template's first container; empty if it has none."""
    if job.spec.template is None:
        return ()
    container = job.spec.template.spec.containers[0]
    return (*container.command, *container.args) if container.command else ()


def program_variables(job: AdaptiveTrainingJob) -> dict[str, str]:
    """Return the environment variables that the command of the job's template gets in addition; none without one.

    They are those of the template that have a value there. Programs of the environment that Espalier is installed in
    are found first: `python` is its Python. The workers of a program without the library learn of each other.
    """
    if job.spec.template is None:
        return {}
    given = job.spec.template.spec.containers[0].env or ()
    literal = {str(each.get("name")): str(each["value"]) for each in given if "value" in each}
    folders = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    found = {"PATH": os.pathsep.join(folders), **literal}
    if job.spec.program is not None:
        found |= {environment.WORKERS: str(job.spec.min_replicas), environment.LEADER: "127.0.0.1"}
    return found


def contract_variables(directory: Path, agent_url: str | None) -> dict[str, str]:
    """Return the environment variables with the paths of a worker's contract files."""
    files = {
        environment.JOB_FILE: JOB_FILE,
        environment.ALLOCATION_FILE: ALLOCATION_FILE,
        environment.REPORT_FILE: REPORT_FILE,
        environment.EVENTS_FILE: EVENTS_FILE,
        environment.CHECKPOINT_DIR: CHECKPOINT_FOLDER,
        environment.RENDEZVOUS: RENDEZVOUS_FILE,
    }
    variables = {name: str((directory / file).resolve()) for name, file in files.items()}
    if agent_url is not None:
        variables[environment.AGENT_URL] = agent_url
    return variables
