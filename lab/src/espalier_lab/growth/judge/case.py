"""A case: a model, its data and its budget, read from a Python file and checked."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final, cast

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from espalier_core.files.documents import first_fault
from espalier_core.types.job import OptimizerSpec
from espalier_core.types.task import Task

KEYS: Final = (
    "name",
    "family",
    "module",
    "train",
    "validation",
    "test",
    "steps",
    "batchSize",
    "optimizer",
)
SPLITS: Final = ("train", "validation", "test")


class CaseError(Exception):
    """A case is unusable. The message names the case, the fault and the remedy."""


@dataclass(frozen=True, slots=True)
class JudgeSplit:
    """Inputs and targets; integer targets are classes, others are for regression."""

    inputs: Tensor | tuple[Tensor, ...]
    """Inputs of shape [N, ...]; a tuple has the arguments of the model's forward."""
    targets: Tensor
    """Targets, [N] or [N, ...]."""

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, rows: Tensor) -> tuple[Tensor | tuple[Tensor, ...], Tensor]:
        """Return the examples in these rows."""
        if isinstance(self.inputs, tuple):
            return tuple(one[rows] for one in self.inputs), self.targets[rows]
        return self.inputs[rows], self.targets[rows]


@dataclass(frozen=True, slots=True)
class JudgeCase:
    """One model with its data and its budget."""

    name: str
    family: str
    module: Callable[[int], nn.Module]
    """Returns the starting model for a seed."""
    train: JudgeSplit
    validation: JudgeSplit
    test: JudgeSplit
    steps: int
    """Budget, in steps of the starting model."""
    batch_size: int
    optimizer: OptimizerSpec
    task: Task = Task.CLASSIFICATION
    characters_per_token: float = 1.0
    """Characters per token of a language model's text, on average."""

    @property
    def restarts(self) -> bool:
        """Whether the learning rate restarts at a decision; for language models it falls once, over the budget."""
        return self.task is not Task.LANGUAGE_MODEL

    @property
    def example(self) -> Tensor | tuple[Tensor, ...]:
        """Two training inputs."""
        return self.train.batch(torch.arange(2))[0]

    def built(self, seed: int) -> nn.Module:
        """Return the starting model, the same for the same seed; raise `CaseError`."""
        torch.manual_seed(seed)
        # Any error that the user's function raises.
        try:
            module = self.module(seed)
        except CaseError:
            raise
        except Exception as error:
            raise CaseError(
                f"case {self.name!r}: module({seed}) failed ({type(error).__name__}: {error}); it takes a seed and "
                "returns a torch.nn.Module"
            ) from error
        if not isinstance(module, nn.Module):
            raise CaseError(
                f"case {self.name!r}: module({seed}) returned {type(module).__name__}; return a torch.nn.Module"
            )
        return module.train()


Cases = Callable[[], Sequence[JudgeCase]]
"""Creates the cases; can be pickled, as workers create their own."""


@dataclass(frozen=True)
class CaseFile:
    """The cases from the function `cases()` of a file."""

    path: str

    def __call__(self) -> tuple[JudgeCase, ...]:
        """Run the file; raise `CaseError`."""
        return tuple(checked(one, place) for place, one in enumerate(_yielded(Path(self.path)), 1))

    def digest(self) -> str:
        """Return a key that distinguishes the file from others and from its earlier contents; raise `CaseError`."""
        try:
            return hashlib.sha256(Path(self.path).read_bytes()).hexdigest()
        except OSError as error:
            raise CaseError(f"{self.path}: cannot be read ({error.strerror})") from error


def _yielded(path: Path) -> list[Any]:
    name = f"espalier_cases_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise CaseError(f"{path}: no such file of Python")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look there
    folder = str(path.absolute().parent)
    if folder not in sys.path:
        # Last: workers import with this path, and a file named like a module of Python must not hide it.
        sys.path.append(folder)
    # Any error that the user's file raises.
    try:
        spec.loader.exec_module(module)
        function = getattr(module, "cases", None)
        found = list(cast("Iterable[Any]", function())) if callable(function) else None
    except SystemExit as error:
        raise CaseError(
            f"{path}: ends the program where its cases are made (sys.exit); move its code as a script below "
            '`if __name__ == "__main__":`'
        ) from error
    except Exception as error:
        raise CaseError(f"{path}: {type(error).__name__}: {error}; it failed where its cases are made") from error
    if found is None:
        raise CaseError(f"{path}: has no function `cases`; define one that yields dictionaries")
    if not found:
        raise CaseError(f"{path}: cases() yields nothing; yield at least one dictionary")
    names = [one.get("name") if isinstance(one, Mapping) else None for one in found]
    for twice in (name for place, name in enumerate(names) if name is not None and name in names[:place]):
        raise CaseError(f"case {twice!r}: the name is used twice; give each case its own")
    return found


def checked(given: Any, place: int = 1) -> JudgeCase:
    """Return the case in a dictionary; raise `CaseError`. `place` names a case without a name."""
    if not isinstance(given, Mapping):
        raise CaseError(f"case {place}: is {type(given).__name__}; yield a dictionary with {', '.join(KEYS)}")
    name = given.get("name")
    called = f"case {name!r}" if isinstance(name, str) and name else f"case {place}"
    missing = [key for key in KEYS if key not in given]
    if missing:
        raise CaseError(f"{called}: has no {missing[0]!r}; a case has {', '.join(KEYS)}")
    if not isinstance(name, str) or not name or not isinstance(given["family"], str) or not given["family"]:
        raise CaseError(f"{called}: 'name' and 'family' are texts that are not empty")
    if not callable(given["module"]):
        raise CaseError(
            f"{called}: 'module' is {type(given['module']).__name__}; give a function from a seed to a model"
        )
    for key in ("steps", "batchSize"):
        if isinstance(given[key], bool) or not isinstance(given[key], int) or given[key] < 1:
            raise CaseError(f"{called}: {key!r} is {given[key]!r}; give a whole number above 0")
    splits = {key: _split(given[key], key, called) for key in SPLITS}
    task = _task(given, splits["train"], called)
    characters = given.get("charactersPerToken", 1.0)
    if isinstance(characters, bool) or not isinstance(characters, int | float) or not 0 < characters < math.inf:
        raise CaseError(f"{called}: 'charactersPerToken' is {characters!r}; give a number above 0")
    return JudgeCase(
        name=name,
        family=given["family"],
        module=given["module"],
        steps=given["steps"],
        batch_size=min(given["batchSize"], len(splits["train"])),
        optimizer=_optimizer(given["optimizer"], called),
        task=task,
        characters_per_token=float(characters),
        **splits,
    )


def _task(given: Mapping[str, Any], train: JudgeSplit, called: str) -> Task:
    """Return the task that a case names; by default, the targets determine it."""
    numbers = train.targets.is_floating_point()
    named = given.get("task", Task.REGRESSION if numbers else Task.CLASSIFICATION)
    if named not in list(Task):
        raise CaseError(f"{called}: 'task' is {named!r}; allowed: {', '.join(Task)}")
    if (named == Task.REGRESSION) != numbers:
        kind = "floating-point numbers" if numbers else "integers"
        raise CaseError(f"{called}: 'task' is {named}, and the targets are {kind}; give classes or tokens as integers")
    return Task(named)


def _split(given: Any, key: str, called: str) -> JudgeSplit:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise CaseError(f"{called}: {key!r} is {type(given).__name__}; give the pair (inputs, targets)")
    inputs, targets = given
    # Arrays and lists of numbers are accepted too.
    try:
        whole = tuple(map(torch.as_tensor, inputs)) if isinstance(inputs, tuple) else torch.as_tensor(inputs)
        wanted = torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CaseError(f"{called}: {key!r} cannot be converted to tensors ({error}); give tensors") from error
    for one in whole if isinstance(whole, tuple) else (whole,):
        if one.ndim < 1 or len(one) != len(wanted):
            raise CaseError(
                f"{called}: {key!r} has inputs of shape {tuple(one.shape)} and {len(wanted)} targets; one for each row"
            )
    if len(wanted) < 2:
        raise CaseError(f"{called}: {key!r} has {len(wanted)} examples; give at least two")
    integers = not (wanted.is_floating_point() or wanted.is_complex())
    return JudgeSplit(whole, wanted.long() if integers else wanted.float())


def _optimizer(given: Any, called: str) -> OptimizerSpec:
    if not isinstance(given, Mapping):
        raise CaseError(f"{called}: 'optimizer' is {type(given).__name__}; give {{'name', 'learningRate'}}")
    try:
        return OptimizerSpec.model_validate(dict(given))
    except ValidationError as error:
        raise CaseError(f"{called}: optimizer: {first_fault(error)}") from error
