"""How a job's workers are started: its command and its environment."""

from __future__ import annotations

from pathlib import Path

from espalier_api import environment as names
from espalier_api.job import AdaptiveTrainingJob
from espalier_operator.local.layout import (
    ALLOCATION_FILE,
    CHECKPOINT_FOLDER,
    EVENTS_FILE,
    JOB_FILE,
    RENDEZVOUS_FILE,
    REPORT_FILE,
)


def command_of(job: AdaptiveTrainingJob) -> tuple[str, ...]:
    """Return the command of the template's first container, empty where it says none."""
    if job.spec.template is None:
        return ()
    container = job.spec.template.spec.containers[0]
    return (*container.command, *container.args) if container.command else ()


def contract_variables(directory: Path, agent_url: str | None) -> dict[str, str]:
    """Return the variables that tell a worker where the files of its contracts lie."""
    files = {
        names.JOB_FILE: JOB_FILE,
        names.ALLOCATION_FILE: ALLOCATION_FILE,
        names.REPORT_FILE: REPORT_FILE,
        names.EVENTS_FILE: EVENTS_FILE,
        names.CHECKPOINT_DIR: CHECKPOINT_FOLDER,
        names.RENDEZVOUS: RENDEZVOUS_FILE,
    }
    variables = {name: str((directory / file).resolve()) for name, file in files.items()}
    if agent_url is not None:
        variables[names.AGENT_URL] = agent_url
    return variables
