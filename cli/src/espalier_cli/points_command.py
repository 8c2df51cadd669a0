"""The command `espalier points`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic.alias_generators import to_camel

from espalier_cli.errors import InputError, check_trainer
from espalier_cli.tables import console_of_stdout, table_for

if TYPE_CHECKING:
    from espalier_trainer.growth.growth_report import Spot, Survey


@click.command()
@click.option("--model", "model_path", required=True, metavar="PACKAGE.MODULE:FUNCTION", help="Returns the model.")
@click.option(
    "--options", default="{}", metavar="JSON", help="Arguments of that function, as `training.model.options`."
)
@click.option(
    "--example",
    "example_path",
    metavar="PACKAGE.MODULE:FUNCTION",
    help="Returns a batch of two: a tensor, a tuple of arguments, or a dictionary of named arguments.  "
    "[default: the model's attribute example_input, example_input_array or dummy_inputs]",
)
@click.option(
    "--pairs", type=click.IntRange(0, 1000), default=5, show_default=True, help="Pairs of steps to measure; 0: none."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def points(model_path: str, options: str, example_path: str | None, pairs: int, as_json: bool) -> None:
    """List where a model can grow, what that adds, and for every other place why not and what would help.

    Modules are imported from the current folder, too. The steps that are measured are forward and backward passes of
    the example, on the device and in the mode of the returned model.
    """
    check_trainer("points")
    from torch import Tensor, nn

    from espalier_core.growth.architecture import GrowthError
    from espalier_trainer.errors import ModelError
    from espalier_trainer.growth.growth_report import example_of, survey
    from espalier_trainer.process.entrypoint import call_entrypoint, load_entrypoint

    sys.path.insert(0, str(Path.cwd()))
    try:
        given = json.loads(options)
    except json.JSONDecodeError as error:
        raise InputError(f"--options: {options!r} is not JSON ({error.msg})") from error
    if not isinstance(given, dict):
        raise InputError(f"--options: {options!r} is not a JSON object; give names and values")
    try:
        model = call_entrypoint(
            load_entrypoint(model_path, "--model", ModelError), model_path, "--model", given, ModelError
        )
        if not isinstance(model, nn.Module):
            raise InputError(f"--model: {model_path} returned {type(model).__name__}, not a torch.nn.Module")
        if example_path is None:
            example = example_of(model)
        else:
            function = load_entrypoint(example_path, "--example", ModelError)
            example = call_entrypoint(function, example_path, "--example", {}, ModelError)
        if not isinstance(example, Tensor | tuple | dict):
            raise InputError(
                f"--example: {example_path} returned {type(example).__name__}, not a batch: a tensor, a tuple or a dict"
            )
        found = survey(model, example, pairs=pairs)
    except (ModelError, GrowthError) as error:
        raise InputError(str(error)) from error
    if as_json:
        click.echo(json.dumps(_document(model_path, found), indent=2))
    else:
        _show(found)


def _document(model: str, found: Survey) -> dict[str, Any]:
    return {
        "model": model,
        "depth": found.depth,
        "parameters": found.parameters,
        "stepSeconds": found.step_seconds,
        "points": [_spot(one, ("width", "multiple_of", "layers")) for one in found.points],
        "groups": [_spot(one, ("kind", "layer", "depth", "insertions", "exact")) for one in found.groups],
        "refused": [
            {"operation": operation, **dataclasses.asdict(refusal), "file": refusal.file or None}
            for operation, refusal in found.refused
        ],
    }


def _spot(spot: Spot, left_out: tuple[str, ...]) -> dict[str, Any]:
    return {to_camel(name): value for name, value in dataclasses.asdict(spot).items() if name not in left_out}


def _show(found: Survey) -> None:
    console = console_of_stdout()
    step = "" if found.step_seconds is None else f", {found.step_seconds * 1000:.3g} ms a step"
    console.print(f"{found.depth} layers with weights, {found.parameters:,} parameters{step}")
    added = ("+layers", "+parameters", "+ms")
    rows = [_row(one) for one in (*found.points, *found.groups)]
    if rows:
        console.print(table_for(console.width, ("operation", "place", "kind", *added, "exact"), rows, right=added))
    else:
        console.print("It can grow nowhere.")
    for operation, refusal in found.refused:
        where = f" ({refusal.file}:{refusal.line})" if refusal.file else ""
        text = f"{operation} refused: {refusal.layer}: {refusal.reason}{where}\n    {refusal.remedy}"
        console.print(text, soft_wrap=True, markup=False)


def _row(one: Spot) -> tuple[str, ...]:
    kind = f"{one.kind}: {one.width} to {2 * one.width}" if one.width is not None else one.kind
    ms = "" if one.step_seconds is None else f"{one.step_seconds * 1000:.3g}"
    exact = ", ".join(one.exact) if one.width is None else "to rounding"
    return one.operation, one.id, kind, str(one.depth), f"{one.parameters:,}", ms, exact or "no"
