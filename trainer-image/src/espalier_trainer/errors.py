"""What a trainer process can end with, and the errors that a person can mend."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of `python -m espalier_trainer`."""

    COMPLETE = 0
    """The time budget is used up: the normal end."""
    ERROR = 1
    """Something unforeseen; the traceback is on stderr."""
    INVALID = 2
    """The job, its data, its model or its checkpoint cannot be used; the message says what to change."""
    LOSS_NOT_FINITE = 3
    """The loss became NaN or infinite; the last good checkpoint is kept."""
    INTERRUPTED = 130
    """Ended after SIGINT, with a checkpoint."""
    STOPPED = 143
    """Ended after SIGTERM, or on the scheduler's demand, with a checkpoint to resume from."""


class TrainerError(Exception):
    """Something that the person who wrote the job can mend. The message names the field, the value, the remedy."""


class ModelError(TrainerError):
    """The model cannot be built or does not fit the data."""


class DatasetError(TrainerError):
    """The data are missing or cannot be used. The message says where was looked and how to get them."""


class ScheduleError(TrainerError):
    """The learning-rate schedule cannot be built."""


class CheckpointMismatchError(TrainerError):
    """The checkpoint belongs to another job or model."""


class CheckpointFolderError(TrainerError):
    """The folder for checkpoints cannot be written."""


class LossNotFiniteError(Exception):
    """The loss, or a weight, became NaN or infinite: training cannot go on."""

    def __init__(self, what: str, learning_rate: float) -> None:
        super().__init__(
            f"{what}; lower training.optimizer.learningRate (the rate was {learning_rate:.3g}) or look for bad values "
            "in the data; the last good checkpoint is kept"
        )
