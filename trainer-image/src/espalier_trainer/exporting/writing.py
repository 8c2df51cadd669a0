"""`export`: the trained model of a run as a folder that needs no job, no data set and no optimizer."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from espalier_core.files.documents import JOB_FILE, dumps, write_text_atomically
from espalier_core.types.job import ModelSpec
from espalier_core.types.result import dataset_of
from espalier_trainer.checkpoints.store import write_tensors
from espalier_trainer.errors import ExportError
from espalier_trainer.exporting.card import card, snippet
from espalier_trainer.exporting.loading import CARD, CONFIG, WEIGHTS, ExportedModel, Trained, build, is_export, read_run
from espalier_trainer.exporting.program import PROGRAM, Program, write_program


@dataclass(frozen=True, slots=True)
class Exported:
    """A written export."""

    folder: Path
    config: ExportedModel
    checked: bool
    """Whether the model was built from it once, which a script's model needs a function for."""

    @property
    def snippet(self) -> str:
        """Lines of Python that load it."""
        return snippet(self.config, str(self.folder))


def export(
    run: Path,
    output: Path,
    entrypoint: str | None = None,
    *,
    average: bool = False,
    program: bool = False,
    fold: bool = False,
) -> Exported:
    """Write the model of the newest checkpoint of `run` into `output`; an existing export is replaced.

    `entrypoint` (`package.module:function`) returns the starting model of a script with its own loop. With `average`,
    the weights are the average that this script gave to `join`. With `program`, the program that `torch.export`
    captures of the model is written, too; with `fold`, batch norms are folded into convolutions in it. Raises
    `ExportError` where the run holds no model, where the model cannot be built or captured, or where `output` holds
    something else.
    """
    if fold and not program:
        raise ExportError(f"--fold-batch-norms: changes {PROGRAM} alone; give --torch-export as well")
    trained = read_run(run, average=average)
    config = trained.config().model_copy(update={"average": average})
    if entrypoint is not None:
        if config.ready_loop:
            raise ExportError(
                f"--model: {run} was trained by the ready trainer, whose job names the model; leave it out"
            )
        config = config.model_copy(update={"model": ModelSpec(entrypoint=entrypoint)})
    if output.exists() and not (is_export(output) or (output.is_dir() and not any(output.iterdir()))):
        raise ExportError(f"{output}: exists and is not an export; give --output another folder")
    model: nn.Module | None = None
    if config.model is not None:
        model = build(config, trained.weights, trained.path)
    if program and (model is None or config.example is None):
        lacks = "starting model: --model package.module:function" if model is None else "shape of its inputs"
        raise ExportError(f"--torch-export: runs the model, for which {run} lacks the {lacks}")
    try:
        _write(trained, config, output, model, program=program, fold=fold)
    except OSError as error:
        raise ExportError(f"{error.filename or output}: cannot be written: {error.strerror or error}") from error
    return Exported(output, config, model is not None)


def _write(
    trained: Trained, config: ExportedModel, output: Path, model: nn.Module | None, *, program: bool, fold: bool
) -> None:
    output.mkdir(parents=True, exist_ok=True)
    written: Program | None = None
    if program and model is not None and config.example is not None:
        written = write_program(model, config.example, output / PROGRAM, fold=fold)
    else:
        (output / PROGRAM).unlink(missing_ok=True)  # from an earlier export
    job = trained.path.parent.parent / JOB_FILE
    has_job = trained.job is not None and job.is_file()
    text = card(
        config,
        trained.state,
        trained.result,
        folder=str(output),
        dataset="" if trained.job is None else dataset_of(trained.job),
        size=_size(trained, model),
        program=written,
        job=has_job,
    )
    weights = output / f"{WEIGHTS}.writing"
    try:
        write_tensors(weights, trained.weights, {"format": "pt"})
        os.replace(weights, output / WEIGHTS)
    except OSError:
        with contextlib.suppress(OSError):
            weights.unlink()
        raise
    write_text_atomically(output / CONFIG, dumps(config))
    write_text_atomically(output / CARD, text)
    if has_job:
        shutil.copyfile(job, output / JOB_FILE)
    else:
        (output / JOB_FILE).unlink(missing_ok=True)  # from an earlier export


def _size(trained: Trained, model: nn.Module | None) -> str:
    """Return the size of the model in words. Checkpoints alone do not distinguish buffers from parameters."""
    if model is None:
        return f"{sum(tensor.numel() for tensor in trained.weights.values()):,} parameters and buffers"
    return f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters"
