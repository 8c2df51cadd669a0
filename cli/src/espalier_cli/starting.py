"""Starting without a clone: example jobs in the package, and `espalier init`."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import click

from espalier_cli.errors import InputError

EXAMPLES: Final = Path(str(files("espalier_cli"))) / "examples"
"""A link to examples/ in a clone; wheels contain the files themselves."""
_PREFIX: Final = "example:"
_TEMPLATE: Final = ("job.yaml", "model.py")


class JobFile(click.Path):
    """The path of a file with jobs; `example:NAME` is an example in the package."""

    def __init__(self) -> None:
        """Accept any path: the reader reports a bad one."""
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        name = str(value)
        if not name.startswith(_PREFIX) or Path(name).exists():
            return super().convert(value, param, ctx)
        known = {path.stem: path for path in sorted(EXAMPLES.glob("*.yaml"))}
        if (path := known.get(name.removeprefix(_PREFIX))) is None:
            self.fail(f"{name}: no such example; there are {', '.join(_PREFIX + each for each in known)}.", param, ctx)
        return path


@click.command(short_help="Write a job file and a model to start from.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".")
def init(folder: Path) -> None:
    """Write a job file and a model with its data into FOLDER (the current one), to start from.

    Nothing that exists is overwritten. The output is the names of the files.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _TEMPLATE:
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write((EXAMPLES / "own_model" / name).read_text(encoding="utf-8"))
            click.echo(folder / name)
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}", "name another folder: espalier init FOLDER") from error
    there = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    click.echo(f"to run it: {there}espalier run job.yaml --simulate --gpus 1 --arrive 30%:1 --no-agent", err=True)
