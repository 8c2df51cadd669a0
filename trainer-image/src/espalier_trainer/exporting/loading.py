"""`load`: the trained model of a run or of an export."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from espalier_core.growth.architecture import GrowthError
from espalier_trainer.errors import ExportError, TrainerError
from espalier_trainer.exporting.document import ExportedModel
from espalier_trainer.exporting.source import is_export, read_export, read_run
from espalier_trainer.models.zoo import build_model, signature_of
from espalier_trainer.net2net.history import check_equal, replay
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.process.entrypoint import call_entrypoint, load_entrypoint


def load(
    path: str | os.PathLike[str],
    model: nn.Module | None = None,
    *,
    example_input: ExampleInput | None = None,
    average: bool = False,
) -> nn.Module:
    """Return the trained module, as far as it has grown, in eval mode and on the CPU.

    `path` is the folder of a run (also of one that has not ended: its newest checkpoint counts), of checkpoints, or of
    an export. `model` is the starting model, before any growth, as the script made it; only a run with a loop of the
    user's own needs it. It is not changed. `example_input` are two inputs of it; they are needed where the model has
    grown and the checkpoint does not know their shape. With `average`, its weights are the average that the script of a
    run has given to `join`, such as a `torch.optim.swa_utils.AveragedModel`. No pickle is read, and torch's random
    numbers are not disturbed.

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
            f"{source}: the script of the run made the starting model, so that only it knows how; give it: "
            "load(path, model=...), or name a function that returns it: espalier export RUN --model package.module:name"
        )
    entrypoint = config.model.entrypoint
    if not config.ready_loop and entrypoint is not None:
        return _of_script(entrypoint, dict(config.model.options), source)
    example = None if config.example is None else config.example.make()
    if not isinstance(example, Tensor):  # the ready trainer's is one
        raise ExportError(f"{source}: does not tell the shape of the model's inputs; give model= and example_input=")
    try:
        with torch.random.fork_rng():
            return build_model(config.model, config.classes or 1, example, task=None)
    except TrainerError as error:
        raise ExportError(f"{source}: the starting model cannot be built: {error}") from error


def _of_script(entrypoint: str, options: dict[str, object], source: Path) -> nn.Module:
    """Return what the function of a script returns, which may be any module."""
    try:
        function = load_entrypoint(entrypoint, "model", ExportError)
        with torch.random.fork_rng():
            start = call_entrypoint(function, entrypoint, "model", options, ExportError)
    except ExportError as error:
        raise ExportError(f"{source}: the starting model cannot be built: {error}") from error
    if not isinstance(start, nn.Module):
        raise ExportError(f"{source}: {entrypoint} returned {type(start).__name__}, not a torch.nn.Module")
    return start
