"""The averages of the weights that a checkpoint holds: of `training.weightAveraging`, or of what `join` was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.encoding import PREFIX, decoded
from espalier_trainer.errors import ExportError
from espalier_trainer.optimizers.averaging import averages_in
from espalier_trainer.optimizers.building import GroupState
from espalier_trainer.training.network import OPTIMIZER_PREFIX


def evaluated(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the model's tensors as they are evaluated: with the averages of `training.weightAveraging`, if any."""
    return _in_place(checkpoint, averages_in(checkpoint.under(OPTIMIZER_PREFIX)))


def average_of(checkpoint: Checkpoint, path: Path) -> dict[str, Tensor]:
    """Return the model's tensors with those of its average in their place.

    An average is a dictionary in the state of an object, with a tensor for each trained parameter by its name, maybe
    after a prefix (`module.` of `torch.optim.swa_utils.AveragedModel`). Of a copy of the model, buffers count, too. In
    a job of the ready trainer it is that of `training.weightAveraging`. Raises `ExportError` unless there is one.
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
    """Return the names of the trained parameters, of a tied one the first."""
    return {str(name) for group in checkpoint.state.optimizer_groups for name in cast(GroupState, group)["params"]}


def _in_place(checkpoint: Checkpoint, averages: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the model's tensors with the averages in place of some, under each name of a tied one.

    A file does not tell which tensors share memory. A tied one is trained and averaged under its first name alone;
    under the others it has the same bits.
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
