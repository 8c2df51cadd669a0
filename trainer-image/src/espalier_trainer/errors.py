"""The errors of a trainer process that a person can mend."""

from __future__ import annotations


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
