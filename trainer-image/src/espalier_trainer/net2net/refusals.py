"""Why a place of a model cannot grow, and where in the user's code that is decided."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from espalier_trainer.net2net.blocks import base_class


@dataclass(frozen=True, slots=True)
class Reason:
    """Why growth would go wrong at a place."""

    text: str
    remedy: str
    at: str
    """File and line of the call that decides, `model.py:12`; empty where it is not known."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a place cannot grow. As text: the reason, and what would help."""

    layer: str
    """Path of the layer, or of a run's first block."""
    reason: str
    file: str
    """Source file of the class whose forward decides; empty where it has none."""
    line: int
    """Line at which that forward begins, or of a call in it."""
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


def refusal(model: nn.Module, layer: str, why: str, remedy: str, at: str = "") -> Refusal:
    """Return the refusal of a layer, with the call `at` that decides, or the class whose forward runs the layer.

    `why` ends in what would help, after a semicolon; `remedy` stands in where it names nothing.
    """
    reason, _, own = why.rpartition("; ")
    file, line = place_of(at) or source_of(base_class(_holder(model, layer)))
    return Refusal(layer, reason or why, file, line, own if reason else remedy)


def why_parametrized(path: str, layer: nn.Module) -> str:
    """Return why a layer whose weight is computed from other parameters cannot grow, '' if it is a plain one."""
    if not is_parametrized(layer) and "weight" in layer._parameters:
        return ""
    return f"the weight of {path!r} is parametrized (weight or spectral norm); remove the parametrization before growth"


def why_transposed(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return for every transposed convolution why it does not grow."""
    return {
        path: f"{path!r} is a transposed convolution ({type(module).__name__}), which growth neither repeats nor "
        "widens; put a convolution with an activation after it, or replace it by nn.Upsample and a convolution"
        for path, module in modules.items()
        if isinstance(module, nn.modules.conv._ConvTransposeNd)
    }


def forward_of(model: nn.Module, path: str) -> tuple[str, int]:
    """Return file and line of the forward of a module, or of what calls it where the module is one of torch's."""
    kind = base_class(model.get_submodule(path))
    return source_of(base_class(_holder(model, path)) if _is_of_torch(kind) else kind)


def _holder(model: nn.Module, path: str) -> nn.Module:
    """Return the innermost module around a layer whose forward is not torch's: one that the user can look at."""
    for parent in _parents(path):
        module = model.get_submodule(parent)
        if not _is_of_torch(base_class(module)):
            return module
    return model


def _is_of_torch(kind: type[nn.Module]) -> bool:
    return kind.forward.__module__.partition(".")[0] == "torch"


def _parents(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition(".")[0]
        yield path


def place_of(written_at: str) -> tuple[str, int] | None:
    """Return file and line of what a trace writes as `model.py:12`; None for an empty text."""
    file, _, line = written_at.rpartition(":")
    return (file, int(line)) if file else None


def source_of(kind: type[nn.Module]) -> tuple[str, int]:
    """Return file and line of the forward of a class; an empty name and 0 where they are not known."""
    found: tuple[str, int] = _source(cast(Any, kind))
    return found


@lru_cache(maxsize=1024)
def _source(kind: Any) -> tuple[str, int]:
    for written in (inspect.unwrap(kind.forward), kind):
        try:
            return inspect.getsourcefile(written) or "", inspect.getsourcelines(written)[1]
        except (OSError, TypeError):
            continue
    return "", 0
