"""`load`: the trained model of a run or of an export.

`load` and `export` accept a run's folder, a folder of checkpoints, one checkpoint, or an export. `load` needs only the
`config.json` of an export, apart from its weights, to build the trained model. A checkpoint may hold averages of the
weights: those of `training.weightAveraging`, or of an object given to `join`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import safetensors
import safetensors.torch
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from espalier_core.base import Record
from espalier_core.files.documents import CHECKPOINT_FOLDER, JOB_FILE, RESULT_FILE, DocumentError, loads
from espalier_core.growth.architecture import Architecture, GrowthError
from espalier_core.types.job import AdaptiveTrainingJob, ModelSpec
from espalier_core.types.result import RunResult, read_result
from espalier_core.validation.reading import JobFileError, load_job
from espalier_trainer.checkpoints.document import Checkpoint, CheckpointIdentity, CheckpointState
from espalier_trainer.checkpoints.examples import Example, known
from espalier_trainer.checkpoints.store import MANIFEST, CheckpointStore, DamagedCheckpointError
from espalier_trainer.checkpoints.store import read_checkpoint as read
from espalier_trainer.data import load_data
from espalier_trainer.encoding import PREFIX, decoded
from espalier_trainer.errors import CheckpointMismatchError, ExportError, TrainerError
from espalier_trainer.models.zoo import build_model, signature_of
from espalier_trainer.net2net.deepening.deepen import history_of
from espalier_trainer.net2net.history import Growth, check_equal, replay
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.optimizers.averaging import averages_in
from espalier_trainer.optimizers.building import GroupState
from espalier_trainer.process.entrypoint import call_entrypoint, load_entrypoint
from espalier_trainer.training.network import OPTIMIZER_PREFIX

WEIGHTS: Final = "model.safetensors"
CONFIG: Final = "config.json"
CARD: Final = "README.md"


class ExportedModel(Record):
    """Construction of a trained model: the starting model, then its growth steps, in order."""

    identity: CheckpointIdentity
    """Identity of the run that trained it."""
    model: ModelSpec | None = None
    """The starting model; None for a script with its own loop that did not name the function that returns it."""
    classes: int | None = Field(default=None, ge=1)
    """Number of outputs of a starting model that has a name."""
    example: Example | None = None
    """Input on which the growth steps are repeated; None where it is unknown, and the model has not grown."""
    average: bool = False
    """Whether the weights are the average that the run's script gave to `join`."""
    growth: tuple[Growth, ...] = ()
    architecture: Architecture | None = None
    """Description of the grown model; None where it cannot be described."""

    @property
    def ready_loop(self) -> bool:
        """Whether the ready trainer has trained it, not a script with its own loop."""
        return self.identity.model.startswith("{")


def evaluated(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the model's tensors for evaluation: with the averages of `training.weightAveraging`, if any."""
    return _in_place(checkpoint, averages_in(checkpoint.under(OPTIMIZER_PREFIX)))


def average_of(checkpoint: Checkpoint, path: Path) -> dict[str, Tensor]:
    """Return the model's tensors with their averages in place.

    An average is a dictionary in the state of an object, with a tensor for each trained parameter by name, possibly
    after a prefix (`module.` of `torch.optim.swa_utils.AveragedModel`). Buffers of a copy of the model count, too.
    In a job of the ready trainer it is that of `training.weightAveraging`. Raises `ExportError` unless there is one.
    """
    model = checkpoint.model
    found = [averages_in(checkpoint.under(OPTIMIZER_PREFIX))]
    others = checkpoint.state.schedule.get("others")
    if isinstance(others, list):
        trained = _trained(checkpoint)
        states = decoded(others, checkpoint.under(PREFIX))
        found = [average for state in states for average in _averages(state, model, trained)]
    found = [average for average in found if average]
    if len(found) != 1:
        what = "no average" if not found else f"{len(found)} averages"
        raise ExportError(
            f"{path}: holds {what} of the weights; give one to join (torch.optim.swa_utils.AveragedModel), or leave "
            "average out for the model's own weights"
        )
    return _in_place(checkpoint, found[0])


def _trained(checkpoint: Checkpoint) -> set[str]:
    """Return the names of the trained parameters; of a tied one, the first name."""
    return {str(name) for group in checkpoint.state.optimizer_groups for name in cast(GroupState, group)["params"]}


def _in_place(checkpoint: Checkpoint, averages: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the model's tensors with the averages in place of some, under each name of a tied one.

    A file does not record shared memory. A tied tensor is trained and averaged only under its first name; under the
    others it has the same bits.
    """
    model, trained = checkpoint.model, _trained(checkpoint)
    found = model | dict(averages)
    for name in model.keys() - averages.keys() - trained:
        first = next((one for one in averages if one in trained and _same(model[one], model[name])), None)
        if first is not None:
            found[name] = averages[first].clone()
    return found


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def _averages(value: Any, model: Mapping[str, Tensor], trained: set[str]) -> Iterator[dict[str, Tensor]]:
    """Yield the averages in a state, the outermost of each."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _averages(each, model, trained)
    if not isinstance(value, dict):
        return
    tensors = {name: each for name, each in value.items() if isinstance(name, str) and isinstance(each, Tensor)}
    first = min(trained, default="")
    for prefix in sorted(name.removesuffix(first) for name in tensors if first and name.endswith(first)):
        inside = {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}
        average = {name: each for name, each in inside.items() if name in model and model[name].shape == each.shape}
        if trained <= average.keys():
            yield average
            return
    for each in value.values():
        yield from _averages(each, model, trained)


@dataclass(frozen=True, slots=True)
class Trained:
    """A run's newest checkpoint, and the other contents of its folder."""

    path: Path
    """Path of the checkpoint."""
    state: CheckpointState
    weights: dict[str, Tensor]
    """Weights for evaluation: where the job averages them, their averages."""
    job: AdaptiveTrainingJob | None
    result: RunResult | None

    def config(self) -> ExportedModel:
        """Return the construction of the model. Raises `ExportError` where the folder lacks a part of it."""
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
    """Return an exported model's construction and weights. Raises `ExportError` where a file cannot be used."""
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
    """Return the newest intact checkpoint of a run, which may still be active. The folder is not changed.

    `folder` is that of the run, of its checkpoints, or one checkpoint. With `average`, the weights are the average that
    a script with its own loop gave to `join`. Raises `ExportError` where there is none.
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


def load(
    path: str | os.PathLike[str],
    model: nn.Module | None = None,
    *,
    example_input: ExampleInput | None = None,
    average: bool = False,
) -> nn.Module:
    """Return the trained module, with all its growth, in eval mode and on the CPU.

    `path` is the folder of a run (also of an active one: its newest checkpoint is loaded), of checkpoints, or of an
    export. `model` is the starting model, before any growth, as the script made it; only a run with a user's own loop
    needs it. It is not changed. `example_input` is a batch of two inputs of it, needed where the model has grown and
    the checkpoint does not have their shape. With `average`, its weights are the average that the run's script gave to
    `join`, such as a `torch.optim.swa_utils.AveragedModel`. No pickle is read, and torch's random numbers are not
    disturbed.

    Raises `ExportError` with the file and the remedy where the model cannot be built.
    """
    folder = Path(path)
    if is_export(folder):
        config, weights = read_export(folder)
        if average and not config.average:
            raise ExportError(
                f"{folder}: holds the model's own weights; export the run again: espalier export --average"
            )
    else:
        trained = read_run(folder, average=average)
        config, weights, folder = trained.config(), trained.weights, trained.path
    return build(config, weights, folder, model, example_input)


def build(
    config: ExportedModel,
    weights: dict[str, Tensor],
    source: Path,
    model: nn.Module | None = None,
    example_input: ExampleInput | None = None,
) -> nn.Module:
    """Return the module that `config` describes with `weights`; `source` names their place in errors."""
    start = _start(config, source) if model is None else model
    if not config.ready_loop and (found := signature_of(start)) != config.identity.model:
        raise ExportError(
            f"{source}: was trained from the model {config.identity.model}, this one is {found}: its parameters or "
            "buffers have other names or shapes; give the model as the script makes it, before growth"
        )
    example = example_input
    if example is None and config.example is not None:
        device = next((parameter.device for parameter in start.parameters()), None)
        example = tree_map_only(Tensor, lambda each: each.to(device), config.example.make())
    if config.growth and example is None:
        raise ExportError(f"{source}: the model has grown; give example_input=, a batch of two inputs of the model")
    try:
        built = replay(start, config.growth, () if example is None else example)
        if config.growth and config.architecture is not None and example is not None:
            check_equal(built, config.architecture, example)
        built.load_state_dict(weights)
    except (GrowthError, RuntimeError) as error:
        lines = " ".join(line.strip() for line in str(error).strip().splitlines()[:3])
        raise ExportError(
            f"{source}: its weights do not fit the starting model ({lines}); the code of the model was changed since, "
            "or another model was given: use the code that the run used"
        ) from error
    return built.eval()


def _start(config: ExportedModel, source: Path) -> nn.Module:
    if config.model is None:
        raise ExportError(
            f"{source}: the script of the run made the starting model, so it is needed: "
            "load(path, model=...), or name a function that returns it: espalier export RUN --model package.module:name"
        )
    entrypoint = config.model.entrypoint
    if not config.ready_loop and entrypoint is not None:
        return _of_script(entrypoint, dict(config.model.options), source)
    example = None if config.example is None else config.example.make()
    if not isinstance(example, Tensor):  # the ready trainer's is a tensor
        raise ExportError(f"{source}: does not contain the shape of the model's inputs; give model= and example_input=")
    try:
        with torch.random.fork_rng():
            return build_model(config.model, config.classes or 1, example, task=None)
    except TrainerError as error:
        raise ExportError(f"{source}: the starting model cannot be built: {error}") from error


def _of_script(entrypoint: str, options: dict[str, object], source: Path) -> nn.Module:
    """Return the result of a script's function, which may be any module."""
    try:
        function = load_entrypoint(entrypoint, "model", ExportError)
        with torch.random.fork_rng():
            start = call_entrypoint(function, entrypoint, "model", options, ExportError)
    except ExportError as error:
        raise ExportError(f"{source}: the starting model cannot be built: {error}") from error
    if not isinstance(start, nn.Module):
        raise ExportError(f"{source}: {entrypoint} returned {type(start).__name__}, not a torch.nn.Module")
    return start
