"""Refusals: the reason why a model, or a place in it, cannot grow, and the line of the user's code that decides it.

Wrapped, split or compiled models are recognised by the names of their classes, without importing them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from espalier_trainer.net2net.blocks import base_class


@dataclass(frozen=True, slots=True)
class RefusalReason:
    """The reason against growth at a place, with its remedy."""

    text: str
    remedy: str
    at: str
    """File and line of the call that decides, `model.py:12`; empty where it is not known."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A place that cannot grow. Its text is the reason and the remedy."""

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
    """Return the refusal of a layer, located at the call `at`, or at the class whose forward runs the layer.

    `why` ends in its remedy, after a semicolon; `remedy` is used where it has none.
    """
    reason, _, own = why.rpartition("; ")
    file, line = place_of(at) or source_of(base_class(_holder(model, layer)))
    return Refusal(layer, reason or why, file, line, own if reason else remedy)


def why_parametrized(path: str, layer: nn.Module) -> str:
    """Return why a layer whose weight is computed from other parameters cannot grow; '' for a plain layer."""
    if not is_parametrized(layer) and "weight" in layer._parameters:
        return ""
    return f"the weight of {path!r} is parametrized (weight or spectral norm); remove the parametrization before growth"


def why_transposed(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return, for every transposed convolution, the reason why it does not grow."""
    return {
        path: f"{path!r} is a transposed convolution ({type(module).__name__}), which growth neither repeats nor "
        "widens; put a convolution with an activation after it, or replace it by nn.Upsample and a convolution"
        for path, module in modules.items()
        if isinstance(module, nn.modules.conv._ConvTransposeNd)
    }


def forward_of(model: nn.Module, path: str) -> tuple[str, int]:
    """Return file and line of a module's forward, or of the forward that calls it where the module is torch's."""
    kind = base_class(model.get_submodule(path))
    return source_of(base_class(_holder(model, path)) if _is_of_torch(kind) else kind)


def _holder(model: nn.Module, path: str) -> nn.Module:
    """Return the innermost module around a layer whose forward is not torch's, so that the user can look at it."""
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
    """Return file and line from a trace's `model.py:12`; None for an empty text."""
    file, _, line = written_at.rpartition(":")
    return (file, int(line)) if file else None


def source_of(kind: type[nn.Module]) -> tuple[str, int]:
    """Return file and line of the forward of a class; an empty name and 0 where they are unknown."""
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


_INNER: Final[Mapping[str, str]] = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
}
"""Wrappers that leave the model whole, with the attribute that holds it."""
_SPLIT: Final[Mapping[str, str]] = {
    "FSDPModule": "fully_shard (FSDP2)",
    "FullyShardedDataParallel": "FullyShardedDataParallel (FSDP1)",
    "XlaFullyShardedDataParallel": "XlaFullyShardedDataParallel",
    "ShardedDataParallel": "ShardedDataParallel (fairscale)",
    "DeepSpeedEngine": "DeepSpeed",
    "DeepSpeedHybridEngine": "DeepSpeed",
    "PipelineEngine": "a pipeline (DeepSpeed)",
    "PipelineModule": "a pipeline (DeepSpeed)",
    "Pipe": "a pipeline",
    "PipelineStage": "a pipeline (torch.distributed.pipelining)",
    "_PipelineStageBase": "a pipeline (torch.distributed.pipelining)",
}
_TENSORS: Final[Mapping[str, str]] = {
    "DTensor": "parallelize_module or distribute_tensor (tensor parallelism)",
    "ShardedTensor": "ShardedTensor",
    "FlatParameter": "FullyShardedDataParallel (FSDP1)",
}
_ZERO: Final = "ds_id"
"""Attribute of parameters partitioned by DeepSpeed ZeRO."""


def why_wrapped(model: object) -> str | None:
    """Return the refusal of a wrapped model, which must be unwrapped for growth; None for a model without a wrapper."""
    kind = type(model).__name__
    inner = next((_INNER[base] for base in _bases(model) if base in _INNER), None)
    return inner and (
        f"{kind} wraps the model; grow its `.{inner}` and wrap the result again (a job's model must not be wrapped)"
    )


def why_split(model: object) -> str | None:
    """Return the refusal of a model that is split over several processes; None for a whole model."""
    found = None
    for path, module in model.named_modules() if isinstance(model, nn.Module) else [("", model)]:
        found = next((_SPLIT[base] for base in _bases(module) if base in _SPLIT), None)
        for parameter in module._parameters.values() if isinstance(module, nn.Module) else ():
            if found is None and parameter is not None:
                found = _TENSORS.get(type(parameter).__name__) or _TENSORS.get(type(parameter.data).__name__)
                found = found or ("DeepSpeed ZeRO" if hasattr(parameter, _ZERO) else None)
        if found is not None:
            where = f" at {path!r}" if path else ""
            return (
                f"{type(model).__name__} is split over several processes by {found}{where}; each worker of a job, and "
                "growth, needs the whole model: give the model as it was before that"
            )
    return None


def _bases(model: object) -> list[str]:
    return [base.__name__ for base in type(model).__mro__]
