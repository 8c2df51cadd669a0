"""`model.pt2` of an export: the model's computation, which runs without its code and without Espalier."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves, tree_map

from espalier_core.causes import in_one_line
from espalier_core.files.documents import write_bytes_atomically
from espalier_trainer.checkpoints.examples import Example
from espalier_trainer.errors import ExportError
from espalier_trainer.net2net.modules import ExampleInput, as_arguments

PROGRAM: Final = "model.pt2"
_ROWS: Final = 3
"""Number of examples of the check, unlike the example's, so that it shows whether the batch size is free."""
_MOST: Final = 1e-4
"""Maximum difference by rounding: a larger one means that the folding is wrong."""


@dataclass(frozen=True, slots=True)
class Program:
    """A written program, and the measurements of it."""

    error: float
    """Largest difference of an output from the module's, divided by the module's largest output."""
    rows: int
    """Number of inputs on which it was measured."""
    any_batch: bool
    """Whether batches may have any number of examples from 2; otherwise exactly the example's."""
    norms: int
    """Number of batch norms of the module."""
    folded: int | None
    """Number of those folded into the convolution before them; None if folding was not requested."""


def write_program(model: nn.Module, example: Example, path: Path, *, fold: bool) -> Program:
    """Write the program that `torch.export` captures of `model`, in eval mode on the CPU, to `path`.

    With `fold`, a batch norm directly after a convolution becomes a part of it: y = γ (W x + b - μ) / σ + β is one
    convolution with kernel W γ / σ and bias (b - μ) γ / σ + β (`torch.nn.utils.fusion`). `model` is not changed. The
    program is first read back and compared with `model` on random inputs. Raises `ExportError` where the model cannot
    be captured or folded, or outputs differ by more than rounding, and `OSError` where the file cannot be written.
    """
    norms = _norms(model)
    taken = model
    if fold:
        try:
            taken = fuse(model)
        except Exception as error:  # the model's code may raise anything on a trace's values
            raise ExportError(
                f"--fold-batch-norms: the model cannot be traced by torch.fx ({_first_line(error)}); leave it out"
            ) from error
    inputs = example.make()
    args, kwargs = as_arguments(inputs)
    dynamic: Any = tree_map(_first_axis, kwargs or args)
    try:
        captured = torch.export.export(taken, args, kwargs, dynamic_shapes=dynamic, strict=False)
    except Exception as error:  # as above
        raise ExportError(
            f"--torch-export: torch.export cannot capture the model ({_first_line(error)}); leave it out, and use "
            "espalier_trainer.load"
        ) from error
    # In memory: torch ends the process where it cannot write a file, as on a full disk.
    memory = io.BytesIO()
    torch.export.save(captured, memory)
    content = memory.getvalue()
    read = torch.export.load(io.BytesIO(content)).module()
    more = example.of_rows(_ROWS).make()
    any_batch = _runs(read, more)
    shown = more if any_batch else inputs
    found = _difference(read, model, shown)
    if not found <= _MOST:
        raise ExportError(
            f"{'--fold-batch-norms' if fold else '--torch-export'}: outputs of {path.name} differ from the model's by "
            f"{found:.1g} of the largest value of an output; leave the option out"
        )
    write_bytes_atomically(path, content)
    return Program(
        found, _ROWS if any_batch else example.rows, any_batch, norms, norms - _norms(taken) if fold else None
    )


def _norms(model: nn.Module) -> int:
    return sum(isinstance(module, _BatchNorm) for module in model.modules())


def _first_axis(value: object) -> dict[int, Any] | None:
    """Return the axes of an argument that may have another length."""
    return {0: torch.export.Dim.AUTO} if isinstance(value, Tensor) and value.dim() else None


def _called(module: nn.Module, inputs: ExampleInput) -> list[object]:
    args, kwargs = as_arguments(inputs)
    return tree_leaves(module(*args, **kwargs))


def _runs(module: nn.Module, inputs: ExampleInput) -> bool:
    try:
        with torch.no_grad():
            _called(module, inputs)
    except (AssertionError, RuntimeError):
        return False
    return True


@torch.no_grad()
def _difference(program: nn.Module, model: nn.Module, inputs: ExampleInput) -> float:
    """Return the largest error of any output, relative to its own largest value; infinity for one that is lost."""
    pairs = zip(_called(program, inputs), _called(model, inputs), strict=True)
    errors = [
        _error(found.double(), wanted.double())
        for found, wanted in pairs
        if isinstance(found, Tensor) and isinstance(wanted, Tensor)
    ]
    return max(errors, default=0.0)


def _error(found: Tensor, wanted: Tensor) -> float:
    finite = wanted.isfinite()
    found, wanted = found[finite], wanted[finite]
    if not found.isfinite().all():
        return math.inf  # `max` would pass over NaN
    if not wanted.numel():
        return 0.0
    off, largest = float((found - wanted).abs().max()), float(wanted.abs().max())
    return off / largest if largest else off


def _first_line(error: Exception) -> str:
    return in_one_line(str(error)) or type(error).__name__
