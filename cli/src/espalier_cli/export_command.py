"""The command `espalier export`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from espalier_cli.errors import InputError, check_trainer


@click.command()
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), help="Folder of the export.  [default: RUN/export]"
)
@click.option(
    "--model",
    metavar="PACKAGE.MODULE:FUNCTION",
    help="Returns the starting model; only for a script with its own training loop.",
)
@click.option(
    "--average",
    is_flag=True,
    help="Write the average of the weights that the script of the run has given to join, not the model's own weights.",
)
@click.option(
    "--torch-export",
    "program",
    is_flag=True,
    help="Also write model.pt2, what torch.export captures: it runs without Espalier and without the model's code.",
)
@click.option(
    "--fold-batch-norms",
    "fold",
    is_flag=True,
    help="In model.pt2, make batch norms a part of the convolutions before them: faster, for inference only.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the files and the Python code as JSON.")
def export(
    run: Path, output: Path | None, model: str | None, average: bool, program: bool, fold: bool, as_json: bool
) -> None:
    """Write the trained model of RUN as a folder: weights (safetensors), how to build it, a model card.

    RUN is the folder of a run, of its checkpoints, or of one checkpoint. The newest checkpoint is exported, also while
    the run continues. The output is the Python code that loads the model.
    """
    check_trainer("export")
    from espalier_trainer.errors import ExportError
    from espalier_trainer.exporting.writing import export as write

    sys.path.insert(0, str(Path.cwd()))
    try:
        exported = write(run, output or run / "export", model, average=average, program=program, fold=fold)
    except ExportError as error:
        raise InputError(str(error)) from error
    files = [str(file) for file in sorted(exported.folder.iterdir())]
    click.echo("\n".join(files), err=True)
    if not exported.checked:
        hint = "load it with model=, or export it again with --model package.module:function"
        click.echo(f"the script of the run makes the starting model: {hint}", err=True)
    click.echo(json.dumps({"files": files, "python": exported.snippet}, indent=1) if as_json else exported.snippet)
