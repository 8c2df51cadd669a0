"""Errors of a trainer process that the author of the job can fix."""

from __future__ import annotations


class TrainerError(Exception):
    """An error that the author of the job can fix. The message names the field, the value and the remedy."""


class ModelError(TrainerError):
    """The model cannot be built or does not fit the data."""


class DatasetError(TrainerError):
    """The data are missing or cannot be used. The message names the places that were searched and the remedy."""


class ScheduleError(TrainerError):
    """The learning-rate schedule cannot be built."""


class CheckpointMismatchError(TrainerError):
    """The checkpoint belongs to another job or model."""


class CheckpointFolderError(TrainerError):
    """The folder for checkpoints cannot be written."""


class ExportError(TrainerError):
    """A trained model cannot be built from a run or an export. The message names the file and the remedy."""


class OwnLoopError(TrainerError):
    """The script uses a feature that workers cannot share; the message names the necessary change."""


class SupersededError(Exception):
    """A later leader of the job has taken over: this one must write nothing more, and end."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; this leader was given up, writes nothing more, and ends")


class LossNotFiniteError(Exception):
    """The loss, or a weight, became NaN or infinite: training cannot continue."""

    def __init__(self, what: str, learning_rate: float) -> None:
        super().__init__(
            f"{what}; lower training.optimizer.learningRate (the rate was {learning_rate:.3g}) or look for bad values "
            "in the data; no checkpoint was written after that"
        )
