"""What `load` and `export` are given: a run's folder, a folder of checkpoints, one checkpoint, or an export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from espalier_core.files.documents import DocumentError, loads
from espalier_core.files.layout import CHECKPOINT_FOLDER, JOB_FILE, RESULT_FILE
from espalier_core.types.job import AdaptiveTrainingJob, ModelSpec
from espalier_core.types.result import RunResult, read_result
from espalier_core.validation.reading import JobFileError, load_job
from espalier_trainer.checkpoints.document import CheckpointState
from espalier_trainer.checkpoints.examples import known
from espalier_trainer.checkpoints.store import MANIFEST, CheckpointStore, DamagedCheckpointError
from espalier_trainer.checkpoints.store import read_checkpoint as read
from espalier_trainer.data import load_data
from espalier_trainer.errors import CheckpointMismatchError, ExportError, TrainerError
from espalier_trainer.exporting.averages import average_of, evaluated
from espalier_trainer.exporting.document import CONFIG, WEIGHTS, ExportedModel
from espalier_trainer.net2net.deepening.deepen import history_of


@dataclass(frozen=True, slots=True)
class Trained:
    """A run's newest checkpoint, and what else its folder holds."""

    path: Path
    """The checkpoint."""
    state: CheckpointState
    weights: dict[str, Tensor]
    """Those that are evaluated: where the job averages them, their averages."""
    job: AdaptiveTrainingJob | None
    result: RunResult | None

    def config(self) -> ExportedModel:
        """Return how the model is built. Raises `ExportError` where the folder does not tell."""
        state, architecture = self.state, self.state.architecture
        config = ExportedModel(
            identity=state.identity,
            example=state.example,
            growth=state.growth or (() if architecture is None else history_of(architecture)),
            architecture=architecture,
        )
        if not config.ready_loop:
            return config
        spec = ModelSpec.model_validate_json(state.identity.model)
        if spec.entrypoint is not None and config.example is not None:
            return config.model_copy(update={"model": spec})
        if self.job is None:
            raise ExportError(
                f"{self.path}: there is no {JOB_FILE} in the folders above it, which names the data set, whose number "
                f"of classes the model {spec.name or spec.entrypoint} needs; put the job's file there under this name"
            )
        try:
            data = load_data(self.job.spec.training.dataset, self.job.spec.training.task)
        except TrainerError as error:
            raise ExportError(
                f"{self.path}: the number of classes of {spec.name or spec.entrypoint} is that of its data set, which "
                f"cannot be loaded ({error}); fix that, or export the run where the data set is: espalier export"
            ) from error
        example = config.example or known(data.example_input())
        return config.model_copy(update={"model": spec, "classes": data.classes, "example": example})


def is_export(folder: Path) -> bool:
    """Return whether `folder` holds an export."""
    return (folder / CONFIG).is_file() and not (folder / MANIFEST).exists()


def read_export(folder: Path) -> tuple[ExportedModel, dict[str, Tensor]]:
    """Return how an exported model is built, and its weights. Raises `ExportError` where a file cannot be used."""
    path = folder / CONFIG
    try:
        config = loads(path.read_text(encoding="utf-8"), ExportedModel, str(path))
        path = folder / WEIGHTS
        return config, safetensors.torch.load_file(path)
    except FileNotFoundError as error:
        raise ExportError(f"{path}: is missing; export the run again: espalier export RUN") from error
    except (OSError, DocumentError, UnicodeDecodeError, safetensors.SafetensorError) as error:
        raise ExportError(f"{path}: cannot be used ({error}); export the run again: espalier export RUN") from error


def read_run(folder: Path, *, average: bool = False) -> Trained:
    """Return the newest whole checkpoint of a run, which may still be active. Nothing in the folder changes.

    `folder` is that of the run, of its checkpoints, or one checkpoint. With `average`, the weights are the average that
    a script with its own loop has given to `join`. Raises `ExportError` where there is none.
    """
    if not folder.is_dir():
        raise ExportError(
            f"{folder}: is not a folder; give that of a run (runs/NAME), of its checkpoints, or an export"
        )
    run, checkpoints = folder, folder / CHECKPOINT_FOLDER
    if (folder / MANIFEST).is_file():
        run, checkpoints = folder.parent.parent, folder.parent
        found = [folder]
    else:
        if not checkpoints.is_dir():
            run, checkpoints = folder.parent, folder
        found = [path for _, path in reversed(CheckpointStore(checkpoints).complete())]
    problems = []
    for path in found:
        try:
            checkpoint = read(path)
        except (DamagedCheckpointError, OSError) as error:
            problems.append(f"{path}: {error}")
            continue
        except CheckpointMismatchError as error:
            raise ExportError(str(error)) from error
        weights = average_of(checkpoint, path) if average else evaluated(checkpoint)
        return Trained(path, checkpoint.state, weights, _job(run, checkpoint.state), _result(run))
    if problems:
        raise ExportError(f"no checkpoint can be read: {'; '.join(problems)}; let the job write another one")
    jobs = sorted(each.parent.name for each in folder.glob(f"*/{JOB_FILE}")) if folder.is_dir() else []
    if jobs:
        raise ExportError(f"{folder}: holds several jobs; give the folder of one of them: {', '.join(jobs)}")
    raise ExportError(
        f"{folder}: holds no checkpoint and no export; a job writes its first checkpoint after "
        "checkpoint.intervalSeconds, or when it ends: espalier run JOB --output FOLDER"
    )


def _job(run: Path, state: CheckpointState) -> AdaptiveTrainingJob | None:
    path = run / JOB_FILE
    if not path.is_file():
        return None
    try:
        job = load_job(path, resource=None)
    except JobFileError as error:
        raise ExportError(f"{path}: {error}") from error
    return job if job.key == state.identity.job else None


def _result(run: Path) -> RunResult | None:
    try:
        return read_result(run / RESULT_FILE)
    except (OSError, ValueError):
        return None  # it is written at the end of a run
